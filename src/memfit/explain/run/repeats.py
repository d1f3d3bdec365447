"""Statistics of repeated runs: difference of the means of two groups, and the smallest difference that shows.

Welch's t (1947): the difference of the means with an interval from the variance of each group, with the degrees of
freedom of Welch and Satterthwaite. One false alarm in twenty is allowed for a whole table, so the share of one row is
5 % divided by the number of rows that vary (Bonferroni).

Why this one: the test of relabelled runs cannot go below 1 in 35 with four runs per side, too coarse for a table, and
Student's pooled variance raises false alarms when one side happens to stay in one of two modes. Runs taken in the
order A B B A make drifts of the machine cancel in the means and widen the interval (simulated in
tests/explain/test_repeats.py: normal, bimodal, drifting, wandering, stepping and heavy-tailed noise).

Known limits: 5 % holds for normal, drifting and heavy-tailed noise. Values that fall in one of two equally likely modes
are coarser than any t: a single row of eight runs each gave 6 % in simulation, nine rows whose modes are independent
of each other up to 8 % with four runs each; rows that share the mode of their run, as those of one process do, 1 %.
Below four runs per side nothing is inferred: two modes of equal chance would separate both sides
entirely in 3 % of all comparisons of three runs each and in 12 % of those of two.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, inf, sqrt

import numpy as np

from memfit.explain.student_t import t_quantile
from memfit.records.difference import Label

MIN_REPEATS = 4
FALSE_ALARMS = 0.05
"""The chance that a comparison of equal commands calls any of its rows different."""
POWER = 0.9
"""The chance of seeing a true difference as large as what is said to be resolved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanDifference:
    """The second group's mean minus the first's, in the unit of the values."""

    difference: float
    half_width: float
    """Of the interval around it; differences up to this are no evidence."""
    resolves: float
    """A true difference of this size is seen in nine of ten such comparisons."""


def compare_means(first: np.ndarray, second: np.ndarray, confidence: float) -> MeanDifference:
    """Welch's interval; groups that do not vary at all have one of width zero."""
    variances = [float(values.var(ddof=1)) / len(values) for values in (first, second)]
    difference = float(second.mean() - first.mean())
    total = sum(variances)
    if total == 0:
        return MeanDifference(difference=difference, half_width=0.0, resolves=0.0)
    degrees = [variance**2 / (len(values) - 1) for variance, values in zip(variances, (first, second), strict=True)]
    df = total**2 / sum(degrees) if sum(degrees) else inf
    df = floor(10 * min(df, len(first) + len(second) - 2)) / 10  # downwards is wider; few values can be kept
    critical, beyond = t_quantile(df, confidence), t_quantile(df, 2 * POWER - 1)
    error = sqrt(total)
    return MeanDifference(difference=difference, half_width=critical * error, resolves=(critical + beyond) * error)


def confidence_for(num_rows: int) -> float:
    """The confidence of one row when so many share the false alarms of a table."""
    return 1 - FALSE_ALARMS / max(num_rows, 1)


def interleaved(num_repeats: int) -> tuple[Label, ...]:
    """The order of runs: each pair turned around against the one before, so that drifts cancel."""
    there: tuple[Label, ...] = ("A", "B")
    back: tuple[Label, ...] = ("B", "A")
    return tuple(label for number in range(num_repeats) for label in (back if number % 2 else there))
