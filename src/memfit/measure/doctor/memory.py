"""Probes of memory counters of another process: which can be read here, and at what cost.

They are tried on a small child, because that is how the sampler meets them, and so that the caller's own high-water
mark stays as it is.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from memfit.measure.doctor.answer import Seen
from memfit.measure.doctor.child import ProbeChild
from memfit.units import format_bytes, format_seconds

CLEAR_REFS_HINT = "a kernel from 4.0 on with CONFIG_PROC_PAGE_MONITOR; without it the peak of the whole run stays exact"


def probe_resident(child: ProbeChild) -> Seen:
    """statm of another process, read a thousand times through an open file."""
    try:
        descriptor = os.open(f"/proc/{child.pid}/statm", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        return Seen("no", _why(error), "memfit reads /proc and needs Linux, with /proc mounted")
    try:
        cost_seconds = _median_cost_seconds(lambda: os.pread(descriptor, 128, 0), 1000)
        resident_bytes = int(os.pread(descriptor, 128, 0).split()[1]) * os.sysconf("SC_PAGE_SIZE")
    finally:
        os.close(descriptor)
    found = f"{format_bytes(resident_bytes)} in a small process, {cost_seconds * 1e6:.1f} us a reading"
    return Seen("yes", found, cost_seconds=cost_seconds)


def probe_high_water(child: ProbeChild) -> Seen:
    """VmHWM of another process."""
    started = time.perf_counter()
    try:
        text = Path(f"/proc/{child.pid}/status").read_text()
    except OSError as error:
        return Seen("no", _why(error), "memfit reads /proc and needs Linux")
    cost_seconds = time.perf_counter() - started
    line = next((line for line in text.splitlines() if line.startswith("VmHWM:")), None)
    if line is None:
        return Seen("no", "/proc/PID/status has no VmHWM line", "a full Linux kernel; some sandboxes leave it out")
    return Seen("yes", f"VmHWM {format_bytes(int(line.split()[1]) * 1024)}", cost_seconds=cost_seconds)


def probe_reset(child: ProbeChild) -> Seen:
    """Whether a process may reset its own high-water mark: the child did it around a passing 32 MiB."""
    report = child.report
    if "error" in report:
        return Seen("no", report["error"], CLEAR_REFS_HINT)
    before, after = report["before_bytes"], report["after_bytes"]
    found = f"VmHWM {format_bytes(before)} fell to {format_bytes(after)} after a reset by clear_refs"
    if before - after < report["block_bytes"] // 2:
        return Seen("no", f"the reset has no effect: {found}", CLEAR_REFS_HINT)
    cost_seconds = report["reset_ns"] / 1e9
    return Seen("yes", f"{found}, {format_seconds(cost_seconds)}", cost_seconds=cost_seconds)


def probe_proportional(child: ProbeChild) -> Seen:
    """smaps_rollup of another process, with what it costs."""
    started = time.perf_counter()
    try:
        text = Path(f"/proc/{child.pid}/smaps_rollup").read_text()
    except OSError as error:
        hint = "a kernel from 4.14 on and ptrace access to the process; else a tree is known by its upper bound"
        return Seen("no", _why(error), hint)
    cost_seconds = time.perf_counter() - started
    kib = {line.split(":")[0]: int(line.split()[1]) for line in text.splitlines() if line.endswith(" kB")}
    resident, proportional = (format_bytes(kib.get(key, 0) * 1024) for key in ("Rss", "Pss"))
    found = f"PSS {proportional} of RSS {resident}, {format_seconds(cost_seconds)}; grows with the process"
    return Seen("yes", found, cost_seconds=cost_seconds)


def probe_access(child: ProbeChild) -> Seen:
    """Which files of another process of the same user can be opened, and what hides them if not."""
    refused = [f"{file} ({_why(error)})" for file, error in child.closed_files()]
    limits = "; ".join(process_limits())
    if not refused:
        return Seen("yes", "all files of a child process can be read" + (f" ({limits})" if limits else ""))
    answer = "partly" if len(refused) < len(child.FILES) else "no"
    found = f"not readable: {', '.join(refused)}" + (f"; {limits}" if limits else "")
    return Seen(answer, found, "run memfit as the user of the job; `memfit measure` needs less than `memfit attach`")


def process_limits(proc: Path = Path("/proc")) -> list[str]:
    """Settings of this machine that keep a process from reading another one, where they are on."""
    limits = []
    try:
        scope = int((proc / "sys/kernel/yama/ptrace_scope").read_text())
        if scope:
            limits.append(f"yama ptrace_scope is {scope}: smaps of processes that memfit did not start may be closed")
    except (OSError, ValueError):
        pass
    try:
        mounts = (proc / "self/mountinfo").read_text().splitlines()
    except OSError:
        mounts = []
    for line in mounts:
        if " - proc " in line and "hidepid=" in line:
            value = line.partition("hidepid=")[2].split(",")[0].split()[0]
            if value not in ("0", "off"):
                limits.append(f"/proc is mounted with hidepid={value}: processes of other users cannot be seen")
    return limits


def _median_cost_seconds(call: Callable[[], object], repeats: int) -> float:
    costs = []
    for _ in range(repeats):
        started = time.perf_counter_ns()
        call()
        costs.append(time.perf_counter_ns() - started)
    return statistics.median(costs) / 1e9


def _why(error: OSError) -> str:
    return f"{error.strerror or error}"
