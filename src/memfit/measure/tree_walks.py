"""When is the expensive reading (proportional set size) worth its price, and what does it say between two readings?

A page walk costs 0.12-0.16 us per resident 4 KiB page and holds the address-space lock of the job. So: once after the
start, once after the warm-up, whenever the tree makes a new maximum or changes its members, now and then to see
workers grow; and never more than a fixed share of the time.
"""

from __future__ import annotations

import time

from memfit.measure import read_proc
from memfit.measure.process_tree import LiveProcess, ProcessTree
from memfit.records.writer import RunWriter

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

    def estimate(self, tree: ProcessTree) -> int:
        """Bytes of the tree now: resident sizes minus the overlap last seen; a process not yet read adds nothing."""
        processes = tree.processes.values()
        if len(processes) == 1:
            return next(iter(processes)).resident_bytes
        known = [max(0, p.resident_bytes - p.overlap_bytes) for p in processes if p.overlap_bytes is not None]
        return sum(known) if known else max((p.resident_bytes for p in processes), default=0)

    def consider(self, tree: ProcessTree, now_us: int, tree_bytes: int) -> None:
        """Walk when there is a reason and the budget allows."""
        reason = self._reason(tree, now_us, tree_bytes)
        self._previous_bytes = tree_bytes
        if (
            reason
            and self._is_settled(tree, now_us)
            and self._within_budget(len(tree.processes) == 1 and not self._full, now_us)
        ):
            self.walk(tree, now_us, reason)
            self._largest_bytes = max(self._largest_bytes, tree_bytes)

    def _within_budget(self, alone: bool, now_us: int) -> bool:
        share, allowance_us = (ALONE_COST_SHARE, ALONE_ALLOWANCE_US) if alone else (TREE_COST_SHARE, TREE_ALLOWANCE_US)
        return self._spent_us <= allowance_us + now_us * share

    def _is_settled(self, tree: ProcessTree, now_us: int) -> bool:
        """Whether nobody is so young that it may be between fork and exec, when it halves its parent's share;
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
            return "warm-up"
        growing = tree_bytes > self._previous_bytes and now_us - self._last_us < GROWING_US
        if tree_bytes > self._largest_bytes * NEW_MAXIMUM_RATIO and not growing:
            return "maximum"
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
        before_ns = time.monotonic_ns()
        seen = [(process, self._walk_one(process, now_us)) for process in list(tree.processes.values())]
        walked = [(process, counters) for process, counters in seen if counters is not None]
        shares = tree_shares([counters for _, counters in walked])
        for (process, counters), share_bytes in zip(walked, shares, strict=True):
            process.overlap_bytes = max(0, counters.resident_bytes - share_bytes)
        rows = [
            [process.index, *counters[:3], share_bytes]
            for (process, counters), share_bytes in zip(walked, shares, strict=True)
        ]
        cost_us = (time.monotonic_ns() - before_ns) // 1000
        self._spent_us += cost_us
        self._last_us = now_us
        self._members = set(tree.processes)
        self._done.add(reason)
        self._writer.event("tree", now_us, reason=reason, cost_us=cost_us, processes=rows)

    def _walk_one(self, process: LiveProcess, now_us: int) -> read_proc.SharedCounters | None:
        try:
            if not self._full:
                return read_proc.read_rollup(process.pid)
            shared, kinds = read_proc.read_maps(process.pid)
        except OSError:
            process.overlap_bytes = process.overlap_bytes or 0
            return None
        self._writer.event("maps", now_us, process=process.index, **kinds)
        return shared


def tree_shares(walked: list[read_proc.SharedCounters]) -> list[int]:
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
