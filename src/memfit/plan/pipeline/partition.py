"""Exact memory-aware contiguous planner: a dynamic program on the least delay of a suffix, bisection on the period.

For a period T, least[r][k] is the least delay of the layers from k on, held by the ranks from r on:

    least[r][k] = min over l of  (least[r + 1][l + 1] + transfer behind l) + stage k..l

where each + is the rule of `steady.after`, loads stay within T and the copies ceil(delay / T) within the memory of rank
r. Keeping only the least delay is safe, for a smaller delay of the suffix never hurts the layers in front. A rank may
stay idle. Feasible periods are closed upwards, so that bisection is exact; each feasible answer is pulled down to the
least period with the same cut and copies. O(L^2 P) for each period, with every way to run a stage as one more choice.

Optimal among all plans with one stage per rank, ranks in the given order, and the given choices inside a stage, under
every schedule of period T; not for ranks whose order is free, nor for replicated stages.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from memfit.plan.pipeline.case import PipelineCase, PipelineProposal, ProposedStage
from memfit.plan.pipeline.schedule.steady import (
    CLOSE,
    ROUNDING,
    elements_of,
    least_loads,
    pulled_down,
)

OPTIMAL = "contiguous plans, ranks in order, under any periodic schedule"
INFINITE = math.inf


@dataclass(frozen=True, slots=True)
class _Way:
    """Layers that end with `last`, run in one way on one rank."""

    last: int
    choice: int
    load_seconds: float
    most: int
    """Copies that the memory of the rank holds."""


class ContiguousProgram:
    """The dynamic program of one case, asked for one period after another."""

    def __init__(self, case: PipelineCase, counts: tuple[int, ...] | None = None) -> None:
        """`counts` fixes the copies of each rank, for schedules that do not ask; None takes the fewest."""
        self.case = case
        self.counts = counts
        known: dict[tuple[int, int], list[list[_Way]]] = {}
        self.ways: list[list[list[_Way]]] = []
        """For each rank and first layer every stage and choice that fits with the least number of copies."""
        for limit, least in zip(case.limits_bytes, counts or (1,) * case.num_ranks, strict=True):
            if (limit, least) not in known:
                known[limit, least] = [self._ways(first, limit, least) for first in range(case.num_layers)]
            self.ways.append(known[limit, least])
        self.link_loads = [2 * case.link_seconds(last) for last in range(case.num_layers - 1)]

    def _ways(self, first: int, limit_bytes: int, least: int) -> list[_Way]:
        case, found = self.case, []
        for last in range(first, case.num_layers):
            if not case.can_cut(last) and last + 1 < case.num_layers:
                continue
            for index, choice in enumerate(case.choices(first, last)):
                most = case.most_copies(first, last, choice, limit_bytes)
                if most >= least:
                    load = choice.forward_seconds + choice.backward_seconds
                    found.append(_Way(last, index, load, most if self.counts is None else 10**9))
        return found

    def solve(self, period: float, *, all_ranks: bool = False) -> list[ProposedStage] | None:
        """Stages of a plan with this period, on request with work for every rank; None where there is none."""
        num_layers, num_ranks = self.case.num_layers, self.case.num_ranks
        least = [INFINITE] * num_layers + [0.0]
        taken: list[list[_Way | None]] = []
        for rank in reversed(range(num_ranks)):
            behind = self._behind_links(least, period)
            new = [INFINITE] * (num_layers + 1) if all_ranks else list(least)
            chosen: list[_Way | None] = [None] * num_layers
            self._extend(self.ways[rank], behind, period, new, chosen)
            least = new
            taken.append(chosen)
        return None if least[0] == INFINITE else self._stages(taken[::-1])

    def with_all_ranks(self, period: float, stages: list[ProposedStage]) -> list[ProposedStage]:
        """Stages of the same period with work for every rank, where there are such; else the first ranks are used."""
        if len(stages) == self.case.num_ranks:
            return stages
        found = self.solve(period * (1 + ROUNDING), all_ranks=True)
        if found is not None:
            return found
        if len(set(self.case.limits_bytes)) == 1 and self.counts is None:
            return [replace(stage, rank=rank) for rank, stage in enumerate(stages)]
        return stages

    def _behind_links(self, least: list[float], period: float) -> list[float]:
        """For each last layer the delay that a stage which ends there adds to."""
        duplex, bound = self.case.link.full_duplex, period * (1 + ROUNDING)
        found = []
        for last, load in enumerate(self.link_loads):
            delay = least[last + 1]
            if delay == INFINITE or (load / 2 if duplex else load) > bound:
                found.append(INFINITE)
            elif duplex:
                found.append(delay + load)
            else:
                end = math.ceil(delay / period - ROUNDING) * period
                found.append(delay + load if delay + load <= end * (1 + ROUNDING) else end + load)
        return [*found, least[-1]]  # behind the last layer: no rank, or with work for all of them only the last one

    def _extend(
        self, ways: list[list[_Way]], behind: list[float], period: float, new: list[float], chosen: list[_Way | None]
    ) -> None:
        """Put one more rank in front: the least delay for every first layer."""
        bound = period * (1 + ROUNDING)
        for first, own in enumerate(ways):
            best = new[first]
            for way in own:
                load, delay = way.load_seconds, behind[way.last]
                if load > bound or delay == INFINITE:
                    continue
                end = math.ceil(delay / period - ROUNDING) * period
                longer = delay + load
                if longer > end * (1 + ROUNDING):
                    longer = end + load
                if longer < best and math.ceil(longer / period - ROUNDING) <= way.most:
                    best, chosen[first] = longer, way
            new[first] = best

    def _stages(self, taken: list[list[_Way | None]]) -> list[ProposedStage]:
        stages, first = [], 0
        for rank, chosen in enumerate(taken):
            way = chosen[first] if first < self.case.num_layers else None
            if way is None:  # this rank stays idle: those behind it do better alone
                continue
            choice = self.case.choices(first, way.last)[way.choice]
            stages.append(ProposedStage(first, way.last, rank, choice))
            first = way.last + 1
        return stages

    def shortest(self, *, all_ranks: bool = False) -> tuple[float, list[ProposedStage]] | None:
        """The shortest period, and stages that have it; on request among those with work for every rank."""
        low, high = self._bounds()
        best = self.solve(high, all_ranks=all_ranks)
        if best is None:
            return None
        high = self._pulled(best, high)
        while high - low > CLOSE * high:
            lower = self.solve(high * (1 - 4 * ROUNDING), all_ranks=all_ranks)
            if lower is None:
                break
            middle = (low + high) / 2
            found = self.solve(middle, all_ranks=all_ranks)
            if found is None:
                low = middle
            else:
                best, high = found, self._pulled(found, middle)
        return high, best

    def _bounds(self) -> tuple[float, float]:
        """No period is shorter than the first; with the second every stage has one copy."""
        layers = self.case.chain.layers
        loads = [layer.forward_seconds + layer.backward_seconds for layer in layers]
        slowest = max((way.load_seconds for own in self.ways[0] for way in own), default=0.0)
        high = len(self.case.limits_bytes) * max(slowest, sum(loads)) + sum(self.link_loads)
        return sum(loads) / self.case.num_ranks, high

    def _pulled(self, stages: list[ProposedStage], period: float) -> float:
        elements = elements_of(self.case, stages)
        least = least_loads(elements) if self.counts is not None else pulled_down(elements, period)
        return min(period, least)


def exact_contiguous(case: PipelineCase) -> PipelineProposal | None:
    """The contiguous plan with the shortest period."""
    program = ContiguousProgram(case)
    found = program.shortest()
    return None if found is None else PipelineProposal(tuple(program.with_all_ranks(*found)))


def exact_with_counts(
    case: PipelineCase, counts: tuple[int, ...], *, all_ranks: bool = False
) -> PipelineProposal | None:
    """The contiguous plan with the least largest load when a schedule fixes the copies of every rank.

    `all_ranks`: each of them holds a stage, however slow the links are.
    """
    program = ContiguousProgram(case, counts)
    found = program.shortest(all_ranks=all_ranks)
    return None if found is None else PipelineProposal(tuple(program.with_all_ranks(*found)))


def one_behind_another(case: PipelineCase) -> PipelineProposal | None:
    """The rule that most runtimes plan with: rank r keeps as many micro-batches as there are ranks from it on."""
    counts = tuple(case.num_ranks - rank for rank in range(case.num_ranks))
    return exact_with_counts(case, counts)


def fewest_bytes(case: PipelineCase, counts: tuple[int, ...] | None = None) -> int:
    """The least memory, the same on every rank, with which some contiguous plan fits; to a byte.

    Without `counts` it is had with one micro-batch in flight everywhere, so that only the cut matters.
    """
    least = [math.inf] * case.num_layers + [0.0]
    for copies in reversed(counts or (1,) * case.num_ranks):
        least = _one_rank_more(least, _least_of_stages(case, copies), may_idle=counts is None)
    return int(least[0])


def enough_ranks(case: PipelineCase, limit_bytes: int, most: int) -> int | None:
    """The least number of ranks of one memory with which some contiguous plan fits; None up to `most`."""
    least, stages = [math.inf] * case.num_layers + [0.0], _least_of_stages(case, 1)
    for num_ranks in range(1, most + 1):
        least = _one_rank_more(least, stages, may_idle=True)
        if least[0] <= limit_bytes:
            return num_ranks
    return None


Stages = list[list[tuple[int, int]]]
"""For each first layer: the layer behind the last, and the least bytes, of every stage that begins there."""


def _least_of_stages(case: PipelineCase, copies: int) -> Stages:
    return [
        [
            (last + 1, min(case.stage_bytes(first, last, choice, copies) for choice in case.choices(first, last)))
            for last in range(first, case.num_layers)
            if case.can_cut(last) or last + 1 == case.num_layers
        ]
        for first in range(case.num_layers)
    ]


def _one_rank_more(least: list[float], stages: Stages, *, may_idle: bool) -> list[float]:
    """The least largest memory of the layers from each one on, with one more rank in front."""
    new = list(least) if may_idle else [math.inf] * len(least)
    for first, own in enumerate(stages):
        new[first] = min(new[first], min((max(size, least[end]) for end, size in own), default=math.inf))
    return new
