"""The fastest recomputing plan of all planners for a case.

The table of nested plans rounds sizes, and its answer may lie above the optimum by what rounding hides. Where it does
not reach its own lower bound, the published rules are asked as well, each with all of its settings. Every source alone
is never slower with more memory, so neither is the best of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from memfit.plan.case import Case, PlanProposal
from memfit.plan.recompute.nested import Found
from memfit.plan.recompute.revolve import every_schedule
from memfit.plan.recompute.rules import best_segments, every_block, greedy_segments, sqrt_segments
from memfit.records.plan import Node

CLOSED = 1e-9
"""An answer this near to its lower bound is the best there is."""


def best_recompute(case: Case) -> PlanProposal | None:
    """The fastest nested plan that is known to fit; None when there is none."""
    best = case.nested.best(case.budget_bytes)
    if best is None:
        return None
    if best.seconds > (1.0 + CLOSED) * case.nested.bound_seconds(case.budget_bytes):
        best = min((best, *_fitting(case, best.seconds)), key=lambda found: found.seconds)
    return PlanProposal(best.nodes)


def _fitting(case: Case, seconds: float) -> Iterator[Found]:
    for nodes in _proposed(case, seconds):
        found = case.nested.found(nodes)
        if found.peak_bytes <= case.budget_bytes:
            yield found


def _proposed(case: Case, seconds: float) -> Iterator[tuple[Node, ...]]:
    """What the rules propose; schedules of Revolve only where the quickest of them is below so many seconds."""
    for rule in (every_block, sqrt_segments, best_segments, greedy_segments):
        proposal = rule(case)
        if proposal is not None:
            yield proposal.nodes
    schedules = (nodes for _, nodes in every_schedule(case))
    quickest = next(schedules)  # it has the most snapshots and runs every stage once more at most
    if case.nested.found(quickest).seconds < seconds:
        yield quickest
        yield from schedules
