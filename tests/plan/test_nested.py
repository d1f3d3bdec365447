"""Are nested plans the best there are, do they fit, and do bounds hold, whatever the rounding?"""

from __future__ import annotations

from itertools import pairwise
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memfit.plan.problem.program import lower
from memfit.plan.problem.simulator import simulate
from memfit.plan.problem.sizes import Sizes
from memfit.plan.recompute.nested import LeastMemory, NestedPlanner
from memfit.plan.recompute.nested_table import NestedTable
from memfit.records.plan import Chain, Stage
from memfit.testing.made_records.chains import even_chain, odd_chain, rough_chain
from memfit.testing.oracles.plan_search import best_nested, best_unrestricted

RANDOM = st.integers(0, 2**32).map(Random)


def best_within(edge: list[tuple[int, float]], budget_bytes: int) -> float | None:
    return min((seconds for peak, seconds in edge if peak <= budget_bytes), default=None)


@given(RANDOM, st.integers(1, 5))
@settings(max_examples=80, deadline=None)
def test_the_answer_is_the_best_of_all_nested_plans_at_every_budget(random: Random, num_stages: int):
    chain = odd_chain(random, num_stages)
    edge = best_nested(chain, to_the_end=num_stages <= 4)
    planner = NestedPlanner.of(chain)
    assert planner.least.peak_bytes == edge[0][0] == LeastMemory(planner.sizes).peak_bytes
    for budget_bytes in range(edge[0][0] - 1, edge[-1][0] + 2):
        found, expected = planner.best(budget_bytes), best_within(edge, budget_bytes)
        assert (found.seconds if found else None) == pytest.approx(expected)
        assert planner.bound_seconds(budget_bytes) == pytest.approx(expected if found else float("inf"))


@pytest.mark.parametrize("transient_bytes", [0, 20, 60])
def test_every_entry_of_a_table_with_slots_of_a_byte_is_exact_also_where_a_sweep_needs_the_most(transient_bytes: int):
    sizes = [(1, 5, transient_bytes), (25, 27, 0), (1, 2, 0), (1, 50, 0)]
    stages = tuple(
        Stage(
            name=f"s{k}", forward_seconds=k + 1, backward_seconds=1, output_bytes=output, saved_bytes=saved,
            forward_transient_bytes=transient,
        )
        for k, (output, saved, transient) in enumerate(sizes)
    )  # fmt: skip
    chain = Chain(stages=stages)
    edge, table = best_nested(chain), NestedTable(Sizes(chain), 1, 120)
    for slots in range(121):
        expected = best_within(edge, slots)
        assert table.seconds[slots] == (float("inf") if expected is None else expected)
        nodes = table.plan(slots)
        assert (nodes is None) == (expected is None)
        if nodes is not None:
            replayed = simulate(lower(chain, nodes))
            assert replayed.seconds == expected
            assert replayed.peak_bytes <= slots


@given(RANDOM, st.integers(3, 7))
@settings(max_examples=60, deadline=None)
def test_the_plan_read_from_any_entry_takes_as_long_and_as_much_as_the_entry_says(random: Random, num_stages: int):
    chain = odd_chain(random, num_stages)
    stages = tuple(
        msgspec.structs.replace(stage, forward_transient_bytes=random.choice([0, 0, 25])) for stage in chain.stages
    )
    sizes = Sizes(msgspec.structs.replace(chain, stages=stages, update_transient_bytes=0))
    table = NestedTable(sizes, 1, 100)
    for slots in range(101):
        nodes = table.plan(slots)
        if nodes is not None:
            replayed = simulate(lower(sizes.chain, nodes))
            assert replayed.seconds - chain.update_seconds == table.seconds[slots]
            assert replayed.peak_bytes <= sizes.base_bytes + slots


@given(RANDOM, st.integers(2, 5), st.integers(6, 40))
@settings(max_examples=40, deadline=None)
def test_rounding_never_breaks_the_budget_nor_the_bound(random: Random, num_stages: int, num_slots: int):
    chain = rough_chain(random, num_stages)
    edge = best_nested(chain)
    planner = NestedPlanner.of(chain, num_slots)
    for share in (0.0, 0.2, 0.5, 0.8, 0.99):
        budget_bytes = round(edge[0][0] + share * (edge[-1][0] - edge[0][0]))
        found, expected = planner.best(budget_bytes), best_within(edge, budget_bytes)
        assert found is not None
        assert expected is not None
        assert simulate(lower(chain, found.nodes)).peak_bytes == found.peak_bytes <= budget_bytes
        assert found.seconds >= expected - 1e-9
        assert planner.bound_seconds(budget_bytes) <= expected + 1e-9


