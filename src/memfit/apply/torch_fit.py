"""How does a plan come to hold on a live model: planned, applied, proven, and planned again where it did not?

The planner is handed in. A plan whose step measures more than the budget is planned again for the excess less, at
most three times. A block that computes something else the second time is found, named and kept. Whatever fails, the
model is left as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from memfit.apply.torch_apply import apply_to, refuse_planned
from memfit.apply.torch_job import Job, RandomState
from memfit.apply.torch_proof import Reference, base_bytes_of, names_of, prove, reference_of
from memfit.apply.torch_segments import AppliedPlan, apply_nodes
from memfit.errors import DoesNotFit, ProofFailed, UsageError
from memfit.records.fit import Proof
from memfit.records.plan import Chain, Checkpoint, Keep, Node, Plan, stages_of
from memfit.units import format_bytes

MOST_ROUNDS = 3
PlanFor = Callable[[Chain, int], Plan]
"""The best plan for a chain within a budget; raises DoesNotFit when there is none."""


@dataclass(slots=True)
class Held:
    """A plan that holds."""

    plan: Plan
    applied: AppliedPlan
    proof: Proof
    num_rounds: int
    kept_blocks: tuple[str, ...]


@dataclass(slots=True)
class _Attempt:
    """What changes from round to round."""

    chain: Chain
    target_bytes: int
    num_overshoots: int = 0
    kept: list[str] = field(default_factory=list)


def hold_to_budget(job: Job, chain: Chain, budget_bytes: int, plan_for: PlanFor, disk: str | None = None) -> Held:
    """Plan, apply and prove until the step is the same and within the budget."""
    state = RandomState.now()
    reference = reference_of(job, state)
    base_bytes = base_bytes_of(job, chain.fixed.optimizer_state_bytes)
    attempt = _Attempt(chain, budget_bytes)
    while True:
        plan = plan_for(attempt.chain, attempt.target_bytes)
        applied = apply_to(job.model, plan, disk)
        try:
            proof = prove(job, reference, state, base_bytes, plan.peak_bytes)
            if proof.same and (proof.measured_peak_bytes or 0) <= budget_bytes:
                return Held(plan, applied, proof, attempt.num_overshoots + 1, tuple(attempt.kept))
        except BaseException:
            applied.undo()
            raise
        applied.undo()
        if not proof.same:
            _keep_what_drifts(job, reference, state, attempt, plan, proof)
        else:
            _aim_lower(attempt, budget_bytes, proof)


def _aim_lower(attempt: _Attempt, budget_bytes: int, proof: Proof) -> None:
    """Plan for as much less as was too much."""
    measured = proof.measured_peak_bytes or 0
    attempt.num_overshoots += 1
    if attempt.num_overshoots >= MOST_ROUNDS:
        raise DoesNotFit(
            f"the plan does not hold: measured {format_bytes(measured)} for a budget of {format_bytes(budget_bytes)}",
            limit_bytes=budget_bytes,
            needed_bytes=measured,
            found=f"planned {MOST_ROUNDS} times, each time for less",
            hint=f"a budget of {format_bytes(measured)}",
        )
    attempt.target_bytes -= measured - budget_bytes


def _keep_what_drifts(
    job: Job, reference: Reference, state: RandomState, attempt: _Attempt, plan: Plan, proof: Proof
) -> None:
    """Name the blocks that compute something else when they are run again, and let the next plan keep them."""
    drifting = _drifting(job, reference, state, attempt.chain, plan.nodes)
    if not drifting:
        what = proof.failure or f"these differ: {names_of(proof.differing)}"
        raise ProofFailed(
            "the model does not compute the same with the plan; it was left as it was",
            found=what,
            hint="report this with the model; no block alone is the reason",
        )
    stages = list(attempt.chain.stages)
    for index in drifting:
        attempt.kept.append(stages[index].name)
        stages[index] = msgspec.structs.replace(stages[index], recomputable=False)
    attempt.chain = msgspec.structs.replace(attempt.chain, stages=tuple(stages))


def _drifting(job: Job, reference: Reference, state: RandomState, chain: Chain, nodes: tuple[Node, ...]) -> list[int]:
    """The stages that a plan recomputes and that are not the same when each alone is recomputed."""
    recomputed = [i for node in nodes if isinstance(node, Checkpoint) for i in stages_of((node,))]
    found = []
    for index in recomputed:
        alone = tuple(
            Checkpoint(inside=(Keep(stage=i),)) if i == index else Keep(stage=i) for i in range(len(chain.stages))
        )
        with apply_nodes(job.model, chain.stages, alone):
            if not prove(job, reference, state, 0, 0).same:
                found.append(index)
    return found


def check_budget(job: Job, budget_bytes: int) -> None:
    """Refuse a budget that is none, or a model that carries a plan; answer at once when not even parameters fit."""
    if isinstance(budget_bytes, bool) or not isinstance(budget_bytes, int) or budget_bytes <= 0:
        raise UsageError("a budget must be above zero", found=repr(budget_bytes), hint="a size with a unit, as '8GiB'")
    refuse_planned(job.model)
    fixed_bytes = base_bytes_of(job, 0)
    if budget_bytes < fixed_bytes:
        raise DoesNotFit(
            f"a budget of {format_bytes(budget_bytes)} is below what is alive all the time",
            limit_bytes=budget_bytes,
            needed_bytes=fixed_bytes,
            found=f"parameters, buffers and the batch alone take {format_bytes(fixed_bytes)}",
            hint="a smaller batch, a lower precision or a smaller model",
        )
