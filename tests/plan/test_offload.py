"""Are the chosen moves the best there are, never below the bound, and never slower with more memory?"""

from __future__ import annotations

from math import inf
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memfit.plan.case import Case, judge, moved_nodes
from memfit.plan.offload.fluid import FluidProgram, fraction_bound, offload_bound
from memfit.plan.offload.moves import MoveSearch
from memfit.plan.offload.offload import offload, offload_exact, offload_fluid, offload_prefix
from memfit.plan.problem.program import lower
from memfit.records.plan import Chain, Link, Stage
from memfit.testing.made_records.chains import odd_chain, odd_link, rough_chain
from memfit.testing.oracles.plan_search import best_moving

RANDOM = st.integers(0, 2**32).map(Random)


def case_of(random: Random, num_stages: int, *, limited: bool = True) -> Case:
    chain, link = odd_chain(random, num_stages, options=False), odd_link(random, limited=limited)
    peak = Case(chain, 1).nested.found(Case(chain, 1).kept).peak_bytes
    return Case(chain, max(1, peak - random.randint(0, 30)), link)


def seconds_of(case: Case, proposal) -> float:
    outcome = None if proposal is None else judge(case, proposal)
    return inf if outcome is None else outcome.replayed.seconds


@given(RANDOM, st.integers(1, 7))
@settings(max_examples=60, deadline=None)
def test_the_answer_is_the_best_of_all_sets(random: Random, num_stages: int):
    case = case_of(random, num_stages)
    assert case.link is not None
    expected = best_moving(case.chain, case.link, case.budget_bytes)
    found = seconds_of(case, offload(case))
    assert found == pytest.approx(inf if expected is None else expected)
    assert seconds_of(case, offload_exact(case)) == found


@given(RANDOM, st.integers(2, 9), st.integers(8, 40))
@settings(max_examples=60, deadline=None)
def test_no_set_is_faster_than_the_bounds(random: Random, num_stages: int, levels: int):
    case = case_of(random, num_stages)
    assert case.link is not None
    found = seconds_of(case, offload(case))
    assert offload_bound(case.sizes, case.link, case.budget_bytes, levels) <= found + 1e-9
    update = case.chain.update_seconds
    assert fraction_bound(case.sizes, case.link, case.budget_bytes) + update <= found + 1e-9


@given(RANDOM, st.integers(2, 8))
@settings(max_examples=40, deadline=None)
def test_more_memory_is_never_slower_for_the_same_set_nor_for_the_best_one(random: Random, num_stages: int):
    case = case_of(random, num_stages)
    wider = case.with_budget(case.budget_bytes + random.randint(1, 8))
    assert seconds_of(wider, offload(wider)) <= seconds_of(case, offload(case))
    proposal = offload_prefix(case)
    if proposal is not None:
        assert seconds_of(wider, proposal) <= seconds_of(case, proposal)


@pytest.mark.parametrize("seed", range(4))
def test_descent_on_longer_chains_is_no_worse_than_both_heuristics_and_near_the_bound(seed: int):
    chain = rough_chain(Random(seed), 30)
    link = Link(name="host", out_bytes_per_second=3e6, in_bytes_per_second=3e6)
    case = Case(chain, 1, link)
    base = case.sizes.base_bytes
    case = case.with_budget(base + round((case.nested.found(case.kept).peak_bytes - base) * 0.4))
    best = seconds_of(case, offload(case))
    assert best <= min(seconds_of(case, offload_prefix(case)), seconds_of(case, offload_fluid(case)))
    assert offload_bound(case.sizes, link, case.budget_bytes) <= best
    assert best < 1.15 * fraction_bound(case.sizes, link, case.budget_bytes)


def test_the_fluid_guess_moves_nothing_when_everything_fits_and_something_when_not():
    chain = rough_chain(Random(1), 12)
    link = Link(name="host", out_bytes_per_second=1e7, in_bytes_per_second=1e7)
    case = Case(chain, 1, link)
    peak = case.nested.found(case.kept).peak_bytes

    def guess(budget_bytes: int) -> list[int]:
        nodes = FluidProgram(case.sizes, link, budget_bytes, levels=24, table=None, round_down=False).nodes()
        assert nodes is not None
        return moved_nodes(nodes)

    assert guess(peak * 2) == []
    assert guess(peak // 2)


def test_when_everything_must_move_it_is_moved_and_the_bound_is_near():
    stage = Stage(name="s", forward_seconds=1, backward_seconds=1, output_bytes=0, saved_bytes=10)
    chain = Chain(stages=(stage, msgspec.structs.replace(stage, saved_bytes=0), stage))
    link = Link(name="host", out_bytes_per_second=1e9, in_bytes_per_second=0.5)
    case = Case(chain, 15, link)
    proposal = offload_exact(case)
    assert proposal is not None
    assert moved_nodes(proposal.nodes) == [0]
    assert seconds_of(case, proposal) == pytest.approx(6 + 10 / 0.5)
    bound = offload_bound(case.sizes, link, case.budget_bytes, levels=61)
    assert 0.9 * (6 + 10 / 0.5) < bound <= 6 + 10 / 0.5


def test_a_full_link_limits_what_is_moved():
    chain: Chain = rough_chain(Random(2), 8)
    full = sum(stage.saved_bytes for stage in chain.stages[:2])
    link = Link(name="disk", out_bytes_per_second=1e7, in_bytes_per_second=1e7, capacity_bytes=full)
    program = lower(chain, Case(chain, 1).kept)
    search = MoveSearch(program, link, max(program.memory_bytes()))
    assert search.seconds((0, 1)) < inf
    assert search.seconds((0, 1, 2)) == inf
