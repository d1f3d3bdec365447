"""Memory of the whole process tree over time, from resident sizes and rarer proportional ones.

Resident sizes count a page once per process that maps it, so their sum is an upper bound (2.6 times too high with two
forked data workers). A page walk tells what each process really adds (`share_bytes`) but costs 100 000 times more, so
it is done at chosen moments only. In between, each process keeps the overlap (resident - share) of a walk: the
nearest in time among those that saw the same members alive, because a fork turns a parent's own pages into shared ones.

Forked processes also copy shared pages, which makes the tree larger while no resident size changes. The kernel counts
page faults; those that did not make a process larger are pages copied (or given back and taken again). Between two
walks the overlap follows that count, and after the last one it goes on at the rate of the last two.

A process that never was in a walk (it lived shorter than the sampler's patience: typically the moment between fork and
exec, in which it shows its parent's pages) adds nothing to the estimate; it is in the upper bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from memfit.records.run import TreeReading
from memfit.records.run_parts.samples import Samples, TreeCurve

LEAST_COPIED_BYTES = 1 << 20
"""Below this, a count of faults says nothing about the rate of copying."""

MOST_COPIES = 2.0
"""Pages the tree may gain per page that a counted process touches: its own copy, and one that its parent makes."""

FaultReading = tuple[float, dict[int, int]]
"""Seconds since the run began, and bytes of page faults of each process until then."""


class _Anchor(NamedTuple):
    """One walk over the whole tree."""

    time_seconds: float
    overlap_bytes: float
    touched_bytes: float


def tree_curve(samples: Samples, readings: tuple[TreeReading, ...], faults: Sequence[FaultReading] = ()) -> TreeCurve:
    """Sum the processes of every tick, with and without the pages they share."""
    times, tick = np.unique(samples.time_seconds, return_inverse=True)
    num_alive = np.bincount(tick, minlength=len(times))
    summed = _whole(np.bincount(tick, weights=samples.resident_bytes, minlength=len(times)))
    members = _member_keys(samples, tick, len(times))
    own_bytes = np.zeros(len(samples), dtype=np.float64)
    for index in sorted({part.process for reading in readings for part in reading.processes}):
        rows = np.flatnonzero(samples.process == index)
        overlap = _overlap(samples.time_seconds[rows], members[tick[rows]], index, readings)
        if overlap is not None:
            own_bytes[rows] = np.clip(samples.resident_bytes[rows] - overlap, 0, samples.resident_bytes[rows])
    tree = _whole(np.bincount(tick, weights=own_bytes, minlength=len(times)))
    for walks in _walks_by_members(readings):
        same = np.flatnonzero(members == np.uint64(_reading_key(walks[0])))
        overlap = _copying_overlap(times[same], samples, walks, faults)
        if overlap is not None:
            tree[same] = np.clip(summed[same] - overlap, 0, summed[same])
    alone = num_alive <= 1
    tree[alone] = summed[alone]
    return TreeCurve(time_seconds=times, summed_resident_bytes=summed, tree_bytes=tree)


def _whole(sums: np.ndarray) -> np.ndarray:
    """Sums as whole bytes; damage may add up to more than any number of bytes can be."""
    return np.minimum(sums, float(1 << 62)).astype(np.int64)


# ---- copied pages ----------------------------------------------------------------------------------------------------


def _walks_by_members(readings: tuple[TreeReading, ...]) -> list[list[TreeReading]]:
    """The walks over more than one process, those over the same members together."""
    groups: dict[int, list[TreeReading]] = {}
    for reading in readings:
        if len(reading.processes) > 1:
            groups.setdefault(_reading_key(reading), []).append(reading)
    return list(groups.values())


def _copying_overlap(
    times_seconds: np.ndarray, samples: Samples, walks: list[TreeReading], faults: Sequence[FaultReading]
) -> np.ndarray | None:
    """Shared bytes of the tree at each moment, following its page faults; None where none were counted.

    A process that was never sampled has no resident size to follow: its faults are left out.
    """
    indices = {part.process for part in walks[0].processes}
    counted = {index for _, counts in faults for index in counts} & indices & set(np.unique(samples.process).tolist())
    if not counted or not len(times_seconds):
        return None
    touched = np.zeros(len(times_seconds))
    at_walks = np.zeros(len(walks))
    for index in counted:
        at_seconds = [seconds for seconds, counts in faults if index in counts]
        known_bytes = [counts[index] for _, counts in faults if index in counts]
        own = samples.process == index
        resident = np.interp(times_seconds, samples.time_seconds[own], samples.resident_bytes[own])
        touched += np.interp(times_seconds, at_seconds, known_bytes) - resident
        at_walks += np.interp([walk.time_seconds for walk in walks], at_seconds, known_bytes)
    anchors = [_anchor(walk, float(seen), counted) for walk, seen in zip(walks, at_walks, strict=True)]
    return _moving_overlap(times_seconds, touched, anchors)


def _anchor(walk: TreeReading, fault_bytes: float, counted: set[int]) -> _Anchor:
    resident_bytes = sum(part.resident_bytes for part in walk.processes)
    counted_bytes = sum(part.resident_bytes for part in walk.processes if part.process in counted)
    return _Anchor(walk.time_seconds, resident_bytes - walk.tree_bytes, fault_bytes - counted_bytes)


def _moving_overlap(times_seconds: np.ndarray, touched: np.ndarray, anchors: list[_Anchor]) -> np.ndarray:
    """Shared bytes of the tree at each moment."""
    overlap = np.full(len(times_seconds), float(anchors[0].overlap_bytes))
    for before, after in pairwise(anchors):
        rows = (times_seconds >= before.time_seconds) & (times_seconds < after.time_seconds)
        span_bytes = after.touched_bytes - before.touched_bytes
        if span_bytes >= LEAST_COPIED_BYTES:
            fraction = (touched[rows] - before.touched_bytes) / span_bytes
        else:
            fraction = (times_seconds[rows] - before.time_seconds) / max(after.time_seconds - before.time_seconds, 1e-9)
        overlap[rows] = before.overlap_bytes + np.clip(fraction, 0, 1) * (after.overlap_bytes - before.overlap_bytes)
    last, rows = anchors[-1], times_seconds >= anchors[-1].time_seconds
    copied = _copied_share(anchors) * np.maximum(touched[rows] - last.touched_bytes, 0)
    overlap[rows] = np.maximum(last.overlap_bytes - copied, 0)
    return overlap


def _copied_share(anchors: list[_Anchor]) -> float:
    """Of the pages touched without growing, the share that made the tree larger, between the last walks that can
    tell; 0 when none can."""
    for before, after in reversed(list(pairwise(anchors))):
        span_bytes = after.touched_bytes - before.touched_bytes
        if span_bytes >= LEAST_COPIED_BYTES:
            return float(np.clip((before.overlap_bytes - after.overlap_bytes) / span_bytes, 0, MOST_COPIES))
    return 0.0


# ---- shared pages ----------------------------------------------------------------------------------------------------


def _key(process: int) -> int:
    """A number for each process whose sums tell sets of processes apart (a fixed 64-bit mix of its index)."""
    mixed = (process + 1) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
    return (mixed ^ mixed >> 29) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF


def _member_keys(samples: Samples, tick: np.ndarray, num_ticks: int) -> np.ndarray:
    """One number per tick that is equal where the same processes were alive."""
    indices = np.unique(samples.process)
    key_of = np.zeros(int(indices.max()) + 1 if len(indices) else 1, dtype=np.uint64)
    for index in indices:
        key_of[index] = _key(int(index))
    members = np.zeros(num_ticks, dtype=np.uint64)
    np.add.at(members, tick, key_of[samples.process])
    return members


def _overlap(
    times_seconds: np.ndarray, members: np.ndarray, process: int, readings: tuple[TreeReading, ...]
) -> np.ndarray | None:
    """Shared bytes of one process at each of its ticks; None when no reading ever saw it."""
    known = [
        (reading.time_seconds, part.resident_bytes - part.share_bytes, _reading_key(reading))
        for reading in readings
        for part in reading.processes
        if part.process == process
    ]
    if not known:
        return None
    overlap = _nearest(times_seconds, known)
    for key in {key for _, _, key in known}:
        same = members == np.uint64(key)
        overlap[same] = _nearest(times_seconds[same], [row for row in known if row[2] == key])
    return overlap


def _reading_key(reading: TreeReading) -> int:
    return sum(_key(part.process) for part in reading.processes) & 0xFFFFFFFFFFFFFFFF


def _nearest(times_seconds: np.ndarray, known: list[tuple[float, int, int]]) -> np.ndarray:
    """The overlap of the reading nearest in time, for each moment."""
    at_seconds = np.array([row[0] for row in known])
    overlap_bytes = np.array([row[1] for row in known], dtype=np.float64)
    middles = (at_seconds[1:] + at_seconds[:-1]) / 2
    return overlap_bytes[np.searchsorted(middles, times_seconds)]
