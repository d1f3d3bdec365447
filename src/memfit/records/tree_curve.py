"""How much memory did the whole process tree take at each moment, when only resident sizes are read all the time?

Resident sizes count a page once per process that maps it, so their sum is an upper bound (2.6 times too high with two
forked data workers). A page walk tells what each process really adds (`share_bytes`) but costs 100 000 times more, so
it is done at chosen moments only. In between, each process keeps the overlap (resident - share) of a walk: the
nearest in time among those that saw the same members alive, because a fork turns a parent's own pages into shared ones.

A process that never was in a walk (it lived shorter than the sampler's patience: typically the moment between fork and
exec, in which it shows its parent's pages) adds nothing to the estimate; it is in the upper bound.
"""

from __future__ import annotations

import numpy as np

from memfit.records.run import TreeReading
from memfit.records.samples import Samples, TreeCurve


def tree_curve(samples: Samples, readings: tuple[TreeReading, ...]) -> TreeCurve:
    """Sum the processes of every tick, with and without the pages they share."""
    times, tick = np.unique(samples.time_seconds, return_inverse=True)
    num_alive = np.bincount(tick, minlength=len(times))
    summed = np.bincount(tick, weights=samples.resident_bytes, minlength=len(times)).astype(np.int64)
    members = _member_keys(samples, tick, len(times))
    own_bytes = np.zeros(len(samples), dtype=np.float64)
    for index in np.unique(samples.process):
        rows = np.flatnonzero(samples.process == index)
        overlap = _overlap(samples.time_seconds[rows], members[tick[rows]], int(index), readings)
        if overlap is not None:
            own_bytes[rows] = np.maximum(samples.resident_bytes[rows] - overlap, 0)
    tree = np.bincount(tick, weights=own_bytes, minlength=len(times)).astype(np.int64)
    alone = num_alive <= 1
    tree[alone] = summed[alone]
    return TreeCurve(time_seconds=times, summed_resident_bytes=summed, tree_bytes=tree)


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
