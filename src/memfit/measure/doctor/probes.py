"""List of all probes of `memfit doctor`, and the rule that a probe never raises.

What goes wrong inside of a probe is its answer: a machine that refuses everything still gets its report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

from memfit.measure.doctor import machine, memory, software
from memfit.measure.doctor.answer import Seen
from memfit.measure.doctor.child import ProbeChild
from memfit.measure.instruction_sets import find_instructions
from memfit.records.machine.doctor import MachineCheck


class Probe(NamedTuple):
    """One thing to try."""

    name: str
    group: str
    ask: Callable[[], Seen]


def run_probes() -> tuple[MachineCheck, ...]:
    """Try everything, in the order of the report."""
    with ProbeChild() as child:
        return tuple(ask(probe) for probe in all_probes(child))


def ask(probe: Probe) -> MachineCheck:
    """Try one thing; an error is a finding."""
    try:
        seen = probe.ask()
    except Exception as error:
        seen = Seen("no", f"trying it failed: {type(error).__name__}: {error}")
    return MachineCheck(name=probe.name, group=probe.group, **seen._asdict())


def all_probes(child: ProbeChild) -> Iterator[Probe]:
    """Everything that is tried."""
    yield Probe("resident size", "memory", lambda: memory.probe_resident(child))
    yield Probe("exact peak of a process", "memory", lambda: memory.probe_high_water(child))
    yield Probe("exact peak of each step", "memory", lambda: memory.probe_reset(child))
    yield Probe("shared pages counted once", "memory", lambda: memory.probe_proportional(child))
    yield Probe("sampling interval", "memory", machine.probe_clock)
    yield Probe("processes of yours", "processes", lambda: memory.probe_access(child))
    yield Probe("memory limit of the group", "processes", machine.probe_group_limit)
    yield Probe("out-of-memory kills", "processes", machine.probe_kill_counter)
    yield Probe("GPU memory", "GPU and energy", machine.probe_gpu)
    yield Probe("GPU energy", "GPU and energy", machine.probe_gpu_energy)
    yield Probe("processor energy", "GPU and energy", machine.probe_energy)
    yield Probe("steady page size", "machine", machine.probe_huge_pages)
    yield Probe("repeatable peaks", "machine", machine.probe_stable)
    yield Probe("bare metal", "machine", machine.probe_container)
    yield Probe("run folders here", "machine", machine.probe_folder)
    yield Probe("operating system", "software", software.probe_system)
    yield Probe("steps and layers (torch)", "software", software.probe_torch)
    instructions = cache(find_instructions)  # one child answers for all three types
    yield Probe("float32 products", "software", lambda: software.probe_products("float32", instructions()))
    yield Probe("bfloat16 products", "software", lambda: software.probe_products("bfloat16", instructions()))
    yield Probe("float16 products", "software", lambda: software.probe_products("float16", instructions()))
    yield Probe("pictures (matplotlib)", "software", software.probe_pictures)
