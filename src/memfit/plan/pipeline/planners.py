"""Every pipeline planner behind one name, and the way from a case to a plan that was replayed event by event.

plan_pipeline(case, planner="best")         one plan, or DoesNotFit with what would do
plan_schedule(case, "1f1b")                 the same for a schedule of torch.distributed.pipelining
explain_cut(case, ends, schedule)           a cut that the user has
compare_cuts(case)                          every planner side by side
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from memfit.errors import DoesNotFit, InvalidSchedule, UsageError
from memfit.plan.pipeline import partition, pipedream, rules
from memfit.plan.pipeline.case import (
    PipelineCase,
    PipelinePlanner,
    PipelineProposal,
    PipelineRule,
    ProposedStage,
    plain_proposal,
)
from memfit.plan.pipeline.schedule.memory import fixed_bytes, rank_memories, why_fullest
from memfit.plan.pipeline.schedule.schedules import (
    STAGES_PER_RANK,
    Orders,
    check_schedule,
    most_in_flight,
    orders_of,
    periodic_orders,
    ranks_of,
)
from memfit.plan.pipeline.schedule.simulate import replay_periodic, simulate_step
from memfit.plan.pipeline.schedule.steady import copies_at, elements_of, least_loads, pattern_at, shortest_period
from memfit.records.pipeline import (
    PeriodicOperation,
    PipelineCandidate,
    PipelineCut,
    PipelinePlan,
    PipelineStage,
    RankMemory,
    ScheduleName,
    SimulatedStep,
)
from memfit.units import bytes_rounded_up, format_bytes

PLANNERS: dict[str, PipelinePlanner] = {
    planner.name: planner
    for planner in (
        PipelineRule("equal layers", rules.equal_layers),
        PipelineRule("equal parameters", rules.equal_parameters),
        PipelineRule("balanced time", rules.balanced_time),
        PipelineRule("PipeDream straight", rules.straight_pipedream),
        PipelineRule("PipeDream", pipedream.replicated),
        PipelineRule("ranks-behind rule", partition.one_behind_another),
        PipelineRule("exact", partition.exact_contiguous, partition.OPTIMAL),
    )
}
"""Without a solver; those that need scipy are asked for by name, in `ilp/scipy_planners.py`."""
BASELINES = ("equal layers", "equal parameters", "balanced time", "PipeDream straight", "ranks-behind rule")


def planner_named(name: str) -> PipelinePlanner:
    """A planner by its name; 'best' is the exact one."""
    if name == "best":
        return PLANNERS["exact"]
    if name not in PLANNERS:
        raise UsageError(
            "there is no such planner", found=repr(name), hint=", ".join(["best", *PLANNERS, "special", "joint"])
        )
    return PLANNERS[name]


@dataclass(frozen=True)
class PipelineOutcome:
    """A cut as the arbiter saw it."""

    cut: PipelineCut
    period_seconds: float
    operations: tuple[PeriodicOperation, ...]
    step: SimulatedStep
    ranks: tuple[RankMemory, ...]


# ---- from a case to a plan -------------------------------------------------------------------------------------


def plan_pipeline(case: PipelineCase, planner: str = "best", *, baselines: bool = True) -> PipelinePlan:
    """The plan of one planner with its best periodic schedule; raises DoesNotFit when it finds none."""
    chosen = planner_named(planner)
    proposal = chosen.propose(case)
    outcome = None if proposal is None else judge(case, proposal)
    if proposal is None or outcome is None:
        raise does_not_fit(case, f"{chosen.name} finds no cut")
    return plan_of(case, chosen, outcome, proposal.notes, baselines=baselines)


def judge(case: PipelineCase, proposal: PipelineProposal) -> PipelineOutcome | None:
    """Give contiguous stages their shortest period within the memory, and replay it; None when no period fits."""
    if not proposal.is_contiguous:
        raise UsageError("stages that share a rank need a solver", hint="--planner special")
    elements = elements_of(case, proposal.stages)
    most = [
        min(case.most_copies(s.first, s.last, s.choice, case.limits_bytes[r]) for r in _ranks_of(s))
        for s in proposal.stages
    ]
    period = shortest_period(elements, most)
    if period is None:
        return None
    operations = pattern_at(elements, period)
    return replayed(case, proposal.stages, copies_at(elements, period), operations, period)


def _ranks_of(stage: ProposedStage) -> range:
    return range(stage.rank, stage.rank + stage.num_replicas)


def replayed(
    case: PipelineCase,
    stages: Sequence[ProposedStage],
    in_flight: Sequence[int],
    operations: tuple[PeriodicOperation, ...],
    period: float,
) -> PipelineOutcome:
    """Check a periodic schedule event by event, and play a step of it."""
    cut = _cut(case, stages, in_flight, "custom")
    seen = replay_periodic(operations, cut, period, full_duplex=case.link.full_duplex)
    if any(found > promised for found, promised in zip(seen.in_flight, in_flight, strict=True)):
        raise InvalidSchedule("more micro-batches are in flight than planned", found=f"{seen.in_flight}, {in_flight}")
    orders = periodic_orders(
        operations, tuple(s.rank for s in stages), case.num_ranks, period, case.num_micro_batches,
        [s.num_replicas for s in stages],
    )  # fmt: skip
    cut = msgspec.structs.replace(cut, orders=_texts(orders))
    return _outcome(case, cut, orders, period, operations)


def _cut(
    case: PipelineCase, stages: Sequence[ProposedStage], in_flight: Sequence[int], schedule: ScheduleName
) -> PipelineCut:
    made = tuple(
        PipelineStage(
            first_layer=s.first, last_layer=s.last, rank=s.rank, num_replicas=s.num_replicas, in_flight=n,
            choice=s.choice,
        )
        for s, n in zip(stages, in_flight, strict=True)
    )  # fmt: skip
    return PipelineCut(
        stages=made, num_ranks=case.num_ranks, schedule=schedule, num_micro_batches=case.num_micro_batches
    )


def _texts(orders: Orders) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(str(action) for action in order) for order in orders)


def _outcome(
    case: PipelineCase,
    cut: PipelineCut,
    orders: Orders,
    period: float,
    operations: tuple[PeriodicOperation, ...] = (),
) -> PipelineOutcome:
    """Memory by the orders, time by the simulation, and the two agree on the peak of every rank."""
    ranks = rank_memories(case, cut, orders)
    sent = [case.sent_bytes(stage.last_layer) for stage in cut.stages]
    copies = [case.copy_bytes(stage.first_layer, stage.last_layer, stage.choice) for stage in cut.stages]
    fixed = [fixed_bytes(case, cut, rank) for rank in range(cut.num_ranks)]
    step = simulate_step(cut, orders, sent, case.link, fixed, copy_bytes=copies)
    for rank, peak in zip(ranks, step.peak_bytes, strict=True):
        if rank.total_bytes != peak:
            found = f"rank {rank.rank}: {rank.total_bytes} by its order, {peak} by the simulation"
            raise InvalidSchedule("two counts of a rank's memory differ", found=found, hint="report this case")
    return PipelineOutcome(cut, period, operations, step, ranks)


def plan_of(
    case: PipelineCase,
    planner: PipelinePlanner,
    outcome: PipelineOutcome,
    notes: Sequence[str] = (),
    *,
    baselines: bool = True,
) -> PipelinePlan:
    """The record of what the arbiter saw, with its bound, its reasons and the baselines."""
    fullest, reasons = why_fullest(case, outcome.cut, outcome.ranks)
    bound = outcome.period_seconds if planner.optimal_among else _load_bound(case)
    idle = case.num_ranks - len({r for s in outcome.cut.stages for r in range(s.rank, s.rank + s.num_replicas)})
    said = [*case.chain.notes, *notes]
    if idle:
        said.append(
            f"{idle} of {case.num_ranks} ranks stay idle: with a stage on each, transfers and micro-batches in flight "
            "would cost more than it gains"
        )
    return PipelinePlan(
        planner=planner.name,
        chain=case.chain,
        link=case.link,
        limits_bytes=case.limits_bytes,
        weight_rule=case.weight_rule,
        cut=outcome.cut,
        period_seconds=outcome.period_seconds,
        lower_bound_seconds=min(bound, outcome.period_seconds),
        optimal_among=planner.optimal_among,
        operations=outcome.operations,
        step=outcome.step,
        ranks=outcome.ranks,
        fullest_rank=fullest,
        reasons=reasons,
        baselines=compare_cuts(case, BASELINES) if baselines else (),
        notes=tuple(said),
    )


def _load_bound(case: PipelineCase) -> float:
    """All work shared out evenly over the ranks: no plan can be faster."""
    return sum(layer.forward_seconds + layer.backward_seconds for layer in case.chain.layers) / case.num_ranks


# ---- schedules of torch ----------------------------------------------------------------------------------------


def plan_schedule(case: PipelineCase, schedule: ScheduleName, *, baselines: bool = True) -> PipelinePlan:
    """A cut for a named schedule, whose micro-batches in flight are fixed.

    With one stage per rank the cut has the least largest load of all that fit; with two it balances time over the
    stages and is refused where it does not fit.
    """
    proposal = _cut_for(case, schedule)
    outcome = None if proposal is None else run_schedule(case, proposal.stages, schedule)
    if proposal is None or outcome is None or not all(rank.fits for rank in outcome.ranks):
        raise _schedule_does_not_fit(case, schedule, outcome)
    among = f"cuts into one stage per rank under {schedule}, by the largest load" if proposal.is_contiguous else ""
    planner = PipelineRule(schedule, lambda _: proposal, among)
    return plan_of(case, planner, outcome, proposal.notes, baselines=baselines)


def _cut_for(case: PipelineCase, schedule: ScheduleName) -> PipelineProposal | None:
    check_schedule(schedule, case.num_ranks, case.num_micro_batches)
    if STAGES_PER_RANK[schedule] > 1:
        return _balanced_chunks(case, schedule)
    return partition.exact_with_counts(case, _counts(case, schedule), all_ranks=True)


def _counts(case: PipelineCase, schedule: ScheduleName) -> tuple[int, ...]:
    ranks = range(case.num_ranks)
    return tuple(most_in_flight(schedule, case.num_ranks, rank, case.num_micro_batches) for rank in ranks)


def _schedule_does_not_fit(case: PipelineCase, schedule: ScheduleName, outcome: PipelineOutcome | None) -> DoesNotFit:
    """What the schedule needs: of all cuts with one stage per rank, of the balanced one with several."""
    if outcome is None:
        needed = partition.fewest_bytes(case, _counts(case, schedule))
        return does_not_fit(case, f"{schedule} needs {format_bytes(needed)} on some rank, however it is cut", needed)
    fullest = max(outcome.ranks, key=lambda rank: rank.total_bytes - (rank.limit_bytes or 0))
    found = f"under {schedule}, cut by time, rank {fullest.rank} needs {format_bytes(fullest.total_bytes)}"
    return does_not_fit(case, found, max(rank.total_bytes for rank in outcome.ranks))


def _balanced_chunks(case: PipelineCase, schedule: ScheduleName) -> PipelineProposal | None:
    """As many stages as the schedule has, balanced by time."""
    ranks = ranks_of(schedule, case.num_ranks)
    proposal = rules.balanced_time(case.with_limits((max(case.limits_bytes),) * len(ranks)))
    if proposal is None:
        return None
    stages = tuple(
        ProposedStage(stage.first, stage.last, rank, stage.choice)
        for stage, rank in zip(proposal.stages, ranks, strict=True)
    )
    return PipelineProposal(stages, ("stages are balanced by time; memory is checked, not planned for",))


def run_schedule(case: PipelineCase, stages: Sequence[ProposedStage], schedule: ScheduleName) -> PipelineOutcome:
    """A cut under a named schedule, played."""
    orders = orders_of(schedule, case.num_ranks, case.num_micro_batches)
    counts = [0] * len(stages)
    for order in orders:
        held = [0] * len(stages)
        for action in order:
            held[action.stage] += {"F": 1, "B": -1, "W": -1}.get(action.kind, 0)
            counts[action.stage] = max(counts[action.stage], held[action.stage])
    cut = _cut(case, stages, counts, schedule)
    cut = msgspec.structs.replace(cut, orders=_texts(orders))
    return _outcome(case, cut, orders, _period_of(case, stages))


def _period_of(case: PipelineCase, stages: Sequence[ProposedStage]) -> float:
    """The busiest rank or link: with many micro-batches, the time from one to the next is at least this."""
    loads: dict[object, float] = {}
    for index, stage in enumerate(stages):
        load = stage.choice.forward_seconds + stage.choice.backward_seconds
        loads[stage.rank] = loads.get(stage.rank, 0.0) + load
        if index and stages[index - 1].rank != stage.rank:
            pair = frozenset((stages[index - 1].rank, stage.rank))
            one_way = case.link_seconds(stage.first - 1)
            loads[pair] = loads.get(pair, 0.0) + one_way * (1 if case.link.full_duplex else 2)
    return max(loads.values())


# ---- a cut that the user has -----------------------------------------------------------------------------------


def explain_cut(
    case: PipelineCase, ends: Sequence[int], schedule: ScheduleName = "1f1b", *, baselines: bool = True
) -> PipelinePlan:
    """The same record for a cut that is given by the last layer of every stage; it need not fit."""
    stages = plain_proposal(case, list(ends)).stages
    wanted = case.num_ranks * STAGES_PER_RANK.get(schedule, 1)
    if len(stages) != wanted:
        raise UsageError(
            f"{schedule} on {case.num_ranks} ranks needs {wanted} stages", found=f"{len(stages)} in the layout",
            hint=f"--ranks {len(stages)}",
        )  # fmt: skip
    refuse_impossible_cuts(case, ends)
    ranks = ranks_of(schedule, case.num_ranks)
    placed = [ProposedStage(s.first, s.last, rank, s.choice) for s, rank in zip(stages, ranks, strict=True)]
    outcome = run_schedule(case, placed, schedule)
    planner = PipelineRule("your layout", lambda _: None)
    return plan_of(case, planner, outcome, baselines=baselines)


def refuse_impossible_cuts(case: PipelineCase, ends: Sequence[int]) -> None:
    """Refuse a cut where the chain cannot be cut."""
    for end in ends[:-1]:
        if not case.can_cut(end):
            layer = case.chain.layers[end]
            raise UsageError(f"the chain cannot be cut behind {layer.name}", found=layer.no_cut_because)


# ---- side by side ----------------------------------------------------------------------------------------------


def compare_cuts(case: PipelineCase, names: Sequence[str] = tuple(PLANNERS)) -> tuple[PipelineCandidate, ...]:
    """Every planner's cut with its best schedule within the memory, in the order of their names."""
    return tuple(candidate_of(case, PLANNERS[name]) for name in names)


