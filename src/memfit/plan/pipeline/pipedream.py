"""PipeDream's partitioner with replicated stages (Narayanan et al., 2019): least slowest stage over cuts and replicas.

best[l][m] is the least time of the slowest part when the layers up to l run on m ranks. Its last stage takes r of them:
its seconds are (compute + gradient exchange among r replicas) / r, the exchange being 4 (r - 1) W / (r bandwidth) as in
the published rule, and the transfer in front of it takes 2 a / (r bandwidth). One level of links; no memory.
Optimal for what it counts, O(L^2 P^2).
"""

from __future__ import annotations

import math

import msgspec

from memfit.plan.pipeline.case import PipelineCase, PipelineProposal, ProposedStage


def replicated(case: PipelineCase) -> PipelineProposal | None:
    """Stages with their replicas; a stage on r ranks takes every r-th micro-batch on each of them."""
    table = _table(case)
    stages: list[ProposedStage] = []
    last, left = case.num_layers - 1, case.num_ranks
    while last >= 0:
        _, first, replicas = table[last][left]
        stages.append(_stage(case, first, last, left - replicas, replicas))
        last, left = first - 1, left - replicas
    return PipelineProposal(tuple(stages[::-1]))


def predicted_period(case: PipelineCase) -> float:
    """The time of the slowest part, as the rule counts it."""
    return _table(case)[case.num_layers - 1][case.num_ranks][0]


def _table(case: PipelineCase) -> list[list[tuple[float, int, int]]]:
    """For each last layer and number of ranks: slowest part, and first layer and replicas of the last stage."""
    num_layers, num_ranks = case.num_layers, case.num_ranks
    table = [[(math.inf, 0, 1)] * (num_ranks + 1) for _ in range(num_layers)]
    for last in range(num_layers):
        if last + 1 < num_layers and not case.can_cut(last):
            continue
        for ranks in range(1, num_ranks + 1):
            table[last][ranks] = min(
                _candidates(case, table, last, ranks), key=lambda found: (found[0], -found[1], found[2])
            )
    return table


def _candidates(case: PipelineCase, table: list[list[tuple[float, int, int]]], last: int, ranks: int):
    for first in range(last, -1, -1):
        if first == 0:
            yield stage_seconds(case, 0, last, ranks), 0, ranks
        elif case.can_cut(first - 1):
            for replicas in range(1, ranks):
                before = table[first - 1][ranks - replicas][0]
                transfer = 2 * case.link_seconds(first - 1) / replicas
                yield max(before, stage_seconds(case, first, last, replicas), transfer), first, replicas


def stage_seconds(case: PipelineCase, first: int, last: int, replicas: int) -> float:
    """Seconds per micro-batch of a stage on so many ranks."""
    compute = case.over("forward", first, last) + case.over("backward", first, last)
    return (compute + exchange_seconds(case, first, last, replicas)) / replicas


def exchange_seconds(case: PipelineCase, first: int, last: int, replicas: int) -> float:
    """The exchange of gradients between replicas, once for every micro-batch of each."""
    return 4 * (replicas - 1) * case.over("parameter", first, last) / (case.link.bytes_per_second * replicas)


def _stage(case: PipelineCase, first: int, last: int, rank: int, replicas: int) -> ProposedStage:
    choice = case.plain_choice(first, last)
    slower = choice.backward_seconds + exchange_seconds(case, first, last, replicas)
    return ProposedStage(first, last, rank, msgspec.structs.replace(choice, backward_seconds=slower), replicas)
