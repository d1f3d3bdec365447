"""Finds a plan inside of blocks and between them where no plan of whole blocks holds.

The step is traced operator by operator with everything kept, and the planner that is handed in chooses which saved
tensors are dropped and made again. As everywhere, what counts is what is measured: a plan that measures too much is
planned again for the excess less, and where none promises to hold, the smallest there is is measured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from memfit.apply.operators import bytes_of
from memfit.model.step import Job
from memfit.profile.operators import trace_operators
from memfit.records.fit import Proof
from memfit.records.operators import OperatorTrace
from memfit.records.plan import Chain, Plan

MOST_ROUNDS = 2


class OperatorPlanning(Protocol):
    """Plans one traced step."""

    def plan(self, everything_kept: Plan, before_bytes: int, budget_bytes: int, input_bytes: int) -> Plan | None: ...
    def smallest(self, everything_kept: Plan, before_bytes: int, input_bytes: int) -> Plan: ...


MakePlanner = Callable[[OperatorTrace], OperatorPlanning]


class Bench(Protocol):
    """Where plans are tried."""

    job: Job
    base_bytes: int
    budget_bytes: int
    disk: str | None
    """The folder to which plans may move tensors."""

    def try_plan(self, plan: Plan) -> Proof | None: ...
    def holds(self, proof: Proof | None) -> bool: ...


def planner_of(bench: Bench, everything_kept: Plan, make: MakePlanner) -> OperatorPlanning | None:
    """What plans the step of a bench operator by operator; None where that cannot be done."""
    if everything_kept.chain.uncalled or bench.job.varies:  # another step may run other operators
        return None
    trace = trace_operators(bench.job)
    if trace is None:
        return None
    moves = bench.disk is not None
    if not any(each.may_drop or (moves and each.may_move) for each in trace.tensors):
        return None
    return make(_in_seconds_of(everything_kept.chain, trace))


def _in_seconds_of(chain: Chain, trace: OperatorTrace) -> OperatorTrace:
    """A trace whose operators take what the forward of a chain took, so that plans of both kinds can be compared.

    The least of many operators alike is less than what one takes on a machine that has other work.
    """
    own_seconds = sum(each.seconds for each in trace.operators)
    factor = sum(stage.forward_seconds for stage in chain.stages) / max(own_seconds, 1e-9)
    operators = [msgspec.structs.replace(each, seconds=factor * each.seconds) for each in trace.operators]
    return msgspec.structs.replace(trace, operators=tuple(operators)) if factor > 1.0 else trace


def faster_inside(
    bench: Bench, everything_kept: Plan, planner: OperatorPlanning, seconds: float
) -> tuple[Plan, Proof] | None:
    """A plan that holds and promises to take fewer seconds; None where there is none."""
    input_bytes = bytes_of(bench.job.batch)
    plan = planner.plan(everything_kept, bench.base_bytes, bench.budget_bytes, input_bytes)
    if plan is None or plan.seconds >= seconds:
        return None
    proof = bench.try_plan(plan)
    return None if proof is None or not bench.holds(proof) else (plan, proof)


def fit_operators(bench: Bench, everything_kept: Plan, planner: OperatorPlanning) -> tuple[Plan, Proof] | None:
    """A plan with its proof: one that holds, else the smallest there is; None where none computes the same."""
    target_bytes, input_bytes = bench.budget_bytes, bytes_of(bench.job.batch)
    for _ in range(MOST_ROUNDS):
        plan = planner.plan(everything_kept, bench.base_bytes, target_bytes, input_bytes)
        if plan is None:
            break
        proof = bench.try_plan(plan)
        if proof is not None and bench.holds(proof):
            return plan, proof
        if proof is None or not proof.same:
            return None
        over_bytes = (proof.measured_peak_bytes or 0) - bench.budget_bytes
        target_bytes = min(target_bytes, plan.peak_bytes) - max(1, over_bytes)
    smallest = planner.smallest(everything_kept, bench.base_bytes, input_bytes)
    proof = bench.try_plan(smallest)
    return None if proof is None or not proof.same else (smallest, proof)
