"""Probes of the GPU driver and of the processor's energy counters."""

from __future__ import annotations

from memfit.measure.counters.energy import Unavailable
from memfit.measure.counters.nvml import LIBRARY, open_nvml
from memfit.measure.counters.powercap import HWMON_ROOT, POWERCAP_ROOT, how_to_enable, open_powercap
from memfit.measure.doctor.seen import Seen
from memfit.measure.sampler.gpu_events import sees_host_pids


def probe_gpu(library: str = LIBRARY) -> Seen:
    """Whether NVML answers, and for which devices."""
    reader = open_nvml(library)
    if isinstance(reader, Unavailable):
        return Seen("no", reader.reason, reader.hint)
    try:
        memories = [(device, reader.memory(device)) for device in reader.devices]
        refused = [f"GPU {device.index}: {m.reason}" for device, m in memories if isinstance(m, Unavailable)]
        names = ", ".join(device.name for device in reader.devices)
    finally:
        reader.close()
    found = f"driver {reader.driver}: {names}"
    if refused:
        return Seen("partly", f"{found}; {'; '.join(refused)}", "run nvidia-smi to see the same refusal")
    if not sees_host_pids():
        return Seen("partly", f"{found}; by device, not by process", "start the container with --pid=host")
    return Seen("yes", found)


def probe_gpu_energy(library: str = LIBRARY) -> Seen:
    """Whether the devices have an energy counter, tell their power, or neither."""
    reader = open_nvml(library)
    if isinstance(reader, Unavailable):
        return Seen("no", "no GPU can be read")
    marks = reader.marks(0.0)
    reader.close()
    known = [f"{mark.domain}: {mark.method.partition(',')[0]}" for mark in marks if mark.microjoules is not None]
    refused = [f"{mark.domain}: {mark.reason}" for mark in marks if mark.microjoules is None]
    answer = "yes" if not refused else "partly" if known else "no"
    hint = "run nvidia-smi to see the same refusal" if refused else ""
    return Seen(answer, "; ".join(known + refused), hint)


def probe_energy(root: str = POWERCAP_ROOT, hwmon_root: str = HWMON_ROOT) -> Seen:
    """Whether the processor's energy counters can be read."""
    reader = open_powercap(root, hwmon_root)
    if isinstance(reader, Unavailable):
        return Seen("no", reader.reason, reader.hint)
    readable = ", ".join(reader.read())
    if reader.problems:
        missing = "; ".join(f"{domain}: {reason}" for domain, reason in reader.problems.items())
        return Seen("partly", f"{readable}; {missing}", how_to_enable(reader.domains))
    return Seen("yes", readable)