def candidate_of(case: PipelineCase, planner: PipelinePlanner) -> PipelineCandidate:
    """One planner's cut under its best periodic schedule."""
    proposal = planner.propose(case)
    if proposal is None:
        return PipelineCandidate(planner=planner.name, fits=False, reason="it finds no cut that fits")
    stages = tuple((s.first, s.last) for s in proposal.stages)
    ranks = tuple(s.rank for s in proposal.stages)
    outcome = judge(case, proposal)
    if outcome is None:
        needed = [case.stage_bytes(s.first, s.last, s.choice, 1) for s in proposal.stages]
        worst = max(range(len(needed)), key=lambda i: needed[i] - case.limits_bytes[ranks[i]])
        reason = f"rank {ranks[worst]} needs {format_bytes(needed[worst])} for one micro-batch"
        return PipelineCandidate(
            planner=planner.name, fits=False, stages=stages, ranks=ranks, fullest_bytes=max(needed), reason=reason
        )
    return PipelineCandidate(
        planner=planner.name, fits=True, stages=stages, ranks=ranks, period_seconds=outcome.period_seconds,
        fullest_bytes=max(rank.total_bytes for rank in outcome.ranks),
    )  # fmt: skip


# ---- nothing fits ----------------------------------------------------------------------------------------------


