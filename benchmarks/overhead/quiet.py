"""How busy are the others on this machine, and is it worth waiting until they are less so?"""

from __future__ import annotations

import os
import time
from pathlib import Path

LOOK_SECONDS = 0.2
BUSY_CORES = 0.6
"""Others at work on more cores than this: a block of the benchmark would measure them."""
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def busy_core_seconds() -> float:
    """CPU time spent by everybody since the machine started."""
    user, nice, system, _idle, _waiting, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / TICKS_PER_SECOND


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads of a process, to the nanosecond (`stat` counts in hundredths of a second)."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def resident_bytes(pid: int) -> int:
    """Resident size of a process now."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class OthersAtWork:
    """CPU time of everybody but these processes and this one, from now on."""

    def __init__(self, pids: list[int]) -> None:
        self._pids = pids
        self._started_seconds = time.monotonic()
        self._before = self._others_seconds()

    def cores(self) -> float:
        """How many cores the others kept busy since then; the kernel counts in hundredths of a second."""
        return (self._others_seconds() - self._before) / (time.monotonic() - self._started_seconds)

    def _others_seconds(self) -> float:
        return busy_core_seconds() - sum(map(cpu_seconds, self._pids)) - time.process_time()


class Quiet:
    """Waits for quiet moments, but no longer than its patience over the whole benchmark."""

    def __init__(self, patience_seconds: float) -> None:
        self._patience_seconds = patience_seconds
        self.seen_cores: list[float] = []

    def wait(self) -> None:
        """Return when the others are quiet, or no patience is left. To be called while the benchmark itself is idle."""
        while True:
            cores = self._look()
            if cores <= BUSY_CORES or self._patience_seconds <= 0:
                self.seen_cores.append(cores)
                return
            self._patience_seconds -= LOOK_SECONDS

    def _look(self) -> float:
        started_seconds, before = time.monotonic(), busy_core_seconds()
        time.sleep(LOOK_SECONDS)
        return (busy_core_seconds() - before) / (time.monotonic() - started_seconds)
