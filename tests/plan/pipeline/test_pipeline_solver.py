"""Does the integer program attain the exact planner's period and never beat it, and are its schedules what it says?"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from random import Random

import pytest

from memfit.plan.pipeline.case import PipelineCase, ProposedStage
from memfit.plan.pipeline.partition import exact_contiguous
from memfit.plan.pipeline.planners import judge
from memfit.plan.pipeline.schedule.steady import copies_at, elements_of
from memfit.records.pipeline import Layer, PipelineChain, RankLink
from memfit.testing.oracles.pipeline_search import made_pipeline_chain

pytest.importorskip("scipy")
from memfit.plan.pipeline.ilp.scipy_joint import joint_allocation
from memfit.plan.pipeline.ilp.scipy_planners import placed_outcome, plan_with_solver
from memfit.plan.pipeline.ilp.scipy_schedule import best_schedule


def made_case(seed: int, num_layers: int, num_ranks: int) -> PipelineCase:
    random = Random(seed)
    link = RankLink(bytes_per_second=random.choice((2.0, 1e9)), full_duplex=random.random() < 0.4)
    chain = made_pipeline_chain(random, num_layers)
    return PipelineCase(chain, (random.randint(30, 120),) * num_ranks, link)


@pytest.mark.parametrize("seed", range(12))
def test_it_attains_the_period_of_the_exact_planner_and_never_beats_it(seed: int):
    case = made_case(seed, 5, 3)
    proposal = exact_contiguous(case)
    if proposal is None:
        return
    outcome = judge(case, proposal)
    assert outcome is not None
    placed = best_schedule(case, proposal.stages)
    assert placed is not None
    assert placed.period_seconds == pytest.approx(outcome.period_seconds, rel=1e-5)
    seen = placed_outcome(case, proposal.stages, placed)
    assert all(rank.fits for rank in seen.ranks)


@pytest.mark.parametrize("seed", range(6))
def test_with_one_copy_less_the_period_is_never_attained(seed: int):
    case = made_case(seed, 5, 3).with_limits((10**6,) * 3)
    proposal = exact_contiguous(case)
    assert proposal is not None
    outcome = judge(case, proposal)
    assert outcome is not None
    copies = copies_at(elements_of(case, proposal.stages), outcome.period_seconds)
    for stage in range(len(copies)):
        if copies[stage] > 1:
            fewer = [count - (index == stage) for index, count in enumerate(copies)]
            placed = best_schedule(case, proposal.stages, most_copies=fewer)
            assert placed is None or placed.period_seconds > outcome.period_seconds * (1 + 1e-6)


def every_allocation(case: PipelineCase) -> float:
    """The shortest period over all ways to put layers on ranks, each scheduled by the integer program."""
    best = math.inf
    for ranks in itertools.product(range(case.num_ranks), repeat=case.num_layers):
        if ranks[0]:
            continue
        ends = [i for i in range(case.num_layers) if i + 1 == case.num_layers or ranks[i + 1] != ranks[i]]
        firsts = [0, *(end + 1 for end in ends[:-1])]
        stages = [ProposedStage(a, b, ranks[a], case.plain_choice(a, b)) for a, b in zip(firsts, ends, strict=True)]
        placed = best_schedule(case, stages)
        best = min(best, placed.period_seconds if placed is not None else math.inf)
    return best


@pytest.mark.parametrize(("seed", "receives_all"), [(2, False), (3, False), (10, False), (2, True), (4, True)])
def test_allocation_and_schedule_together_find_the_best_of_all_allocations(seed: int, receives_all: bool):
    case = replace(made_case(seed, 4, 2), receives_all=receives_all, num_micro_batches=5)
    stages, _ = joint_allocation(case)
    placed = None if stages is None else best_schedule(case, stages)
    found = math.inf if placed is None else placed.period_seconds
    assert found == pytest.approx(every_allocation(case), rel=1e-5)


def shared_rank_case() -> PipelineCase:
    """Light ends and a heavy middle: only with both ends on one rank are the loads even."""
    seconds = (1.0, 2.0, 1.0)
    layers = tuple(
        Layer(
            name=f"layer{i}", forward_seconds=s / 2, backward_seconds=s / 2, parameter_bytes=1, gradient_bytes=1,
            output_bytes=1, saved_bytes=4,
        )
        for i, s in enumerate(seconds)
    )  # fmt: skip
    return PipelineCase(PipelineChain(layers=layers), (60, 60), RankLink(bytes_per_second=1e6))


@pytest.mark.parametrize("planner", ["special", "joint"])
def test_a_shared_rank_is_found_where_it_pays(planner: str):
    case = shared_rank_case()
    contiguous = exact_contiguous(case)
    assert contiguous is not None
    plan = plan_with_solver(case, planner, baselines=False)
    assert plan.period_seconds == pytest.approx(2.0, rel=1e-4)
    assert [stage.rank for stage in plan.cut.stages] == [0, 1, 0]
    assert plan.fits
