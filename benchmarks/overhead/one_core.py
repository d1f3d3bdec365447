"""What does it cost to be watched where the job has no second core to spare?"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from benchmarks.overhead import always_on
from benchmarks.overhead.always_on import MEMFIT, MPROF, PSUTIL
from benchmarks.overhead.blocks import CONTROL
from benchmarks.overhead.options import Options
from benchmarks.overhead.report import Part
from benchmarks.overhead.samplers import Memfit, Mprof, NoSampler, Psutil, Sampler

KINDS: dict[str, Sampler] = {CONTROL: NoSampler, MEMFIT: Memfit, PSUTIL: Psutil, MPROF: Mprof}
METHOD = (
    "As above, with the training process and every sampler bound to the same core, as on a machine whose cores are all "
    "taken: each look of a sampler then interrupts the training. Pairs during which other programs took more than "
    "{others:.2f} cores are left out, whatever they showed ({dropped})."
)


def measure(options: Options) -> Part:
    """Take turns over the lengths of steps for as long as one pass takes, or as long as was asked for."""
    with _bound_to_one_core():
        turns = always_on.take_turns(options, KINDS, is_enough=lambda _: False)
    return always_on.judge(
        turns,
        options.seed,
        name="one_core",
        title="Always on, on one core",
        what="wall time, one core for all",
        method=METHOD,
    )


@contextlib.contextmanager
def _bound_to_one_core() -> Iterator[None]:
    """Processes that are started meanwhile run on one core; this one waits for them there as well."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
