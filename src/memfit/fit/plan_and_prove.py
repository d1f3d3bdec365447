"""The fit of a model into a budget: plan, apply, prove, and plan again where the proof fails.

The planner is handed in. What counts is what is measured. A plan whose step measures more than the budget is planned
again for the excess less, at most three times. A plan whose step measures less than it promised leaves room: it is
planned again for as much more, and the faster plan is taken if its step is measured within the budget. Where no plan
promises to fit, the smallest there is is measured: it is taken if it holds, and if not, what it measured is the budget
that the error names. Plans that move bytes are held to their promise: what such a step measures depends on how fast
the link was. A block that computes something else the second time
is found, named and kept. Whatever fails, the model is left as it was.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from memfit.apply.apply import apply_to, refuse_planned
from memfit.apply.checkpoints import AppliedPlan, apply_nodes
from memfit.errors import DoesNotFit, MemfitError, ProofFailed, UsageError
from memfit.fit.operators import MakePlanner, OperatorPlanning, faster_inside, fit_operators, planner_of
from memfit.fit.proof import base_bytes_of, prove
from memfit.model.out_of_memory import ran_out, refusing_sparse_tensors, unless_memory_runs_out
from memfit.model.step import Job, RandomState, storage_bytes
from memfit.profile.optimizer_update import refuse_closures
from memfit.profile.reference_step import Reference, names_of, reference_of
from memfit.records.fit import Proof
from memfit.records.plan import Chain, Checkpoint, Keep, Node, Plan, stages_of
from memfit.units import bytes_rounded_up, format_bytes

MOST_ROUNDS = 3
PLENTY_BYTES = 1 << 50
NEARLY = 1.05
"""Other plans are tried where the smallest one measures this many budgets."""
MOST_TRIES = 3
"""Steps that are run to find out whether a faster plan, which promises more than the budget, holds."""
WORTHWHILE = 0.005
"""A plan that promises to be faster by less is not tried."""
SLOW = 1.02
"""Plans inside of blocks are looked for where those of blocks take so many plain steps, and taken where they are faster
by as much: a plan of blocks also holds where a later step runs other operators."""
FAR = 1.1
"""Where plans of blocks promise this many budgets or more, plans inside of blocks are tried before they are run."""
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
    smallest_bytes: int = 0
    """The least budget there is a plan for."""
    kept: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Bench:
    """Where plans are tried: the job, its plain step, and the budget that a measured step must keep."""

    job: Job
    reference: Reference
    state: RandomState
    base_bytes: int
    budget_bytes: int
    disk: str | None
    plain_bytes: int | None = None
    """What the plain step was measured with; None where it was not run."""

    def try_plan(self, plan: Plan) -> Proof | None:
        """Run one step under a plan; None when memory ran out. The model is as before."""
        with apply_to(self.job.model, plan, self.disk, self.job.is_exact):
            return unless_memory_runs_out(
                lambda: prove(self.job, self.reference, self.state, self.base_bytes, plan.peak_bytes)
            )

    def ran_out(self, plan: Plan) -> MemfitError:
        """The error for a plan that this machine cannot hold."""
        return ran_out(self.job, "proving the plan", "the plan", plan.peak_bytes - self.base_bytes)

    def holds(self, proof: Proof | None) -> bool:
        """Whether a step is the same and within the budget."""
        peak_bytes = None if proof is None else self.peak_of(proof)
        return proof is not None and proof.same and peak_bytes is not None and peak_bytes <= self.budget_bytes

    def peak_of(self, proof: Proof) -> int | None:
        """What a plan has to be reckoned with: what was measured, or the promise where another step may take more."""
        if proof.measured_peak_bytes is None or not self.job.varies:
            return proof.measured_peak_bytes
        return max(proof.measured_peak_bytes, proof.promised_bytes)


class _InsideOfBlocks:
    """The search for a plan inside of blocks and between them: the step is traced once at most."""

    def __init__(self, bench: _Bench, make: MakePlanner | None) -> None:
        self.bench, self.make = bench, make
        self._planners: list[OperatorPlanning | None] = []
        self._found: list[tuple[Plan, Proof] | None] = []

    def faster(self, plan_for: PlanFor, chain: Chain, blocks: Plan) -> tuple[Plan, Proof] | None:
        """A plan that holds and is faster than a plan of blocks; none where later passes may run other operators."""
        is_worth_it = blocks.seconds > SLOW * blocks.plain_seconds and not blocks.moves
        if not is_worth_it or self.bench.job.counts_everything:
            return None
        kept = plan_for(chain, PLENTY_BYTES)
        planner = self._planner(kept)
        return None if planner is None else faster_inside(self.bench, kept, planner, blocks.seconds / SLOW)

    def search(self, plan_for: PlanFor, chain: Chain) -> tuple[Plan, Proof] | None:
        """A plan that holds, else the smallest there is; None where there is none, or none is wanted."""
        if not self._found:
            kept = plan_for(chain, PLENTY_BYTES)
            planner = self._planner(kept)
            self._found.append(None if planner is None else fit_operators(self.bench, kept, planner))
        return self._found[0]

    def _planner(self, kept: Plan) -> OperatorPlanning | None:
        if self.make is None:
            return None
        if not self._planners:
            self._planners.append(planner_of(self.bench, kept, self.make))
        return self._planners[0]


def hold_to_budget(
    job: Job,
    chain: Chain,
    budget_bytes: int,
    plan_for: PlanFor,
    disk: str | None = None,
    reference: Reference | None = None,
    plain_record_peak_bytes: int | None = None,
    operators: MakePlanner | None = None,
) -> Held:
    """Plan, apply and prove until the step is the same and within the budget, and no faster one is.

    `operators` plans operator by operator where no plan of whole blocks holds; None where that is not to be tried.
    `reference` is what steps are compared with; None runs the step twice for it. `plain_record_peak_bytes` is what the
    plain step was measured with above what is there before it; None where it was not run.
    """
    if reference is None:
        reference = reference_for(job, chain)
    base_bytes = base_bytes_of(job, chain.fixed.optimizer_state_bytes)
    bench = _Bench(job, reference, reference.state, base_bytes, budget_bytes, disk)
    if plain_record_peak_bytes is not None and not job.varies:
        update_bytes = gradient_bytes_left(job, reference) + job.update_transient_bytes
        bench.plain_bytes = base_bytes + max(plain_record_peak_bytes, update_bytes)
    attempt, inside = _Attempt(chain, budget_bytes), _InsideOfBlocks(bench, operators)
    try:
        plan, proof = _first_that_holds(bench, attempt, plan_for, inside)
        plan, proof = _use_the_room_left(bench, attempt.chain, plan_for, plan, proof)
    except DoesNotFit as refusal:
        plan, proof = _operator_by_operator(bench, inside.search(plan_for, attempt.chain), refusal)
    applied = apply_to(job.model, plan, disk, job.is_exact)
    return Held(plan, applied, proof, attempt.num_overshoots + 1, tuple(attempt.kept))


def gradient_bytes_left(job: Job, reference: Reference) -> int:
    """Bytes of gradients when the optimizer is asked to step."""
    return max(0, reference.outcome.gradient_bytes - storage_bytes(job.stepped))


def reference_for(job: Job, chain: Chain) -> Reference:
    """What planned steps are compared with, where it was not run before."""
    state = RandomState.now()
    reference = unless_memory_runs_out(lambda: reference_of(job, state))
    if reference is None:
        needed_bytes = sum(stage.gradient_bytes for stage in chain.stages) + chain.stages[0].output_bytes
        raise ran_out(job, "running the step twice to compare with", "one set of gradients", needed_bytes)
    return reference


def _first_that_holds(
    bench: _Bench, attempt: _Attempt, plan_for: PlanFor, inside: _InsideOfBlocks
) -> tuple[Plan, Proof]:
    if bench.plain_bytes is not None and bench.plain_bytes <= bench.budget_bytes:
        plan = plan_for(attempt.chain, PLENTY_BYTES)  # everything kept
        proof = bench.try_plan(plan)
        if bench.holds(proof):
            assert proof is not None
            return plan, proof
    while True:
        plan, refusal = _plan_or_smallest(bench, attempt, plan_for)
        is_far = refusal is not None and (refusal.needed_bytes or 0) > FAR * bench.budget_bytes
        if is_far or (refusal is not None and not bench.job.counts_everything):
            found = inside.search(plan_for, attempt.chain)
            if found is not None and bench.holds(found[1]):
                return found
        elif refusal is None and not attempt.num_overshoots and not attempt.kept:
            faster = inside.faster(plan_for, attempt.chain, plan)
            if faster is not None:
                return faster
        proof = bench.try_plan(plan)
        if proof is None:
            raise bench.ran_out(plan)
        if bench.holds(proof):
            return plan, proof
        if not proof.same:
            _keep_what_drifts(bench, attempt, plan, proof)
        elif refusal is not None:
            nearly = (bench.peak_of(proof) or 0) <= NEARLY * bench.budget_bytes and not bench.job.varies
            if nearly:  # what promises a little more may measure a little less
                plan, found = _use_the_room_left(bench, attempt.chain, plan_for, plan, proof, must_be_faster=False)
                if bench.holds(found):
                    return plan, found
            raise _refused(bench, refusal, bench.peak_of(proof))
        else:
            _aim_lower(attempt, bench.budget_bytes, plan, proof)


def _plan_or_smallest(bench: _Bench, attempt: _Attempt, plan_for: PlanFor) -> tuple[Plan, DoesNotFit | None]:
    """A plan for the target, or the smallest one with the refusal to raise unless its step measures little enough."""
    if attempt.num_overshoots >= MOST_ROUNDS:
        error = DoesNotFit("every plan measures more than it promises", limit_bytes=bench.budget_bytes)
        return plan_for(attempt.chain, attempt.smallest_bytes), error
    try:
        return plan_for(attempt.chain, attempt.target_bytes), None
    except DoesNotFit as error:
        if error.needed_bytes is None:
            raise _refused(bench, error, None) from None
        smallest = plan_for(attempt.chain, error.needed_bytes)
        if smallest.moves:
            raise _refused(bench, error, smallest.peak_bytes) from None
        return smallest, error


def _refused(bench: _Bench, error: DoesNotFit, needed_bytes: int | None) -> DoesNotFit:
    """The refusal in terms of the user's budget; what it names as enough was measured, and is rounded up."""
    measured = [each for each in (needed_bytes, bench.plain_bytes) if each is not None]
    named_bytes = bytes_rounded_up(min(measured)) if needed_bytes is not None else None
    enough = "" if named_bytes is None else f"a budget of {format_bytes(named_bytes)}, or "
    folder = "a folder to move tensors to (--disk, disk=...), " if bench.disk is None else ""
    refusal = DoesNotFit(
        f"no plan fits into {format_bytes(bench.budget_bytes)}",
        limit_bytes=bench.budget_bytes,
        needed_bytes=named_bytes,
        found=_found(error, named_bytes, bench.job.varies),
        hint=f"{enough}{folder}a smaller batch, or one of the levers",
    )
    refusal.levers = error.levers
    return refusal


