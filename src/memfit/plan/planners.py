"""Every planner behind one name, and the way from a chain and a budget to a plan with its reasons.

make_plan(chain, budget_bytes, link=..., planner="best")   one plan, or DoesNotFit
compare_planners(chain, budget_bytes, link=...)            every planner side by side
trace_frontier(chain, link=..., planner=...)               time against memory
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from memfit.errors import DoesNotFit, UsageError
from memfit.plan.case import Case, PlannedOutcome, Planner, PlanProposal, Rule, judge, moved_nodes
from memfit.plan.levers import consider_levers
from memfit.plan.offload import combined as combined_plans
from memfit.plan.offload import offload as offload_plans
from memfit.plan.offload import rules as offload_rules
from memfit.plan.offload.combined import LeastCombined
from memfit.plan.offload.fluid import offload_bound
from memfit.plan.problem.program import lower
from memfit.plan.problem.simulator import simulate
from memfit.plan.problem.transfers import Transfers
from memfit.plan.reasons import binding_of, decisions_of, least_budget_bytes
from memfit.plan.recompute import revolve as revolve_plans
from memfit.plan.recompute import rules
from memfit.plan.recompute.best_known import best_recompute
from memfit.records.plan import Candidate, Chain, Link, Move, Plan, Point, Step
from memfit.units import format_bytes

PLANNERS: dict[str, Planner] = {
    planner.name: planner
    for planner in (
        Rule("keep all", "checkpoint", rules.keep_all),
        Rule("every block", "checkpoint", rules.every_block),
        Rule("equal segments", "checkpoint", rules.best_segments),
        Rule("sqrt(n)", "checkpoint", rules.sqrt_segments),
        Rule("greedy segments", "checkpoint", rules.greedy_segments),
        Rule("revolve", "checkpoint", revolve_plans.revolve),
        Rule("nested", "checkpoint", best_recompute),
        Rule("offload all", "offload", offload_rules.offload_all),
        Rule("vDNN all", "offload", offload_rules.vdnn_all),
        Rule("vDNN conv", "offload", offload_rules.vdnn_conv, "no stage is a convolution with a stage before it"),
        Rule("vDNN++", "offload", offload_rules.vdnn_plus_plus),
        Rule("AutoSwap", "offload", offload_rules.auto_swap),
        Rule("TFLMS", "offload", offload_rules.tflms),
        Rule("offload prefix", "offload", offload_plans.offload_prefix),
        Rule("offload fluid", "offload", offload_plans.offload_fluid),
        Rule("offload", "offload", offload_plans.offload),
        Rule("SuperNeurons", "combined", offload_rules.super_neurons),
        Rule("revolve with disk", "combined", revolve_plans.disk_revolve),
        Rule("POFO", "combined", combined_plans.pofo),
        Rule("combined", "combined", combined_plans.combined),
    )
}
FAMILY_WORDS = {
    "checkpoint": "nested checkpoint plans",
    "offload": "plans that keep every stage and move some of what they leave",
    "combined": "nested checkpoint plans that move some of what their first forward leaves",
}


def planner_called(name: str, link: Link | None) -> Planner:
    """A planner by its name; 'best' means the strongest for what there is."""
    if name == "best":
        return PLANNERS["combined" if link is not None else "nested"]
    if name not in PLANNERS:
        raise UsageError("there is no such planner", found=repr(name), hint=", ".join(["best", *PLANNERS]))
    return PLANNERS[name]


def make_plan(
    chain: Chain,
    budget_bytes: int,
    *,
    link: Link | None = None,
    planner: str = "best",
    curve_points: int = 0,
    levers: bool = False,
    known: list[Case] | None = None,
) -> Plan:
    """The plan of one planner with its promise, its bound and its reasons; raises DoesNotFit when it finds none.

    What is worked out about the chain alone is put into `known`, and taken from it the next time.
    """
    case = _case_of(chain, budget_bytes, link, known)
    chosen = planner_called(planner, link)
    proposal = chosen.propose(case)
    outcome = None if proposal is None else judge(case, proposal)
    if outcome is None:
        raise _does_not_fit(case, chosen)
    plan = plan_from_outcome(case, chosen, outcome)
    if curve_points:
        points = trace_frontier(chain, link=link, planner=planner, num_points=curve_points)
        plan = msgspec.structs.replace(plan, frontier=points)
    if levers:
        pulled = consider_levers(chain, budget_bytes, link, chosen, lambda other: smallest_budget(other, chosen))
        plan = msgspec.structs.replace(plan, levers=pulled)
    return plan


def levers_for(chain: Chain, budget_bytes: int, *, link: Link | None = None, planner: str = "best"):
    """The levers that remain, also where no plan fits."""
    chosen = planner_called(planner, link)
    return consider_levers(chain, budget_bytes, link, chosen, lambda other: smallest_budget(other, chosen))


def _case_of(chain: Chain, budget_bytes: int, link: Link | None, known: list[Case] | None) -> Case:
    """A case that shares with the last one of the same chain what does not depend on the budget."""
    if known and known[-1].chain is chain:
        return known[-1].with_link(link, budget_bytes)
    case = Case(chain, budget_bytes, link)
    if known is not None:
        known[:] = [case]
    return case


def compare_planners(
    chain: Chain,
    budget_bytes: int,
    *,
    link: Link | None = None,
    names: Sequence[str] | None = None,
    known: list[Case] | None = None,
) -> tuple[Candidate, ...]:
    """Every planner on one case, fastest first; those that do not fit come last with what they would need."""
    case = _case_of(chain, budget_bytes, link, known)
    wanted = names or [name for name, planner in PLANNERS.items() if link or planner.family == "checkpoint"]
    found = [candidate_of(case, planner_called(name, link)) for name in wanted]
    return tuple(sorted(found, key=lambda c: (c.seconds is None, c.seconds or 0.0, c.peak_bytes or 0)))


def trace_frontier(
    chain: Chain, *, link: Link | None = None, planner: str = "best", num_points: int = 12
) -> tuple[Point, ...]:
    """Time against memory, from the smallest budget to everything kept; each point is faster than those below it."""
    chosen = planner_called(planner, link)
    case = Case(chain, max(1, sum(stage.saved_bytes for stage in chain.stages)), link)
    low, high = smallest_budget(case, chosen), case.nested.plain.peak_bytes
    budgets = sorted({low + max(0, high - low) * k // max(1, num_points - 1) for k in range(num_points)})
    points: list[Point] = []
    for budget_bytes in budgets:
        proposal = chosen.propose(case.with_budget(budget_bytes))
        outcome = None if proposal is None else judge(case.with_budget(budget_bytes), proposal)
        if outcome is not None and (not points or outcome.replayed.seconds < points[-1].seconds):
            points.append(
                Point(peak_bytes=outcome.replayed.peak_bytes, seconds=outcome.replayed.seconds, solver=chosen.name)
            )
    return tuple(points)


def smallest_budget(case: Case, planner: Planner) -> int:
    """The least budget the best planner of a family finds a plan for."""
    if planner.family == "checkpoint" or case.link is None:
        return case.nested.least.peak_bytes
    if planner.family == "offload":
        program = lower(case.chain, case.kept)
        return least_budget_bytes(program, _within_capacity(case, list(range(len(case.kept) - 1))))
    least = LeastCombined(case.sizes)
    nodes = least.nodes()
    chosen = _within_capacity(case, moved_nodes(nodes))
    moved = least_budget_bytes(lower(case.chain, nodes), chosen)
    return min(case.nested.least.peak_bytes, moved)


def _within_capacity(case: Case, chosen: list[int]) -> list[int]:
    """As many from the start as the other side of the link holds."""
    if case.link is None or case.link.capacity_bytes is None:
        return chosen
    held, kept = 0, []
    for node in chosen:
        held += case.chain.stages[node].saved_bytes
        if held <= case.link.capacity_bytes:
            kept.append(node)
    return kept


# ---- the record ------------------------------------------------------------------------------------------------


def replay_plan(plan: Plan) -> Plan:
    """Run a plan through the simulator again, from its nodes, waits and fetches alone; the record it then gives."""
    case = Case(plan.chain, plan.budget_bytes, plan.link)
    program = lower(plan.chain, plan.nodes)
    moved = [program.movables[node] for node in moved_nodes(plan.nodes)]
    waits = [step.wait_sent for step in plan.steps]
    transfers = Transfers(moved, waits, [move.fetch_after for move in plan.moves])
    replayed = simulate(program, transfers, plan.link)
    outcome = PlannedOutcome(PlanProposal(plan.nodes), program, transfers, replayed)
    return plan_from_outcome(case, planner_called(plan.solver, plan.link), outcome)


def plan_from_outcome(case: Case, planner: Planner, outcome: PlannedOutcome) -> Plan:
    """The record of what the arbiter saw, with its bound and its reasons; also for nodes that no planner chose."""
    replayed = outcome.replayed
    plain = lower(case.chain, case.kept)
    bound = _bound_seconds(case, planner)
    return Plan(
        solver=planner.name,
        chain=case.chain,
        link=case.link,
        budget_bytes=case.budget_bytes,
        nodes=outcome.proposal.nodes,
        steps=_steps(outcome),
        moves=_moves(outcome),
        peak_bytes=replayed.peak_bytes,
        seconds=replayed.seconds,
        plain_peak_bytes=case.sizes.peak_bytes(case.kept),
        plain_seconds=plain.compute_seconds,
        recompute_seconds=outcome.program.compute_seconds - plain.compute_seconds,
        stall_seconds=replayed.stall_seconds,
        moved_bytes=sum(unit.num_bytes for unit in outcome.transfers.moved),
        lower_bound_seconds=min(bound, replayed.seconds),
        bound_of=FAMILY_WORDS[planner.family],
        smallest_budget_bytes=min(smallest_budget(case, planner), replayed.peak_bytes),
        binding=binding_of(case, outcome),
        decisions=decisions_of(case, outcome),
        notes=_notes(case, outcome),
    )


def _bound_seconds(case: Case, planner: Planner) -> float:
    if planner.family == "checkpoint" or case.link is None:
        return case.nested.bound_seconds(case.budget_bytes)
    if planner.family == "offload":
        levels = offload_plans.fluid_levels(len(case.chain.stages))
        return offload_bound(case.sizes, case.link, case.budget_bytes, levels)
    return combined_plans.combined_bound(case)


def _steps(outcome: PlannedOutcome) -> tuple[Step, ...]:
    replayed, transfers = outcome.replayed, outcome.transfers
    return tuple(
        Step(
            kind=operation.kind, stage=operation.stage, option=operation.option, wait_sent=transfers.wait_sent[index],
            wait_fetched=sum(unit.needed_by <= index for unit in transfers.moved),
            start_seconds=replayed.starts[index], seconds=operation.seconds, stall_seconds=replayed.stalls[index],
            memory_bytes=replayed.memory_bytes[index],
        )
        for index, operation in enumerate(outcome.program.operations)
    )  # fmt: skip


def _moves(outcome: PlannedOutcome) -> tuple[Move, ...]:
    return tuple(
        Move(
            boundary=unit.boundary, num_bytes=unit.num_bytes, send_after=unit.made_by,
            release_after=unit.last_read_forward, fetch_after=outcome.transfers.fetch_after[position],
            needed_by=unit.needed_by, freed_after=unit.freed_after,
            send_seconds=outcome.replayed.sends[position], fetch_seconds=outcome.replayed.fetches[position],
        )
        for position, unit in enumerate(outcome.transfers.moved)
    )  # fmt: skip


def _notes(case: Case, outcome: PlannedOutcome) -> tuple[str, ...]:
    notes = list(outcome.proposal.notes)
    floor, peak = case.sizes.floor_bytes(), outcome.replayed.peak_bytes
    if case.sizes.update_bytes >= peak:
        notes.append("the peak is the optimizer's step, where recomputing and moving activations cannot help")
    elif floor >= peak:
        notes.append("the peak is what a single stage needs, where no plan of this chain can help")
    return tuple(notes)


def candidate_of(case: Case, planner: Planner) -> Candidate:
    """One planner's answer to a case, for a comparison."""
    proposal = planner.propose(case)
    outcome = None if proposal is None else judge(case, proposal)
    if outcome is not None:
        return Candidate(
            solver=planner.name, fits=True, peak_bytes=outcome.replayed.peak_bytes, seconds=outcome.replayed.seconds,
            stall_seconds=outcome.replayed.stall_seconds,
            moved_bytes=sum(unit.num_bytes for unit in outcome.transfers.moved),
        )  # fmt: skip
    needed = None
    if proposal is not None:
        needed = least_budget_bytes(lower(case.chain, proposal.nodes), moved_nodes(proposal.nodes))
    reason = "it needs more than the budget" if needed is not None else _why_nothing(case, planner)
    return Candidate(solver=planner.name, fits=False, peak_bytes=needed, seconds=None, reason=reason)


