"""Proportional set size (PSS): when this expensive reading is taken, and what holds between two readings.

A page walk costs 0.12-0.16 us per resident 4 KiB page and holds the address-space lock of the job. So: once after the
start, once after the warm-up, whenever the tree makes a new maximum or changes its members, now and then to see
workers grow; and never more than a fixed share of the time.

Forked workers that copy shared pages make the tree larger while no resident size changes. The kernel's count of page
faults, cheap to read, shows it: faults that did not make a process larger, times the share of them that two walks have
found to make the tree larger (`records.tree_curve` says the same of a finished run).
"""

from __future__ import annotations

import contextlib
import time

from memfit.measure.counters import proc
from memfit.measure.sampler.process_tree import LiveProcess, ProcessTree
from memfit.runfolder.writer import RunWriter

TREE_COST_SHARE, TREE_ALLOWANCE_US = 1 / 100, 60_000
"""The share of the elapsed time that page walks may take, and what may be spent before any time has passed."""
ALONE_COST_SHARE, ALONE_ALLOWANCE_US = 1 / 1000, 10_000
"""The same while the job is one process: its resident size is its size, and a walk only says what it shares with
strangers."""
START_US = 200_000
WARM_UP_US = 3_000_000
NEW_MAXIMUM_RATIO = 1.01
GROWING_US = 300_000
"""While the tree keeps growing, a new maximum is waited out for this long."""
SETTLED_US = 100_000
"""A change of members is read after this time: a process between fork and exec is not worth a walk."""
PATIENCE_US = 1_000_000
"""In a tree that never settles, a walk is put off for no longer than this."""
PERIODIC_US = 1_500_000
RECENT_US = 1_000_000
"""A walk this young is good enough for the end of the warm-up."""
GUESSED_SHARE = 0.02
"""Copies made since the last walk, as a share of the tree, that call for another one."""
LEAST_COPIED_BYTES, MOST_COPIES = 1 << 20, 2.0
"""From how many touched bytes a share is known, and the most it can be; as in records.tree_curve."""


