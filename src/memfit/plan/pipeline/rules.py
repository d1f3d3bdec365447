"""Rules of thumb for cuts: equal numbers of layers, equal parameters, balanced time, PipeDream's straight pipeline.

None of them looks at memory. Equal parameters is DeepSpeed's default; balanced time minimises the largest load of a
rank; the straight pipeline of PipeDream (Narayanan et al., 2019, without replication) also counts transfers. The last
three are optimal for what they count: a dynamic program over cuts, O(L^2 P).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from memfit.plan.pipeline.case import PipelineCase, PipelineProposal, plain_proposal

Cost = Callable[[int, int], float]
"""What a stage from the first layer to the last one costs."""


def equal_layers(case: PipelineCase) -> PipelineProposal | None:
    """The same number of layers on every rank, as far as they divide; a cut that is not possible moves on."""
    num_layers, num_ranks = case.num_layers, case.num_ranks
    wanted = [round((rank + 1) * num_layers / num_ranks) - 1 for rank in range(num_ranks)]
    return _snapped(case, wanted)


def equal_parameters(case: PipelineCase) -> PipelineProposal | None:
    """The largest number of parameters on a rank is as small as can be."""
    return _most_even(case, lambda first, last: case.over("parameter", first, last))


def balanced_time(case: PipelineCase) -> PipelineProposal | None:
    """The largest computing time of a rank is as small as can be."""
    return _most_even(case, lambda first, last: case.over("forward", first, last) + case.over("backward", first, last))


def straight_pipedream(case: PipelineCase) -> PipelineProposal | None:
    """The largest of computing and transfer times is as small as can be: PipeDream's cut without replication."""

    def cost(first: int, last: int) -> float:
        transfer = 2 * case.link_seconds(last) if last + 1 < case.num_layers else 0.0
        return max(case.over("forward", first, last) + case.over("backward", first, last), transfer)

    return _most_even(case, cost)


def _most_even(case: PipelineCase, cost: Cost) -> PipelineProposal | None:
    """The cut into one stage per rank whose largest cost is least; ties go to the least sum of squares."""
    num_layers, num_ranks = case.num_layers, case.num_ranks
    best: list[tuple[float, float]] = [(math.inf, math.inf)] * num_layers + [(0.0, 0.0)]
    taken: list[list[int]] = []
    for left in range(num_ranks):
        new, ends = [(math.inf, math.inf)] * (num_layers + 1), [-1] * num_layers
        for first in range(num_layers - left):
            for last in range(first, num_layers):
                behind = best[last + 1]
                possible = case.can_cut(last) if last + 1 < num_layers else left == 0
                if behind[0] == math.inf or not possible:
                    continue
                own = cost(first, last)
                found = (max(own, behind[0]), own * own + behind[1])
                if found < new[first]:
                    new[first], ends[first] = found, last
        best = new
        taken.append(ends)
    ends, first = [], 0
    for chosen in reversed(taken):
        ends.append(chosen[first])
        first = chosen[first] + 1
    return plain_proposal(case, ends)


def _snapped(case: PipelineCase, wanted: list[int]) -> PipelineProposal | None:
    """The nearest possible cuts, one for each rank."""
    possible = [last for last in range(case.num_layers - 1) if case.can_cut(last)]
    ends: list[int] = []
    for left, end in zip(range(len(wanted) - 1, 0, -1), wanted[:-1], strict=True):
        free = [last for last in possible if not ends or last > ends[-1]]
        free = free[: len(free) - left + 1]  # as many remain as are needed behind it
        ends.append(min(free, key=lambda last: (abs(last - end), last)))
    return plain_proposal(case, [*ends, case.num_layers - 1])
