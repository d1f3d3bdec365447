"""Planners that need a solver: one rank with several stages, and allocation and schedule in one integer program.

`special_plan` walks target periods down from the contiguous optimum, lets the dynamic program of `special` propose an
allocation for each, and gives every new one its best schedule by the integer program. `joint_plan` states allocation
and schedule together (`scipy_joint`), for chains of a few layers. Both fall back to the contiguous optimum, which they
never exceed.
"""

from __future__ import annotations

from collections.abc import Sequence

from memfit.errors import UsageError
from memfit.plan.pipeline.case import PipelineCase, PipelinePlanner, PipelineRule, ProposedStage
from memfit.plan.pipeline.ilp.scipy_joint import MOST_LAYERS, joint_allocation
from memfit.plan.pipeline.ilp.scipy_schedule import PlacedSchedule, best_schedule, require_scipy
from memfit.plan.pipeline.ilp.special_rank import allocation_for
from memfit.plan.pipeline.partition import ContiguousProgram
from memfit.plan.pipeline.planners import (
    PipelineOutcome,
    does_not_fit,
    plan_of,
    plan_pipeline,
    replayed,
)
from memfit.plan.pipeline.schedule.simulate import replay_periodic
from memfit.records.pipeline import PipelineCut, PipelinePlan, PipelineStage

TARGETS = 10
"""Target periods between the bound by loads and the best that is known."""
SOLVER_PLANNERS = ("special", "joint")


def plan_with_solver(case: PipelineCase, planner: str, *, baselines: bool = True) -> PipelinePlan:
    """The plan of a planner that needs scipy."""
    require_scipy()
    if len(set(case.limits_bytes)) > 1:
        raise UsageError("a shared rank needs ranks of one memory", hint="--planner exact")
    return (special_plan if planner == "special" else joint_plan)(case, baselines=baselines)


def special_plan(case: PipelineCase, *, baselines: bool = True) -> PipelinePlan:
    """The best plan found with at most one rank that holds several stages."""
    found = ContiguousProgram(case).shortest()
    loads = sum(layer.forward_seconds + layer.backward_seconds for layer in case.chain.layers)
    low = max(loads / case.num_ranks, max(x.forward_seconds + x.backward_seconds for x in case.chain.layers))
    high = found[0] if found is not None else 2 * loads
    best: tuple[PlacedSchedule, tuple[ProposedStage, ...]] | None = None
    tried: set[tuple[tuple[int, int, int], ...]] = set()
    for number in range(TARGETS):
        stages = allocation_for(case, low + (high - low) * (number + 0.5) / TARGETS)
        key = tuple((s.first, s.last, s.rank) for s in stages or ())
        if stages is None or key in tried or len({s.rank for s in stages}) == len(stages):
            continue
        tried.add(key)
        placed = best_schedule(case, stages)
        limit = best[0].period_seconds if best else high
        if placed is not None and placed.period_seconds < limit * (1 - 1e-6):
            best = placed, stages
    if best is None:
        return _contiguous(case, "special: no shared rank is faster than one stage on each rank", baselines)
    return _placed_plan(case, PipelineRule("special", lambda _: None), *best, baselines)


def joint_plan(case: PipelineCase, *, baselines: bool = True) -> PipelinePlan:
    """Allocation and schedule by one integer program; refused for longer chains."""
    if case.num_layers > MOST_LAYERS:
        raise UsageError(
            "allocation and schedule together are solved for short chains",
            found=f"{case.num_layers} layers, at most {MOST_LAYERS}", hint="--planner special, or exact",
        )  # fmt: skip
    stages, is_proved = joint_allocation(case)
    placed = None if stages is None else best_schedule(case, stages)
    if stages is None or placed is None:
        why = "joint: the solver found no allocation in its time; this is the best with one stage on each rank"
        return _contiguous(case, why, baselines)
    is_best = is_proved and placed.is_proved and not case.chain.update_bytes  # which the program does not know of
    among = "all allocations of layers to ranks, under any periodic schedule" if is_best else ""
    return _placed_plan(case, PipelineRule("joint", lambda _: None, among), placed, stages, baselines)


def _contiguous(case: PipelineCase, why: str, baselines: bool) -> PipelinePlan:
    import msgspec

    plan = plan_pipeline(case, "exact", baselines=baselines)
    return msgspec.structs.replace(plan, notes=(*plan.notes, why))


def _placed_plan(
    case: PipelineCase,
    planner: PipelinePlanner,
    placed: PlacedSchedule,
    stages: Sequence[ProposedStage],
    baselines: bool,
) -> PipelinePlan:
    outcome = placed_outcome(case, stages, placed)
    if not all(rank.fits for rank in outcome.ranks):
        raise does_not_fit(case, "the solver's schedule needs more than its memory, by rounding")
    notes = () if placed.is_proved else ("the solver ran out of time before it could prove that nothing is faster",)
    return plan_of(case, planner, outcome, notes, baselines=baselines)


def placed_outcome(case: PipelineCase, stages: Sequence[ProposedStage], placed: PlacedSchedule) -> PipelineOutcome:
    """A solver's schedule, replayed event by event."""
    draft = PipelineCut(
        stages=tuple(
            PipelineStage(first_layer=s.first, last_layer=s.last, rank=s.rank, in_flight=0, choice=s.choice)
            for s in stages
        ),
        num_ranks=case.num_ranks,
        schedule="custom",
        num_micro_batches=case.num_micro_batches,
    )
    full_duplex = case.link.full_duplex
    seen = replay_periodic(placed.operations, draft, placed.period_seconds, full_duplex=full_duplex)
    return replayed(case, stages, seen.in_flight, placed.operations, placed.period_seconds)
