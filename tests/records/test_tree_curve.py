"""Does the size of a tree follow the pages its processes share, and those they copy?"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.records.run import SharedReading, TreeReading
from memfit.records.run_parts.samples import Samples
from memfit.runfolder.tree_curve import tree_curve

MIB = 1 << 20
SHARED, OWN = 200 * MIB, 50 * MIB


def samples(num_ticks: int, num_processes: int = 3) -> Samples:
    """Every process as large as the other, at one tick a second."""
    times = np.repeat(np.arange(num_ticks, dtype=float), num_processes)
    return Samples(
        time_seconds=times,
        late_seconds=np.zeros_like(times),
        process=np.tile(np.arange(num_processes), num_ticks),
        resident_bytes=np.full(len(times), SHARED + OWN),
        shared_bytes=np.zeros(len(times), dtype=np.int64),
        num_failed=0,
    )


def walk(seconds: float, copied_bytes: float) -> TreeReading:
    """What a walk over three processes sees when two of them have copied this much each."""
    resident = SHARED + OWN
    shares = [SHARED + OWN, int(OWN + copied_bytes), int(OWN + copied_bytes)]
    parts = tuple(
        SharedReading(process=i, resident_bytes=resident, proportional_bytes=s, unique_bytes=OWN, share_bytes=s)
        for i, s in enumerate(shares)
    )
    return TreeReading(time_seconds=seconds, reason="test", cost_seconds=0.0, processes=parts)


def faults(copied: np.ndarray, churn_share: float) -> list[tuple[float, dict[int, int]]]:
    """Fault counts of the two workers, second by second: what they touched first, the copies, and other faults."""
    counted = (SHARED + OWN) + copied * (1 + churn_share)
    return [(float(second), {1: int(value), 2: int(value)}) for second, value in enumerate(counted)]


@given(
    rates=st.lists(st.integers(0, 4 * MIB), min_size=10, max_size=10),
    churn_share=st.floats(0, 3),
    last_walk=st.integers(4, 9),
)
def test_the_curve_follows_copied_pages_between_and_after_the_walks(rates, churn_share: float, last_walk: int):
    copied = np.concatenate([[0], np.cumsum(rates)]).astype(float)
    readings = tuple(walk(float(second), copied[second]) for second in (0, 2, last_walk))
    curve = tree_curve(samples(11), readings, faults(copied, churn_share))
    truth = SHARED + OWN + 2 * (OWN + copied)
    told = (copied[last_walk] - copied[2]) * 2 * (1 + churn_share) >= MIB or (
        (copied[2] - copied[0]) * 2 * (1 + churn_share) >= MIB
    )
    until = 11 if told else last_walk + 1
    assert curve.tree_bytes[:until] == pytest.approx(truth[:until], abs=2 * MIB)


def test_without_fault_counts_the_nearest_walk_counts():
    curve = tree_curve(samples(4), (walk(0.0, 0), walk(3.0, 60 * MIB)))
    assert curve.tree_bytes[1] == curve.tree_bytes[0]
    assert curve.tree_bytes[2] == curve.tree_bytes[3] == SHARED + OWN + 2 * (OWN + 60 * MIB)


def test_copies_never_take_the_tree_above_the_sum_of_its_processes():
    copied = np.array([0.0, 100 * MIB, 4000 * MIB, 9000 * MIB])
    readings = (walk(0.0, 0), walk(1.0, 100 * MIB))
    curve = tree_curve(samples(4), readings, faults(copied, 0.0))
    assert (curve.tree_bytes <= curve.summed_resident_bytes).all()
    assert curve.tree_bytes[-1] == curve.summed_resident_bytes[-1]
