"""What do pairs of noisy measurements say about a ratio, and is that enough to call a target reached?

Each pair is the same work with a tool on and off, one right after the other, so that slow changes of the machine fall
out of the quotient. The median of the quotients is reported with a percentile bootstrap interval of 90 %.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

NUM_RESAMPLES = 2000
LEAST_VALUES = 6
"""A bootstrap of fewer values tells nothing about their spread."""
CONFIDENCE = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A median with its interval."""

    value: float
    low: float
    high: float
    num_values: int

    @property
    def deviation(self) -> float:
        """How far the interval reaches from 1: what a control cannot tell apart from nothing."""
        return max(abs(self.low - 1.0), abs(self.high - 1.0))


def estimate(values: Sequence[float], seed: int) -> Estimate:
    """The median and its bootstrap interval; the same values and seed give the same interval."""
    if not values:
        raise ValueError("there is nothing to estimate from")
    draw = random.Random(seed)
    size = len(values)
    medians = sorted(median(draw.choices(values, k=size)) for _ in range(NUM_RESAMPLES))
    tail = round(NUM_RESAMPLES * (1.0 - CONFIDENCE) / 2)
    return Estimate(value=median(values), low=medians[tail], high=medians[-tail - 1], num_values=size)


def ratio(on: Sequence[float], off: Sequence[float], seed: int) -> Estimate:
    """The median quotient of pairs."""
    return estimate([a / b for a, b in zip(on, off, strict=True)], seed)


def verdict_below(found: Estimate, target: float, control: Estimate | None = None) -> str:
    """Whether a figure that must not pass the target stays below it, judged by its whole interval."""
    if found.num_values < LEAST_VALUES:
        return f"cannot tell (only {found.num_values} measurements)"
    if found.high <= target:
        return "reached"
    if found.low > target:
        return "missed"
    return "cannot tell" + (f" (control is ±{100 * control.deviation:.1f} %)" if control else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One pair to run: which tool, and whether its block comes first."""

    tool: str
    on_first: bool


def rounds(pairs_per_round: dict[str, int], num_rounds: int, seed: int) -> list[list[Turn]]:
    """A schedule: each tool has its pairs in every round, orders alternate from pair to pair, rounds are shuffled."""
    draw = random.Random(seed)
    taken = dict.fromkeys(pairs_per_round, 0)
    schedule = []
    for _ in range(num_rounds):
        turns = []
        for tool, num_pairs in pairs_per_round.items():
            for _ in range(num_pairs):
                turns.append(Turn(tool=tool, on_first=taken[tool] % 2 == 0))
                taken[tool] += 1
        draw.shuffle(turns)
        schedule.append(turns)
    return schedule