@given(RANDOM, st.integers(8, 24), st.integers(20, 80))
@settings(max_examples=12, deadline=None)
def test_more_memory_is_never_slower(random: Random, num_stages: int, num_slots: int):
    planner = NestedPlanner.of(rough_chain(random, num_stages), num_slots)
    low, high = planner.least.peak_bytes, planner.plain.peak_bytes
    budgets = sorted(random.randint(low, high) for _ in range(25))
    seconds = [found.seconds for budget in budgets if (found := planner.best(budget)) is not None]
    assert len(seconds) == len(budgets)
    assert all(more <= less * (1 + 1e-12) for less, more in pairwise(seconds))


@pytest.mark.parametrize("seed", range(3))
def test_long_chains_keep_their_promises_too(seed: int):
    chain = rough_chain(Random(seed), 60)
    planner = NestedPlanner.of(chain)
    for share in (0.15, 0.4, 0.8):
        budget_bytes = round(planner.plain.peak_bytes * share)
        found = planner.best(budget_bytes)
        assert found is not None
        replayed = simulate(lower(chain, found.nodes))
        assert replayed.peak_bytes == found.peak_bytes <= budget_bytes
        assert replayed.seconds == pytest.approx(found.seconds)
        assert planner.bound_seconds(budget_bytes) <= found.seconds <= 1.05 * planner.bound_seconds(budget_bytes)


def test_single_precision_tables_of_very_long_chains_give_valid_plans_and_bounds():
    chain = even_chain(170)
    planner = NestedPlanner.of(chain, 60)
    budget_bytes = planner.least.peak_bytes + (planner.plain.peak_bytes - planner.least.peak_bytes) // 3
    found = planner.best(budget_bytes)
    assert found is not None
    assert simulate(lower(chain, found.nodes)).peak_bytes <= budget_bytes
    assert planner.bound_seconds(budget_bytes) <= found.seconds


def test_below_the_smallest_peak_there_is_no_plan_and_at_it_there_is_one():
    planner = NestedPlanner.of(even_chain(12))
    smallest = planner.least.peak_bytes
    assert planner.best(smallest - 1) is None
    found = planner.best(smallest)
    assert found is not None
    assert found.peak_bytes == smallest


def test_the_frontier_falls_from_the_smallest_peak_to_everything_kept():
    planner = NestedPlanner.of(even_chain(12))
    points = planner.frontier(8)
    assert points[0].peak_bytes == planner.least.peak_bytes
    assert points[-1] == planner.plain
    assert all(a.seconds > b.seconds and a.peak_bytes < b.peak_bytes for a, b in pairwise(points))


@given(RANDOM, st.integers(1, 4))
@settings(max_examples=25, deadline=None)
def test_the_best_plan_of_any_kind_is_at_most_as_slow_as_the_nested_one(random: Random, num_stages: int):
    chain = odd_chain(random, num_stages, options=False, rules=False)
    planner = NestedPlanner.of(chain)
    for budget_bytes in (planner.least.peak_bytes - 1, planner.least.peak_bytes, planner.plain.peak_bytes):
        found, best = planner.best(budget_bytes), best_unrestricted(chain, budget_bytes)
        if found is not None:
            assert best is not None
            assert best <= found.seconds
    assert planner.plain.seconds == best_unrestricted(chain, planner.plain.peak_bytes)


def test_options_of_a_stage_are_used_where_they_pay():
    chain = even_chain(8)
    planner = NestedPlanner.of(chain)
    with_options = planner.best(planner.plain.peak_bytes * 3 // 4)
    stages = tuple(type(s)(**{f: getattr(s, f) for f in s.__struct_fields__ if f != "options"}) for s in chain.stages)
    plain = Chain(stages=stages, input_bytes=chain.input_bytes, fixed=chain.fixed)
    without = NestedPlanner.of(plain).best(planner.plain.peak_bytes * 3 // 4)
    assert with_options is not None
    assert without is not None
    assert with_options.seconds < without.seconds
