"""From a published statement and the evidence found here to a verdict: holds, does not hold, cannot tell.

Every verdict follows from a rule that stands beside the statement; where the rule does not decide, the verdict is
'cannot tell' with what would decide it.

The mean of replicates with its spread; one replicate has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import mul
from random import Random
from statistics import fmean

from memfit.records.figure import Figure, measured, unknown
from memfit.records.reproduction import Statement

NUM_SHUFFLES = 5000
"""Of the permutation test."""
CHANCE = 0.05


def judged(
    says: str, source: str, *, published: str = "", evidence: Sequence[str], holds: bool | None, reason: str = ""
) -> Statement:
    """A statement with its verdict; `holds` None is 'cannot tell', and then there is a reason."""
    verdict = "cannot tell" if holds is None else "holds" if holds else "does not hold"
    return Statement(
        says=says,
        source=source,
        published=published,
        evidence=tuple(evidence),
        verdict=verdict,
        reason=reason if holds is None else "",
    )


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """Spearman's coefficient, and how often shuffled values correlate as strongly (two-sided permutation test)."""
    left, right = _centred(ranks_of(first)), _centred(ranks_of(second))
    size = (sum(a * a for a in left) * sum(b * b for b in right)) ** 0.5
    if not size:
        return 0.0, 1.0
    found = sum(map(mul, left, right)) / size
    shuffled, random, as_strong = list(right), Random(0), 0
    for _ in range(NUM_SHUFFLES):
        random.shuffle(shuffled)
        as_strong += abs(sum(map(mul, left, shuffled))) / size >= abs(found) - 1e-12
    return found, (as_strong + 1) / (NUM_SHUFFLES + 1)


def ranks_of(values: Sequence[float]) -> list[float]:
    """1, 2, 3, ... in ascending order; equal values share the mean of their ranks."""
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) + 1) / 2 for value in values]


def _centred(values: Sequence[float]) -> list[float]:
    mean = fmean(values)
    return [value - mean for value in values]


def mean_of(values: Iterable[float | None], what: str, *, reason: str = "") -> Figure:
    """The mean of replicates, with the smallest and the largest; of one replicate the spread is unknown."""
    known = [value for value in values if value is not None]
    if not known:
        return unknown("bytes", reason or "no replicate was measured")
    if len(known) == 1:
        return measured(known[0], "bytes", f"{what} of one replicate; its spread is unknown")
    method = f"mean {what} of {len(known)} replicates"
    return measured(sum(known) / len(known), "bytes", method, low=min(known), high=max(known))