def _operator_by_operator(bench: _Bench, found: tuple[Plan, Proof] | None, refusal: DoesNotFit) -> tuple[Plan, Proof]:
    """A plan inside of blocks and between them that holds; else the refusal, with the smaller of what was measured."""
    if found is None:
        raise refusal
    if bench.holds(found[1]):
        return found
    measured = [each for each in (found[1].measured_peak_bytes, refusal.needed_bytes) if each is not None]
    raise _refused(bench, refusal, min(measured, default=None))


def _found(error: DoesNotFit, named_bytes: int | None, varies: bool) -> str:
    if named_bytes is None:
        return error.found or "no plan at all"
    how = "promises" if varies else "was measured with"
    measured = f"the smallest plan there is {how} {format_bytes(named_bytes)}"
    reason = error.found.rpartition("; ")[2]  # the refusal may say what was measured already
    return f"{measured}; {reason}" if reason.startswith("the optimizer's step") else measured


def _use_the_room_left(
    bench: _Bench, chain: Chain, plan_for: PlanFor, plan: Plan, proof: Proof, *, must_be_faster: bool = True
) -> tuple[Plan, Proof]:
    """Plan for more than the budget, then for less and less, and take the first that is faster and holds."""
    target_bytes = bench.budget_bytes + _most_over_promised(bench.budget_bytes, plan, proof)
    for _ in range(MOST_TRIES):
        if plan.moves or plan.operators is not None or bench.job.varies or target_bytes <= plan.peak_bytes:
            break
        faster = plan_for(chain, target_bytes)
        if faster.moves or (must_be_faster and faster.seconds > (1.0 - WORTHWHILE) * plan.seconds):
            break
        found = bench.try_plan(faster)
        if found is not None and bench.holds(found):
            return faster, found
        measured = None if found is None else found.measured_peak_bytes
        over_bytes = faster.peak_bytes - bench.budget_bytes if measured is None else measured - bench.budget_bytes
        target_bytes = faster.peak_bytes - max(1, over_bytes // 2)
    return plan, proof


def _most_over_promised(budget_bytes: int, plan: Plan, proof: Proof) -> int:
    """By how much a promise may lie above what is measured: gradients of parameters and inputs are counted together."""
    spare_bytes = plan.peak_bytes - (proof.measured_peak_bytes or plan.peak_bytes)
    together_bytes = max(stage.gradient_bytes for stage in plan.chain.stages)
    return max(2 * spare_bytes, budget_bytes // 50, min(together_bytes, budget_bytes // 20))


def _aim_lower(attempt: _Attempt, budget_bytes: int, plan: Plan, proof: Proof) -> None:
    """Plan for as much less than this plan promises as was too much, so that it cannot come back."""
    measured = proof.measured_peak_bytes or 0
    attempt.num_overshoots += 1
    attempt.smallest_bytes = plan.smallest_budget_bytes
    attempt.target_bytes = min(attempt.target_bytes, plan.peak_bytes) - max(1, measured - budget_bytes)


def _keep_what_drifts(bench: _Bench, attempt: _Attempt, plan: Plan, proof: Proof) -> None:
    """Name the blocks that compute something else when they are run again, and let the next plan keep them."""
    # Where the plain step is too large, every block was compared with itself while it was profiled.
    drifting = [] if bench.job.block_by_block is not None else _drifting(bench, attempt.chain, plan.nodes)
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


def _drifting(bench: _Bench, chain: Chain, nodes: tuple[Node, ...]) -> list[int]:
    """The stages that a plan recomputes and that are not the same when each alone is recomputed."""
    recomputed = [i for node in nodes if isinstance(node, Checkpoint) for i in stages_of((node,))]
    found = []
    for index in recomputed:
        alone = tuple(
            Checkpoint(inside=(Keep(stage=i),)) if i == index else Keep(stage=i) for i in range(len(chain.stages))
        )
        with apply_nodes(bench.job.model, chain.stages, alone, is_exact=bench.job.is_exact):
            if not prove(bench.job, bench.reference, bench.state, 0, 0).same:
                found.append(index)
    return found


@refusing_sparse_tensors()
def check_budget(job: Job, budget_bytes: int) -> DoesNotFit | None:
    """Refuse a budget that is none, or a model that carries a plan; the refusal where not even parameters fit.

    From here on the job knows its budget: a profile may choose to run no step that is far above it.
    """
    if isinstance(budget_bytes, bool) or not isinstance(budget_bytes, int) or budget_bytes <= 0:
        raise UsageError("a budget must be above zero", found=repr(budget_bytes), hint="a size with a unit, as '8GiB'")
    refuse_planned(job.model)
    refuse_closures(job.optimizer)
    if not job.model.training:
        warnings.warn(
            "memfit: the model is in eval() while it is fitted: dropout and batch statistics are left out; "
            "call model.train() first if it is trained that way",
            RuntimeWarning,
            stacklevel=4,
        )
    job.limit_bytes = budget_bytes
    fixed_bytes = base_bytes_of(job, 0)
    if budget_bytes >= fixed_bytes:
        return None
    return DoesNotFit(
        f"a budget of {format_bytes(budget_bytes)} is below what is alive all the time",
        limit_bytes=budget_bytes,
        found=f"parameters, buffers and the batch alone take {format_bytes(fixed_bytes)}",
        hint="a budget well above that, a smaller batch, a lower precision or a smaller model",
    )


def with_smallest_named(below: DoesNotFit, refusal: DoesNotFit) -> DoesNotFit:
    """The refusal of a budget that not even the parameters fit into, with the smallest one that another has found."""
    if refusal.needed_bytes is None or refusal.limit_bytes != below.limit_bytes:  # it may be that memory ran out
        return below
    named = format_bytes(refusal.needed_bytes)
    found = DoesNotFit(
        below.what,
        limit_bytes=below.limit_bytes,
        needed_bytes=refusal.needed_bytes,
        found=f"{below.found}; {refusal.found}",
        hint=f"a budget of {named}, a smaller batch, a lower precision or a smaller model",
    )
    found.levers = refusal.levers
    return found
