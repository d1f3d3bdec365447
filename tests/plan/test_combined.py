"""Is recomputing and moving together the best of all, never below its bound, and never worse than either alone?"""

from __future__ import annotations

from math import inf
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memfit.plan.case import Case, judge
from memfit.plan.offload.combined import LeastCombined, _Descent, combined, combined_bound
from memfit.plan.planners import PLANNERS, smallest_budget
from memfit.records.plan import Link
from memfit.testing.made_records.chains import odd_chain, odd_link, rough_chain
from memfit.testing.oracles.plan_search import best_of_all

RANDOM = st.integers(0, 2**32).map(Random)


def case_of(random: Random, num_stages: int) -> Case:
    chain, link = odd_chain(random, num_stages), odd_link(random)
    case = Case(chain, 1, link)
    low, high = smallest_budget(case, PLANNERS["combined"]), case.nested.plain.peak_bytes
    if random.random() < 0.4:
        return case.with_budget(max(1, low + random.randint(-1, 1)))
    return case.with_budget(random.randint(max(1, low - 1), high + 1))


def seconds_of(case: Case, proposal) -> float:
    outcome = None if proposal is None else judge(case, proposal)
    return inf if outcome is None else outcome.replayed.seconds


@given(RANDOM, st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_the_answer_is_the_best_of_all_plans_with_all_moves(random: Random, num_stages: int):
    case = case_of(random, num_stages)
    assert case.link is not None
    expected = best_of_all(case.chain, case.link, case.budget_bytes, to_the_end=num_stages <= 3)
    found = seconds_of(case, combined(case))
    assert found == pytest.approx(inf if expected is None else expected)
    if case.link.capacity_bytes is None:
        smallest = smallest_budget(case, PLANNERS["combined"])
        assert (found < inf) == (case.budget_bytes >= smallest)
        assert LeastCombined(case.sizes).peak_bytes == smallest
    if found < inf:
        assert combined_bound(case) <= found + 1e-9


@given(RANDOM, st.integers(2, 4))
@settings(max_examples=40, deadline=None)
def test_descent_finds_a_plan_whenever_there_is_one_and_never_beats_the_best(random: Random, num_stages: int):
    case = case_of(random, num_stages)
    assert case.link is not None
    case.link = msgspec.structs.replace(case.link, capacity_bytes=None)
    best = seconds_of(case, combined(case))
    descent = seconds_of(case, _Descent(case, case.link).run())
    assert descent >= best - 1e-9
    assert (descent < inf) == (best < inf)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("share", [0.2, 0.5])
def test_on_longer_chains_both_together_are_no_slower_than_either_alone(seed: int, share: float):
    link = Link(name="host", out_bytes_per_second=2e6, in_bytes_per_second=2e6)
    case = Case(rough_chain(Random(seed), 14), 1, link)
    low, high = case.nested.least.peak_bytes, case.nested.plain.peak_bytes
    case = case.with_budget(round(low + (high - low) * share))
    found = {name: seconds_of(case, PLANNERS[name].propose(case)) for name in ("nested", "offload", "combined", "POFO")}
    assert found["combined"] <= min(found.values()) * (1 + 1e-12) < inf
    assert combined_bound(case) <= found["combined"]