def does_not_fit(case: PipelineCase, found: str, needed_bytes: int | None = None) -> DoesNotFit:
    """The refusal, with the least memory or the least number of ranks that would do.

    `needed_bytes` is what the schedule that was asked for needs; more ranks need not help there.
    """
    needed = partition.fewest_bytes(case) if needed_bytes is None else needed_bytes
    more = enough_ranks(case) if needed_bytes is None else None
    hint = f"--memory {format_bytes(bytes_rounded_up(needed)).replace(' ', '')}"
    if more is not None:
        hint += f", or --ranks {more}"
    if needed_bytes is not None and partition.fewest_bytes(case) <= min(case.limits_bytes):
        hint += ", or --schedule best, which fits"
    if case.curve is None:
        hint += ", or --recompute"
    return DoesNotFit(
        f"the pipeline does not fit into {_limits_text(case)}", limit_bytes=max(case.limits_bytes),
        needed_bytes=needed, found=found, hint=f"{hint}, or a smaller micro-batch",
    )  # fmt: skip


def _limits_text(case: PipelineCase) -> str:
    sizes = sorted(set(case.limits_bytes))
    return f"{case.num_ranks} ranks of " + " to ".join(
        format_bytes(size) for size in (sizes[0], sizes[-1])[: len(sizes)]
    )


def enough_ranks(case: PipelineCase) -> int | None:
    """The least larger number of ranks of this memory that would do; None when no number does."""
    pieces = 1 + sum(case.can_cut(last) for last in range(case.num_layers - 1))
    found = partition.enough_ranks(case, max(case.limits_bytes), pieces)
    return found if found is not None and found > case.num_ranks else None


def least_bound(case: PipelineCase, stages: Sequence[ProposedStage]) -> float:
    """The shortest period of these stages whatever the memory."""
    return least_loads(elements_of(case, stages))
