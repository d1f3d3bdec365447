"""Finds a plan inside of blocks and between them where no plan of whole blocks holds.

The step is traced operator by operator with everything kept, and the planner that is handed in chooses which saved
tensors are dropped and made again. As everywhere, what counts is what is measured: a plan that measures too much is
planned again for the excess less, and where none promises to hold, the smallest there is is measured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from memfit.apply.operators import bytes_of
from memfit.model.step import Job
from memfit.profile.operators import trace_operators
from memfit.records.fit import Proof
from memfit.records.operators import OperatorTrace
from memfit.records.plan import Plan

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

    def try_plan(self, plan: Plan) -> Proof | None: ...
    def holds(self, proof: Proof | None) -> bool: ...


def fit_operators(bench: Bench, everything_kept: Plan, make: MakePlanner) -> tuple[Plan, Proof] | None:
    """A plan with its proof: one that holds, else the smallest there is; None where there is none of this kind."""
    if everything_kept.chain.uncalled or bench.job.varies:  # another step may run other operators
        return None
    trace = trace_operators(bench.job)
    if trace is None or not any(each.may_drop for each in trace.tensors):
        return None
    planner, input_bytes = make(trace), bytes_of(bench.job.batch)
    target_bytes = bench.budget_bytes
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
