"""Statistics of the simulated allocator: the figures of `torch.cuda.memory_stats()`.

While it runs, the allocator only notes how much each event changed; currents, peaks and sums are worked out
afterwards, for all events at once. Three notes are kept for each event: block bytes, requested bytes, and the change
in free parts of split segments (bytes, which are multiples of 512, plus the number of parts).
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

import numpy as np

SMALL_LIMIT_BYTES = 1 << 20
KINDS = ("all", "small_pool", "large_pool")


@dataclass(slots=True)
class Tally:
    """A count that goes up and down, its peak, and the sums of both directions."""

    current: int = 0
    peak: int = 0
    allocated: int = 0
    freed: int = 0

    def add(self, amount: int) -> None:
        """Go up, or down when the amount is below zero."""
        self.current += amount
        if amount < 0:
            self.freed -= amount
        else:
            self.allocated += amount
            self.peak = max(self.peak, self.current)


@dataclass(slots=True)
class AllocatorLog:
    """The notes of a running allocator."""

    block_bytes: array[int] = field(default_factory=lambda: array("q"))
    requested_bytes: array[int] = field(default_factory=lambda: array("q"))
    split_parts: array[int] = field(default_factory=lambda: array("q"))
    still_active: dict[int, int] = field(default_factory=dict)
    """Event -> bytes that were freed at this event but wait for another stream (or, below zero, have waited)."""
    reserved: dict[str, Tally] = field(default_factory=lambda: {kind: Tally() for kind in KINDS})
    segments: dict[str, Tally] = field(default_factory=lambda: {kind: Tally() for kind in KINDS})
    oversize_segments: Tally = field(default_factory=Tally)
    reserved_changes: list[tuple[int, int]] = field(default_factory=list)
    """(number of events before it, reserved bytes after it)."""
    num_alloc_retries: int = 0
    num_ooms: int = 0
    num_device_allocs: int = 0
    num_device_frees: int = 0
    num_sync_all_streams: int = 0

    def reserve(self, num_bytes: int, is_small: bool, segments: int) -> None:
        """Memory came from the driver, or went back to it when the amount is below zero."""
        for kind in ("all", "small_pool" if is_small else "large_pool"):
            self.reserved[kind].add(num_bytes)
            self.segments[kind].add(segments)
        self.reserved_changes.append((len(self.block_bytes), self.reserved["all"].current))
        if num_bytes > 0:
            self.num_device_allocs += 1
        else:
            self.num_device_frees += 1


def memory_stats(log: AllocatorLog, max_split_bytes: int | None = None, expandable: bool = False) -> dict[str, int]:
    """Every figure of `torch.cuda.memory_stats()` by its own name; it counts no split parts of expandable segments."""
    changes = _Changes(log)
    if expandable:
        changes.part_count[:] = changes.part_bytes[:] = 0
    stats: dict[str, int] = {}
    for kind in KINDS:
        mine = changes.of_kind(kind)
        _put(stats, f"allocation.{kind}", np.sign(changes.blocks) * mine)
        _put(stats, f"allocated_bytes.{kind}", changes.blocks * mine)
        _put(stats, f"active.{kind}", changes.active_count * mine)
        _put(stats, f"active_bytes.{kind}", changes.active * mine)
        _put(stats, f"requested_bytes.{kind}", changes.requested * mine)
        _put(stats, f"inactive_split.{kind}", changes.part_count * mine)
        _put(stats, f"inactive_split_bytes.{kind}", changes.part_bytes * mine)
        _put_tally(stats, f"reserved_bytes.{kind}", log.reserved[kind])
        _put_tally(stats, f"segment.{kind}", log.segments[kind])
    oversize = 0 if max_split_bytes is None else np.abs(changes.blocks) >= max_split_bytes
    _put(stats, "oversize_allocations", np.sign(changes.blocks) * oversize)
    _put_tally(stats, "oversize_segments", log.oversize_segments)
    stats["num_alloc_retries"], stats["num_ooms"] = log.num_alloc_retries, log.num_ooms
    stats["num_device_alloc"], stats["num_device_free"] = log.num_device_allocs, log.num_device_frees
    stats["num_oom_rejections"] = 0  # counts only with throw_on_cudamalloc_oom, which is not simulated
    stats["num_sync_all_streams"] = log.num_sync_all_streams
    stats["max_split_size"] = -1 if max_split_bytes is None else max_split_bytes
    return stats


class _Changes:
    """The notes as arrays: what each event changed."""

    def __init__(self, log: AllocatorLog) -> None:
        self.blocks = np.array(log.block_bytes, dtype=np.int64)
        self.requested = np.array(log.requested_bytes, dtype=np.int64)
        parts = np.array(log.split_parts, dtype=np.int64)
        self.part_count = (parts + 256) % 512 - 256
        self.part_bytes = parts - self.part_count
        self.active, self.active_count = self.blocks.copy(), np.sign(self.blocks)
        size = np.abs(self.blocks)
        for event, num_bytes in log.still_active.items():
            self.active[event] += num_bytes
            self.active_count[event] += 1 if num_bytes > 0 else -1
            size[event] = abs(num_bytes)
        self._is_small = size <= SMALL_LIMIT_BYTES

    def of_kind(self, kind: str) -> np.ndarray:
        """One where the event belongs to this pool, zero elsewhere."""
        if kind == "all":
            return np.ones(len(self.blocks), dtype=np.int64)
        return (self._is_small if kind == "small_pool" else ~self._is_small).astype(np.int64)


def allocated_after_each_event(log: AllocatorLog) -> np.ndarray:
    """The curve of allocated bytes."""
    return np.cumsum(np.array(log.block_bytes, dtype=np.int64))


def reserved_after_each_event(log: AllocatorLog) -> np.ndarray:
    """The curve of reserved bytes; what was reserved for an event counts at that event."""
    num_events = len(log.block_bytes)
    curve = np.zeros(num_events + 1, dtype=np.int64)
    last_change = np.zeros(num_events + 1, dtype=np.int64)
    for event, reserved in log.reserved_changes:
        curve[event] = reserved
        last_change[event] = event
    return curve[np.maximum.accumulate(last_change)][:num_events]


def _put(stats: dict[str, int], name: str, changes: np.ndarray) -> None:
    curve = np.cumsum(changes)
    stats[f"{name}.current"] = int(curve[-1]) if len(curve) else 0
    stats[f"{name}.peak"] = max(0, int(curve.max())) if len(curve) else 0
    stats[f"{name}.allocated"] = int(changes[changes > 0].sum())
    stats[f"{name}.freed"] = -int(changes[changes < 0].sum())


def _put_tally(stats: dict[str, int], name: str, tally: Tally) -> None:
    stats[f"{name}.current"], stats[f"{name}.peak"] = tally.current, tally.peak
    stats[f"{name}.allocated"], stats[f"{name}.freed"] = tally.allocated, tally.freed