class TreeWalks:
    """Chooses the moments, walks, and keeps the overlap of every process for the time in between."""

    def __init__(self, writer: RunWriter, *, full: bool) -> None:
        self._writer = writer
        self._full = full
        self._spent_us = 0
        self._largest_bytes = 0
        self._previous_bytes = 0
        self._last_us = 0
        self._done: set[str] = set()
        self._members: set[int] = set()
        self._changed_us = 0
        self._settled_us = 0
        self._overlap_bytes = 0
        self._touched_bytes: int | None = None
        self._copied_share: float | None = None

    def estimate(self, tree: ProcessTree) -> int:
        """Bytes of the tree now: resident sizes minus the overlap last seen, plus copies made since; a process not
        yet read adds nothing."""
        processes = tree.processes.values()
        if len(processes) == 1:
            return next(iter(processes)).resident_bytes
        known = [max(0, p.resident_bytes - p.overlap_bytes) for p in processes if p.overlap_bytes is not None]
        if not known:
            return max((p.resident_bytes for p in processes), default=0)
        return sum(known) + self._copied_since(tree)

    def _copied_since(self, tree: ProcessTree) -> int:
        """Bytes that copies have probably added to the tree since the last walk."""
        return min(int(self._touched_since(tree) * (self._copied_share or 0.0)), self._overlap_bytes)

    def count_faults(self, tree: ProcessTree, now_us: int) -> None:
        """Read and write down how many pages each process without children has touched first or copied so far.

        A process with children trains: it gives pages back and takes them again all the time, which drowns its copies.
        """
        leaves = _leaves(tree)
        for process in leaves:
            with contextlib.suppress(OSError, ValueError, IndexError):
                process.fault_bytes = proc.read_fault_bytes(process.pid)
        rows = [[process.index, process.fault_bytes] for process in leaves if process.fault_bytes is not None]
        self._writer.event("faults", now_us, processes=rows)

    def _touched_since(self, tree: ProcessTree) -> int:
        """Bytes of faults since the last walk that did not make a process larger; 0 when other members were alive."""
        now_bytes = _touched_bytes(tree)
        if now_bytes is None or self._touched_bytes is None or tree.processes.keys() != self._members:
            return 0
        return max(0, now_bytes - self._touched_bytes)

    def _learn(self, tree: ProcessTree, overlap_bytes: int) -> None:
        """From this walk and the one before: how many of the touched pages were copies?"""
        touched_bytes = _touched_bytes(tree)
        if tree.processes.keys() != self._members:
            self._copied_share = None
        elif touched_bytes is not None and self._touched_bytes is not None:
            span_bytes = touched_bytes - self._touched_bytes
            if span_bytes >= LEAST_COPIED_BYTES:
                self._copied_share = min(MOST_COPIES, max(0.0, (self._overlap_bytes - overlap_bytes) / span_bytes))
        self._overlap_bytes, self._touched_bytes = overlap_bytes, touched_bytes

    def consider(self, tree: ProcessTree, now_us: int, tree_bytes: int) -> None:
        """Walk when there is a reason and the budget allows."""
        reason = self._reason(tree, now_us, tree_bytes)
        self._previous_bytes = tree_bytes
        if reason and self._is_settled(tree, now_us) and self._within_budget(len(tree.processes) == 1, now_us):
            self.walk(tree, now_us, reason)
            self._largest_bytes = max(self._largest_bytes, self.estimate(tree))

    def _within_budget(self, alone: bool, now_us: int) -> bool:
        share, allowance_us = (ALONE_COST_SHARE, ALONE_ALLOWANCE_US) if alone else (TREE_COST_SHARE, TREE_ALLOWANCE_US)
        return self._spent_us <= allowance_us + now_us * share

    def _is_settled(self, tree: ProcessTree, now_us: int) -> bool:
        """Whether no process is so young that it may be between fork and exec, when it halves its parent's share;
        patience ends."""
        if all(now_us - process.born_us >= SETTLED_US for process in tree.processes.values()):
            self._settled_us = now_us
            return True
        return now_us - self._settled_us > PATIENCE_US

    def _reason(self, tree: ProcessTree, now_us: int, tree_bytes: int) -> str:
        if "start" not in self._done:
            return "start" if now_us >= START_US else ""
        if self._members_changed(tree, now_us):
            return "members"
        if "warm-up" not in self._done and now_us >= WARM_UP_US:
            self._done.add("warm-up")
            if now_us - self._last_us > RECENT_US:
                return "warm-up"
        copied_bytes = self._copied_since(tree)
        growing = tree_bytes > self._previous_bytes and now_us - self._last_us < GROWING_US
        if tree_bytes - copied_bytes > self._largest_bytes * NEW_MAXIMUM_RATIO and not growing:
            return "maximum"
        guessed_bytes = copied_bytes if self._copied_share is not None else self._touched_since(tree)
        if guessed_bytes > tree_bytes * GUESSED_SHARE:
            return "copying"
        if len(tree.processes) > 1 and now_us - self._last_us >= PERIODIC_US:
            return "periodic"
        return ""

    def _members_changed(self, tree: ProcessTree, now_us: int) -> bool:
        """Whether other processes are alive than at the last walk, and have been for a while."""
        if len(tree.processes) == 1 or tree.processes.keys() == self._members:
            self._changed_us = now_us
            return False
        return now_us - self._changed_us >= SETTLED_US

    def walk(self, tree: ProcessTree, now_us: int, reason: str) -> None:
        """Read what every process shares now, and with that what it adds to the tree."""
        before_ns = time.process_time_ns()
        if len(tree.processes) > 1:
            self.count_faults(tree, now_us)
        seen = [(process, self._walk_one(process, now_us)) for process in list(tree.processes.values())]
        walked = [(process, counters) for process, counters in seen if counters is not None]
        shares = tree_shares([counters for _, counters in walked])
        for (process, counters), share_bytes in zip(walked, shares, strict=True):
            process.overlap_bytes = max(0, counters.resident_bytes - share_bytes)
        rows = [
            [process.index, *counters[:3], share_bytes]
            for (process, counters), share_bytes in zip(walked, shares, strict=True)
        ]
        cost_us = (time.process_time_ns() - before_ns) // 1000
        self._spent_us += cost_us
        self._last_us = now_us
        for process, counters in walked:
            process.resident_bytes = counters.resident_bytes
        self._learn(tree, sum(process.overlap_bytes or 0 for process in tree.processes.values()))
        self._members = set(tree.processes)
        self._done.add(reason)
        self._writer.event("tree", now_us, reason=reason, cost_us=cost_us, processes=rows)

    def _walk_one(self, process: LiveProcess, now_us: int) -> proc.SharedCounters | None:
        try:
            if not self._full:
                return proc.read_rollup(process.pid)
            shared, kinds = proc.read_maps(process.pid)
        except OSError:
            process.overlap_bytes = process.overlap_bytes or 0
            return None
        self._writer.event("maps", now_us, process=process.index, **kinds)
        return shared


def _leaves(tree: ProcessTree) -> list[LiveProcess]:
    """The processes that have no children in the tree."""
    parents = {process.parent_pid for process in tree.processes.values()}
    return [process for process in tree.processes.values() if process.pid not in parents]


def _touched_bytes(tree: ProcessTree) -> int | None:
    """Faults minus resident size of the leaves: what was touched without growing; None when one was not counted."""
    total_bytes = 0
    for process in _leaves(tree):
        if process.fault_bytes is None:
            return None
        total_bytes += process.fault_bytes - process.resident_bytes
    return total_bytes


def tree_shares(walked: list[proc.SharedCounters]) -> list[int]:
    """What each process adds to the tree: its proportional size, and file pages in full once.

    Proportional size spreads a library page over every process on the machine that maps it; with other trainings
    running, a tree would seem smaller than its largest process. Anonymous pages are shared within the tree only (by
    fork), so they are right as they are; of file pages the tree holds at least what its largest holder maps, and that
    one gets the difference.
    """
    shares = [counters.proportional_bytes for counters in walked]
    if walked:
        holder = max(range(len(walked)), key=lambda index: walked[index].file_bytes)
        counted_bytes = sum(counters.file_proportional_bytes for counters in walked)
        shares[holder] += max(0, walked[holder].file_bytes - counted_bytes)
    return shares
