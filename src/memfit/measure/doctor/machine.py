"""Probes of the clock, the kernel, the C library and the current folder.

Probes of the GPU driver and of the processor's energy counters.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import tempfile
import time
from pathlib import Path

from memfit.measure.counters.cgroup import memory_groups
from memfit.measure.counters.energy import Unavailable
from memfit.measure.counters.machine import huge_pages, libc_version, memory_total_bytes
from memfit.measure.counters.nvml import LIBRARY, open_nvml
from memfit.measure.counters.powercap import HWMON_ROOT, POWERCAP_ROOT, how_to_enable, open_powercap
from memfit.measure.doctor.answer import Seen
from memfit.measure.sampler.gpu_events import sees_host_pids
from memfit.units import GIB, format_bytes, format_seconds

HONEST_INTERVALS_SECONDS = (0.001, 0.002, 0.005, 0.010, 0.020, 0.050, 0.100)


# ---- clock ----


def probe_clock(duration_seconds: float = 0.2) -> Seen:
    """How late `sleep(1 ms)` wakes up here, and which interval can be promised."""
    late = sorted(lateness_seconds(duration_seconds))
    usual, worst = late[len(late) // 2], late[int(len(late) * 0.95)]
    honest = honest_interval_seconds(worst)
    found = f"1 ms sleeps are {format_seconds(usual)} late, 95 % below {format_seconds(worst)}"
    if honest is None:
        hint = "the machine is very busy: times of samples are kept with each sample, so they stay true"
        return Seen("partly", found, hint, worst)
    text = f"{found}; {format_seconds(honest)} can be kept"
    hint = "a shorter --interval is allowed; each sample keeps how late it was" if honest > 0.001 else ""
    return Seen("yes", text, hint, worst)


def lateness_seconds(duration_seconds: float, sleep_seconds: float = 0.001) -> list[float]:
    """How much longer each sleep took than asked for."""
    late, end = [], time.perf_counter() + duration_seconds
    while True:
        started = time.perf_counter()
        time.sleep(sleep_seconds)
        now = time.perf_counter()
        late.append(now - started - sleep_seconds)
        if now >= end:
            return late


def honest_interval_seconds(worst_late_seconds: float) -> float | None:
    """The smallest usual interval of which 95 % of the wake-ups keep at least half; None when none of them does."""
    return next((one for one in HONEST_INTERVALS_SECONDS if worst_late_seconds <= one / 2), None)


# ---- limits and kills ----


def probe_group_limit() -> Seen:
    """The control group's limit, and whether it tells of kills."""
    total_bytes, groups = memory_total_bytes(), memory_groups()
    if not groups:
        hint = "nothing to do; in a container, mount /sys/fs/cgroup so that its limit can be seen"
        return Seen("no", "no memory control group can be read", hint)
    limits = [limit for group in groups if (limit := group.limit_bytes) is not None and limit < total_bytes]
    kills = next((count for group in groups if (count := group.num_oom_kills) is not None), None)
    limit = f"limit {format_bytes(min(limits))}" if limits else f"no limit below {format_bytes(total_bytes)}"
    counted = "kills are not counted" if kills is None else f"{kills} kills counted"
    return Seen("yes", f"cgroup v{groups[0].version}: {limit}, {counted}")


def probe_kill_counter(vmstat: Path = Path("/proc/vmstat")) -> Seen:
    """The machine's counter of out-of-memory kills."""
    try:
        line = next((line for line in vmstat.read_text().splitlines() if line.startswith("oom_kill ")), None)
    except OSError:
        line = None
    if line is None:
        hint = "a kernel from 4.13 on; without it a kill -9 cannot be distinguished from an out-of-memory kill"
        return Seen("no", f"{vmstat} has no oom_kill counter", hint)
    return Seen("yes", f"{line.split()[1]} since the machine started")


# ---- machine ----


def probe_huge_pages() -> Seen:
    """Whether the kernel may back small blocks with huge pages, which rounds resident sizes up."""
    setting = huge_pages()
    if setting == "always":
        hint = "a small block may take 2 MiB; `echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled`"
        return Seen("partly", "transparent huge pages are used everywhere", hint)
    return Seen("yes", f"transparent huge pages: {setting or 'not in this kernel'}")


def probe_stable() -> Seen:
    """Whether --stable can pin the C library's mmap threshold."""
    version = libc_version()
    preload = os.environ.get("LD_PRELOAD", "")
    if not version.startswith("glibc"):
        return Seen(
            "no",
            f"{version or platform.system()} is not glibc",
            "nothing to pin: only glibc moves its mmap threshold while running",
        )
    if re.search(r"jemalloc|tcmalloc|mimalloc", preload):
        return Seen("no", f"LD_PRELOAD={preload} replaces malloc", "unset LD_PRELOAD for a pinned run")
    return Seen("yes", f"{version}: --stable can pin its mmap threshold")


def probe_container() -> Seen:
    """Whether this is a container or a virtual machine, which hides counters."""
    signs = container_signs()
    if not signs:
        return Seen("yes", "no sign of a container or virtual machine")
    return Seen("partly", "; ".join(signs), "measure energy on the host itself; start containers with --pid=host")


def container_signs(root: Path = Path("/")) -> list[str]:
    """What gives a container or a virtual machine away."""
    signs = [f"/{name}" for name in (".dockerenv", "run/.containerenv") if (root / name).exists()]
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        signs.append("KUBERNETES_SERVICE_HOST is set")
    if not sees_host_pids(str(root / "proc/self/ns/pid")):
        signs.append("its own process numbers")
    try:
        if re.search(r"^flags\s*:.*\bhypervisor\b", (root / "proc/cpuinfo").read_text(), re.MULTILINE):
            signs.append("a hypervisor below (cpuinfo)")
    except OSError:
        pass
    return signs


def probe_folder() -> Seen:
    """Whether runs can be written here, and how much room there is."""
    folder = Path.cwd()
    try:
        free_bytes = shutil.disk_usage(folder).free
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".memfit-doctor-"):
            pass
    except OSError as error:
        return Seen("no", f"the current folder cannot be written: {error.strerror}", "name another folder with -o")
    found = f"writable, {format_bytes(free_bytes)} free"
    if free_bytes < GIB:
        return Seen("partly", found, "at 10 ms an hour of samples takes about 11 MiB for each process")
    return Seen("yes", found)


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
