"""How much memory did the whole process tree take at each moment, when only resident sizes are read all the time?

Resident sizes count a page once per process that maps it, so their sum is an upper bound (2.6 times too high with two forked
data workers). Proportional set size counts it once in all but costs 100 000 times more to read, so it is read at chosen moments
only. In between, each process keeps the overlap (resident - proportional) of the reading nearest in time.

A process that never was in such a reading (it lived shorter than the sampler's patience: typically the moment between fork and
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
    own_bytes = np.zeros(len(samples), dtype=np.float64)
    for index in np.unique(samples.process):
        rows = samples.process == index
        overlap = _overlap(samples.time_seconds[rows], int(index), readings)
        if overlap is not None:
            own_bytes[rows] = np.maximum(samples.resident_bytes[rows] - overlap, 0)
    tree = np.bincount(tick, weights=own_bytes, minlength=len(times)).astype(np.int64)
    alone = num_alive <= 1
    tree[alone] = summed[alone]
    return TreeCurve(time_seconds=times, summed_resident_bytes=summed, tree_bytes=tree)


def _overlap(times_seconds: np.ndarray, process: int, readings: tuple[TreeReading, ...]) -> np.ndarray | None:
    """Shared bytes of one process at each of its ticks, from the reading nearest in time; None when it has none."""
    known = [
        (reading.time_seconds, part.resident_bytes - part.proportional_bytes)
        for reading in readings
        for part in reading.processes
        if part.process == process
    ]
    if not known:
        return None
    at_seconds, overlap_bytes = (np.array(column, dtype=np.float64) for column in zip(*known, strict=True))
    middles = (at_seconds[1:] + at_seconds[:-1]) / 2
    return overlap_bytes[np.searchsorted(middles, times_seconds)]
