"""Process tree of the job: which processes belong to it right now; standard library only.

A process belongs to the job when its parent does. Looking is gated by the kernel's newest process number, so that a
quiet machine costs one 1.5 us read per look. The sampler is a subreaper (see `become_subreaper`), so a process whose
parent died between two looks turns up as the sampler's own child instead of getting lost.
"""

from __future__ import annotations

import errno
import os
import resource

from memfit.measure.counters import proc

PR_SET_CHILD_SUBREAPER = 36
MOST_SEEN = 1 << 16
"""Processes that a record can tell apart: samples have 16 bits for their number."""
SPARE_FILES = 32
"""Open files that the sampler needs for everything but its processes."""


class LiveProcess:
    """One process of the job, with its open counter file."""

    __slots__ = (
        "born_us", "command", "earlier_bytes", "fault_bytes", "index", "inner_name", "overlap_bytes", "parent_pid",
        "pid", "reported", "resident_bytes", "statm",
    )  # fmt: skip

    def __init__(self, index: int, pid: int, parent_pid: int, born_us: int) -> None:
        self.index = index
        self.pid = pid
        self.parent_pid = parent_pid
        self.born_us = born_us
        self.command = proc.read_command(pid)
        self.inner_name = proc.read_inner_name(pid)
        """Its number and namespace, where it has another number than we see; empty otherwise."""
        self.statm = proc.StatmFile(pid)
        self.resident_bytes = 0
        self.overlap_bytes: int | None = None
        """Resident minus proportional at the last page walk; None before the first."""
        self.fault_bytes: int | None = None
        """Pages touched first or copied until the last look; None before the first."""
        self.reported: proc.StatusCounters | None = None
        self.earlier_bytes = 0
        """The high-water mark it brought along, when it was running before memfit looked; 0 for one born since."""


class ProcessTree:
    """The living processes of the job, found and lost as they come and go."""

    def __init__(self, root_pid: int, *, adopts_orphans: bool) -> None:
        self.processes: dict[int, LiveProcess] = {}
        self.num_seen = 0
        self.num_left_out = 0
        """Processes of the job that could not be taken up, for they or the open files were too many."""
        self._most_alive = raise_file_limit() - SPARE_FILES
        self._adopting_pid = os.getpid() if adopts_orphans else None
        self._strangers: set[int] = {os.getpid()}
        self._newest = b""
        self._newest_pid = proc.NewestPid()
        self._root_pid = root_pid

    def enter_root(self, now_us: int) -> LiveProcess | None:
        """Take up the job's first process, even one that has already ended (its parent still holds its number)."""
        return self._enter(self._root_pid, os.getpid(), now_us)

    def look(self, now_us: int) -> list[LiveProcess]:
        """Processes that are new since the last look; cheap while nothing was created anywhere."""
        newest = self._newest_pid.read()
        if newest == self._newest and self.processes:
            return []
        self._newest = newest
        pids = {int(name) for name in os.listdir("/proc") if name.isdigit()}
        self._strangers &= pids
        unknown = sorted(pids - self._strangers - self.processes.keys())
        return self._adopt({pid: parent for pid in unknown if (parent := _parent(pid)) is not None}, now_us)

    def _adopt(self, parent_of: dict[int, int], now_us: int) -> list[LiveProcess]:
        """Add every fresh process whose ancestors lead to the job; the rest are remembered as strangers."""
        found: list[LiveProcess] = []
        num_before = -1
        while num_before != len(found):
            num_before = len(found)
            for pid, parent_pid in list(parent_of.items()):
                if pid == self._root_pid or parent_pid in self.processes or parent_pid == self._adopting_pid:
                    del parent_of[pid]
                    process = self._enter(pid, parent_pid, now_us)
                    found += [process] if process else []
        self._strangers.update(parent_of)
        return found

    def _enter(self, pid: int, parent_pid: int, now_us: int) -> LiveProcess | None:
        if self.num_seen >= MOST_SEEN or len(self.processes) >= self._most_alive:
            self.num_left_out += 1
            self._strangers.add(pid)
            return None
        try:
            process = LiveProcess(self.num_seen, pid, parent_pid, now_us)
        except OSError as error:
            self.num_left_out += error.errno in (errno.EMFILE, errno.ENFILE)
            return None
        self.num_seen += 1
        self.processes[pid] = process
        return process

    def drop(self, process: LiveProcess) -> None:
        """Forget a process that has ended."""
        process.statm.close()
        self.processes.pop(process.pid, None)


def _parent(pid: int) -> int | None:
    try:
        return proc.read_parent(pid)
    except (OSError, IndexError, ValueError):
        return None


def has_ended(pid: int) -> bool:
    """Whether a process is gone for good; one that is just becoming another program has no memory for a moment
    either."""
    return _parent(pid) is None


def raise_file_limit() -> int:
    """Allow this process as many open files as it may have, one for each process of a job; returns how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        return hard
    except (OSError, ValueError):
        return soft


def become_subreaper() -> bool:
    """Have orphans of the job become children of this process; False where the system has no such thing."""
    import ctypes

    try:
        return ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    except (OSError, AttributeError):
        return False
