"""Periodic schedule of one stage on each rank (1F1B*): fewest copies at a period, shortest period, the pattern.

Elements are the stages and the transfers between them, in the order of the chain; each has a load, the seconds it works
on one micro-batch. The *delay* of an element is the time from the start of its forward to the end of its backward.
Going from the last element to the first, at period T, the least delay is

    D + U          where the element still fits into the same multiple of T
    g T + U        otherwise, with g = ceil(D / T)

because forward and backward of one element share a resource, so that its delay lies in [j T + U, (j + 1) T] for some
j. The rule gives the least delay of all elements at once, hence the fewest copies, ceil(D / T), of all stages at once
(Beaumont, Eyraud-Dubois and Shilova, 2021, with transfers as elements). A full-duplex transfer shares nothing with its
way back and only adds its seconds. Linear in the number of stages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from memfit.plan.pipeline.case import PipelineCase, ProposedStage
from memfit.records.pipeline import PeriodicOperation

ROUNDING = 1e-9
"""Relative; what is closer is equal."""
CLOSE = 1e-10
"""Width, relative to the period, at which a bisection ends."""


@dataclass(frozen=True, slots=True)
class Element:
    """A stage or a transfer."""

    forward_seconds: float
    backward_seconds: float
    shares_resource: bool = True
    """False for full-duplex transfers."""
    num_replicas: int = 1
    """Resources that take the micro-batches in turn, so that each works once in as many periods."""

    @property
    def load_seconds(self) -> float:
        return self.forward_seconds + self.backward_seconds

    @property
    def least_period(self) -> float:
        """A period cannot be shorter than what one resource works in it."""
        alone = self.load_seconds if self.shares_resource else max(self.forward_seconds, self.backward_seconds)
        return alone / self.num_replicas


def elements_of(case: PipelineCase, stages: Sequence[ProposedStage]) -> list[Element]:
    """Stages with the transfers between them: stages have even positions."""
    found: list[Element] = []
    for index, stage in enumerate(stages):
        if index:
            one_way = case.link_seconds(stage.first - 1)
            pairs = math.lcm(stages[index - 1].num_replicas, stage.num_replicas)
            found.append(Element(one_way, one_way, not case.link.full_duplex, pairs))
        found.append(Element(stage.choice.forward_seconds, stage.choice.backward_seconds, True, stage.num_replicas))
    return found


def after(delay: float, load: float, period: float) -> float:
    """The least delay of an element in front of one with this delay."""
    end = math.ceil(delay / period - ROUNDING) * period
    longer = delay + load
    return longer if longer <= end * (1 + ROUNDING) else end + load


def copies(delay: float, period: float) -> int:
    """Micro-batches in flight at this delay."""
    return max(1, math.ceil(delay / period - ROUNDING))


def delays_at(elements: Sequence[Element], period: float) -> list[float]:
    """The least delay of every element at a period."""
    found: list[float] = []
    delay = 0.0
    for element in reversed(elements):
        load = element.load_seconds
        delay = after(delay, load, period * element.num_replicas) if element.shares_resource else delay + load
        found.append(delay)
    return found[::-1]


def copies_at(elements: Sequence[Element], period: float) -> list[int]:
    """Fewest copies of every stage at a period, on each of its replicas."""
    found = zip(elements[::2], delays_at(elements, period)[::2], strict=True)
    return [copies(delay, period * element.num_replicas) for element, delay in found]


def least_loads(elements: Sequence[Element]) -> float:
    """The shortest period that loads allow, whatever the memory."""
    return max(element.least_period for element in elements)


def shortest_period(elements: Sequence[Element], most: Sequence[int]) -> float | None:
    """The shortest period at which no stage has more copies than it may; None when none can have a single one.

    Fewer copies are needed the longer the period, so that a bisection finds it; each feasible period is pulled down to
    the least one with the same copies, which makes the answer exact.
    """
    if min(most) < 1:
        return None
    low, high = least_loads(elements), sum(element.load_seconds for element in elements)
    if high <= 0:
        return None
    if _fits(elements, low, most):
        return low
    high = pulled_down(elements, high)
    while high - low > CLOSE * high:
        if not _fits(elements, high * (1 - 4 * ROUNDING), most):
            break
        middle = (low + high) / 2
        if _fits(elements, middle, most):
            high = min(middle, pulled_down(elements, middle))
        else:
            low = middle
    return high


def _fits(elements: Sequence[Element], period: float, most: Sequence[int]) -> bool:
    return all(found <= allowed for found, allowed in zip(copies_at(elements, period), most, strict=True))


def pulled_down(elements: Sequence[Element], period: float) -> float:
    """The least period with the same multiples of the period in every delay as at this one.

    With j the multiples of a resource, its delay is the largest of j' T + (sum of loads up to there) over the elements
    from there to the end, and at most (j + 1) T: each pair bounds T from below.
    """
    found = zip(elements, delays_at(elements, period), strict=True)
    multiples = [copies(delay, period * element.num_replicas) - 1 for element, delay in found]
    least = least_loads(elements)
    for start, element in enumerate(elements):
        if not element.shares_resource:
            continue
        total = 0.0
        for end in range(start, len(elements)):
            total += elements[end].load_seconds
            if elements[end].shares_resource:
                own, other = element.num_replicas, elements[end].num_replicas
                least = max(least, total / ((multiples[start] + 1) * own - multiples[end] * other))
    return least


def pattern_at(elements: Sequence[Element], period: float) -> tuple[PeriodicOperation, ...]:
    """The schedule itself: forwards back to back, every backward so late that its delay is the least one."""
    operations: list[PeriodicOperation] = []
    start = 0.0
    for index, (element, delay) in enumerate(zip(elements, delays_at(elements, period), strict=True)):
        back = start + delay - element.backward_seconds
        there, again = ("send", "send back") if index % 2 else ("forward", "backward")
        operations.append(_operation(there, index // 2, start, element.forward_seconds, period))
        operations.append(_operation(again, index // 2, back, element.backward_seconds, period))
        start += element.forward_seconds
    return tuple(operations)


def _operation(kind, stage: int, moment: float, seconds: float, period: float) -> PeriodicOperation:
    shift = math.floor(moment / period + ROUNDING)
    start = max(0.0, moment - shift * period)
    return PeriodicOperation(kind=kind, stage=stage, start_seconds=start, seconds=seconds, shift=shift)
