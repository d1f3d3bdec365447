"""Is a plan never slower than a published rule that fits, whatever the rounding, and never slower with more memory?"""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memfit.plan.case import Case, judge
from memfit.plan.planners import PLANNERS
from memfit.plan.recompute.best_known import best_recompute
from memfit.plan.recompute.nested import NestedPlanner
from memfit.testing.made_records.chains import odd_chain, odd_link, rough_chain

RANDOM = st.integers(0, 2**32).map(Random)
RECOMPUTING = [name for name, planner in PLANNERS.items() if planner.family == "checkpoint"]
NEAR = 1.0 + 1e-9


def seconds_of(case: Case, name: str) -> float | None:
    proposal = PLANNERS[name].propose(case)
    outcome = None if proposal is None else judge(case, proposal)
    return None if outcome is None else outcome.replayed.seconds


def coarse_case(random: Random, num_stages: int, num_slots: int, share: float) -> Case:
    case = Case(rough_chain(random, num_stages), 1)
    low, high = case.nested.least.peak_bytes, case.nested.plain.peak_bytes
    case = case.with_budget(round(low + share * (high - low)))
    case.nested = NestedPlanner.of(case.chain, num_slots)
    return case


@given(RANDOM, st.integers(1, 14), st.sampled_from([4, 12, 40, 500]), st.floats(0.0, 1.0))
@settings(max_examples=120, deadline=None)
def test_no_rule_that_fits_is_faster_however_coarse_the_slots(
    random: Random, num_stages: int, num_slots: int, share: float
):
    case = coarse_case(random, num_stages, num_slots, share)
    ours = seconds_of(case, "nested")
    assert ours is not None
    for name in RECOMPUTING:
        theirs = seconds_of(case, name)
        assert theirs is None or ours <= theirs * NEAR, name


@given(RANDOM, st.integers(2, 9), st.floats(0.0, 1.0))
@settings(max_examples=40, deadline=None)
def test_no_rule_that_fits_is_faster_where_bytes_may_move(random: Random, num_stages: int, share: float):
    chain, link = odd_chain(random, num_stages), odd_link(random)
    case = Case(chain, 1, link)
    low, high = case.nested.least.peak_bytes, case.nested.plain.peak_bytes
    case = case.with_budget(round(low + share * (high - low)))
    ours = seconds_of(case, "combined")
    assert ours is not None
    for name in PLANNERS:
        theirs = None if name == "revolve with disk" else seconds_of(case, name)
        assert theirs is None or ours <= theirs * NEAR, name


@given(RANDOM, st.integers(2, 10), st.sampled_from([4, 12, 40]))
@settings(max_examples=60, deadline=None)
def test_more_memory_is_never_slower_however_coarse_the_slots(random: Random, num_stages: int, num_slots: int):
    case = coarse_case(random, num_stages, num_slots, 0.0)
    low, high = case.budget_bytes, case.nested.plain.peak_bytes
    taken = []
    for budget_bytes in sorted({low + (high - low) * k // 12 for k in range(13)}):
        proposal = best_recompute(case.with_budget(budget_bytes))
        assert proposal is not None
        taken.append(case.nested.found(proposal.nodes).seconds)
    assert all(more <= less * NEAR for less, more in pairwise(taken))


def test_rules_are_asked_only_where_the_table_leaves_a_gap(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("memfit.plan.recompute.best_known._proposed", None)  # whoever calls it fails
    case = Case(odd_chain(Random(3), 5), 1)  # sizes of a few bytes: no rounding, no gap
    for budget_bytes in range(case.nested.least.peak_bytes, case.nested.plain.peak_bytes + 1):
        assert best_recompute(case.with_budget(budget_bytes)) is not None
