"""What is said about a set of predictions beside their real values: median, 95th percentile, maximum, under-estimates,
and how well "it does not fit" was predicted?"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison."""

    name: str
    predicted_bytes: float
    real_bytes: float

    @property
    def error(self) -> float:
        """Relative error; negative is an under-estimate."""
        return self.predicted_bytes / self.real_bytes - 1


@dataclass(frozen=True, slots=True)
class Spread:
    """The errors of a set of rows in four figures."""

    num_rows: int
    median: float
    p95: float
    worst: float
    under: float

    def __str__(self) -> str:
        """As a line of a report."""
        return (
            f"{self.num_rows} rows, median {self.median:.3%}, p95 {self.p95:.3%}, max {self.worst:.3%}, "
            f"under-estimated {self.under:.0%}"
        )


def spread_of(rows: Sequence[Row]) -> Spread:
    """Sum up a set of rows; the 95th percentile is the smallest error that 95 % of the rows do not exceed."""
    errors = sorted(abs(row.error) for row in rows)
    place = max(0, -(-len(errors) * 95 // 100) - 1)
    under = sum(row.error < -1e-9 for row in rows) / len(rows)
    return Spread(len(rows), statistics.median(errors), errors[place], errors[-1], under)


@dataclass(frozen=True, slots=True)
class Verdicts:
    """How often "out of memory" was said, was true, and was both."""

    num_rows: int
    num_real: int
    num_said: int
    num_right: int

    @property
    def precision(self) -> float | None:
        """Of what was said to fail, the share that fails; None when nothing was said to fail."""
        return self.num_right / self.num_said if self.num_said else None

    @property
    def recall(self) -> float | None:
        """Of what fails, the share that was predicted; None when nothing fails."""
        return self.num_right / self.num_real if self.num_real else None


def verdicts_at(limit_bytes: float, pairs: Sequence[tuple[float, float]]) -> Verdicts:
    """Judge pairs of predicted and real peaks at one size of memory."""
    said = [predicted > limit_bytes for predicted, _ in pairs]
    real = [peak > limit_bytes for _, peak in pairs]
    return Verdicts(len(pairs), sum(real), sum(said), sum(a and b for a, b in zip(said, real, strict=True)))
