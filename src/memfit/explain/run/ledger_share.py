"""Share of each process in the peak of its process tree.

A page that several processes share is counted in the one that is explained from the inside (forked workers share their
parent's pages); the others get what is left of the headline, in proportion to what they had for themselves.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from memfit.explain.run.ledger_parts import Pools
from memfit.records.run import RunRecord, SharedReading, TreeReading


class Shares(NamedTuple):
    """The headline split among processes; the parts add up to it."""

    process: int
    """The one that is explained from the inside."""
    own_bytes: int
    others: dict[int, int]
    """Process: its bytes, of those alive at the peak."""
    is_tree: bool
    """Whether the split is that of a moment: then the process need not be at its own peak."""


def split_headline(run: RunRecord, traced: set[int]) -> Shares | None:
    """The parts of the headline; None when it is not known. Prefers a process that traced a step."""
    if run.peak.value is None or not run.processes:
        return None
    headline_bytes = round(run.peak.value)
    largest = max(run.processes, key=lambda process: process.peak.value or 0)
    alone = len(run.processes) == 1 or not len(run.samples)
    if alone or round(largest.peak.value or 0) == headline_bytes:
        return Shares(largest.index, headline_bytes, {}, False)
    resident, unique = _alive_at_the_peak(run, headline_bytes)
    if not resident:
        return Shares(largest.index, headline_bytes, {}, False)
    process = max(resident, key=lambda index: (index in traced, resident[index], -index))
    weights = {index: unique.get(index, size) for index, size in resident.items() if index != process}
    own_bytes = min(resident[process], headline_bytes) if sum(weights.values()) else headline_bytes
    return Shares(process, own_bytes, _divided(headline_bytes - own_bytes, weights), True)


def _alive_at_the_peak(run: RunRecord, headline_bytes: int) -> tuple[dict[int, int], dict[int, int]]:
    """Resident size of every process at the peak, and what each had for itself at the nearest page walk."""
    walk = max(run.tree_readings, key=lambda reading: reading.tree_bytes, default=None)
    if walk is not None and walk.tree_bytes >= headline_bytes:
        return {p.process: p.resident_bytes for p in walk.processes}, {
            p.process: p.unique_bytes for p in walk.processes
        }
    at_seconds = float(run.tree.time_seconds[int(run.tree.tree_bytes.argmax())])
    rows = run.samples.time_seconds == at_seconds
    found = zip(run.samples.process[rows].tolist(), run.samples.resident_bytes[rows].tolist(), strict=True)
    resident = {int(index): int(size) for index, size in found}
    return resident, {i: part.unique_bytes for i in resident if (part := _nearest(run.tree_readings, i, at_seconds))}


def _nearest(readings: tuple[TreeReading, ...], process: int, at_seconds: float) -> SharedReading | None:
    seen = [(abs(r.time_seconds - at_seconds), p) for r in readings for p in r.processes if p.process == process]
    return min(seen, key=lambda pair: pair[0], default=(0.0, None))[1]


def _divided(num_bytes: int, weights: dict[int, int]) -> dict[int, int]:
    """Whole bytes in proportion to the weights; they add up."""
    whole, parts, given, seen = sum(weights.values()), {}, 0, 0
    for index in sorted(weights):
        seen += weights[index]
        until = num_bytes * seen // whole if whole else 0
        parts[index], given = until - given, until
    return parts


def pools_near_the_peak(run: RunRecord, process: int) -> Pools | None:
    """The kernel's three counters of one process at its largest sample; None when it was never read."""
    record = next(p for p in run.processes if p.index == process)
    rows = np.flatnonzero(run.samples.process == process)
    if not len(rows):
        known = (record.anonymous_bytes, record.file_bytes, record.shmem_bytes)
        return None if None in known else Pools(*(size or 0 for size in known))
    row = rows[run.samples.resident_bytes[rows].argmax()]
    resident_bytes = int(run.samples.resident_bytes[row])
    shared_bytes = min(int(run.samples.shared_bytes[row]), resident_bytes)
    shmem_bytes = min(record.shmem_bytes or 0, shared_bytes)
    return Pools(resident_bytes - shared_bytes, shared_bytes - shmem_bytes, shmem_bytes)