def _why_nothing(case: Case, planner: Planner) -> str:
    """Why a planner has no plan to offer, not even one that is too large."""
    if planner.family != "checkpoint" and case.link is None:
        return "there is no link to move over"
    smallest_bytes = smallest_budget(case, planner)
    if smallest_bytes > case.budget_bytes:
        return f"plans of its kind need {format_bytes(smallest_bytes)} or more"
    return planner.nothing_because


def _does_not_fit(case: Case, planner: Planner) -> DoesNotFit:
    smallest = smallest_budget(case, planner)
    if case.budget_bytes < case.sizes.base_bytes:
        found = f"{format_bytes(case.sizes.base_bytes)} are alive all the time: parameters, optimizer state, the batch"
    elif case.sizes.update_bytes > case.budget_bytes:
        found = f"the optimizer's step alone needs {format_bytes(case.sizes.update_bytes)}"
    else:
        found = f"{planner.name} needs {format_bytes(smallest)} or more"
    hint = f"a budget of {format_bytes(smallest)}"
    if case.link is None:
        hint += ", a link to a larger memory"
    hint += ", a smaller batch or a leaner optimizer"
    what = f"no plan fits into {format_bytes(case.budget_bytes)}"
    return DoesNotFit(what, limit_bytes=case.budget_bytes, needed_bytes=smallest, found=found, hint=hint)
