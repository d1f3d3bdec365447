"""Does Revolve repeat as few steps as the theory says, also with a disk, and are its schedules runnable?"""

from __future__ import annotations

from functools import cache
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memfit.plan.case import Case, judge
from memfit.plan.planners import compare_planners
from memfit.plan.recompute.revolve import Action, DiskCosts, DiskRevolve, advances, disk_revolve, revolve, revolve_nodes
from memfit.records.plan import Chain, Checkpoint, Keep, Link, Node, stages_of
from memfit.testing.made_records.chains import even_chain, odd_chain


@cache
def by_recurrence(num_steps: int, num_snapshots: int) -> int:
    if num_steps == 1:
        return 0
    if num_snapshots == 1:
        return num_steps * (num_steps - 1) // 2
    parts = range(1, num_steps)
    return min(k + by_recurrence(num_steps - k, num_snapshots - 1) + by_recurrence(k, num_snapshots) for k in parts)


def repeated_steps(nodes: tuple[Node, ...]) -> int:
    inner = [node for node in nodes if isinstance(node, Checkpoint)]
    return sum(len(list(stages_of(node.inside))) + repeated_steps(node.inside) for node in inner)


@given(st.integers(1, 60), st.integers(1, 10))
@settings(max_examples=150, deadline=None)
def test_closed_form_recurrence_and_schedule_agree(num_steps: int, num_snapshots: int):
    expected = by_recurrence(num_steps, num_snapshots)
    assert advances(num_steps, num_snapshots) == expected
    nodes = revolve_nodes(0, num_steps, num_snapshots)
    assert repeated_steps(nodes) == expected
    assert list(stages_of(nodes)) == list(range(num_steps))


def most_held(nodes: tuple[Node, ...]) -> int:
    """How many states are held at once, the one the nodes start from included."""
    deepest = 1
    for position, node in enumerate(nodes):
        if isinstance(node, Checkpoint):
            deepest = max(deepest, position + most_held(node.inside))
    return max(deepest, len(nodes) - 1)  # what the last step starts from is the state at hand, not a snapshot


@given(st.integers(1, 60), st.integers(2, 10))
@settings(max_examples=100, deadline=None)
def test_a_schedule_never_holds_more_states_than_it_has_snapshots(num_steps: int, num_snapshots: int):
    assert most_held(revolve_nodes(0, num_steps, num_snapshots)) <= num_snapshots


def run_actions(actions: list[Action], num_steps: int, num_snapshots: int, costs: DiskCosts) -> float:
    """Act a schedule out; fails when it uses a state it does not have or holds too many in memory."""
    memory, disk, state, seconds = set(), set(), 0, 0.0
    waiting = list(range(num_steps))
    for action in actions:
        if action.what == "advance":
            assert state == action.at
            seconds += (action.to - action.at) * costs.step_seconds
            state = action.to
        elif action.what == "store":
            assert state == action.at
            (memory if action.place == "memory" else disk).add(state)
            seconds += costs.write_seconds if action.place == "disk" else 0.0
        elif action.what == "load":
            assert action.at in (memory if action.place == "memory" else disk)
            seconds += costs.read_seconds if action.place == "disk" else 0.0
            state = action.at
        else:
            assert state == action.at == waiting.pop()
            memory = {held for held in memory if held < action.at}
            disk = {held for held in disk if held < action.at}
        assert len(memory) <= num_snapshots
    assert not waiting
    return seconds


@given(st.integers(1, 24), st.integers(1, 5), st.sampled_from([0.0, 0.5, 2.0, 7.0]), st.sampled_from([0.0, 1.0, 5.0]))
@settings(max_examples=80, deadline=None)
def test_schedules_with_a_disk_run_and_cost_what_they_say(
    num_steps: int, num_snapshots: int, write: float, read: float
):
    costs = DiskCosts(1.0, write, read)
    planner = DiskRevolve(costs)
    seconds = planner.seconds(num_steps, num_snapshots)
    assert run_actions(planner.schedule(num_steps, num_snapshots), num_steps, num_snapshots, costs) == seconds
    assert seconds <= advances(num_steps, num_snapshots)


def test_a_free_disk_needs_one_sweep_and_a_dear_one_is_not_used():
    assert DiskRevolve(DiskCosts(1.0, 0.0, 0.0)).seconds(20, 1) == 19
    assert DiskRevolve(DiskCosts(1.0, 1e6, 1e6)).seconds(20, 3) == advances(20, 3)


@pytest.mark.parametrize(("num_steps", "num_snapshots", "forwards"), [(50, 3, 230), (50, 5, 172), (50, 10, 138)])
def test_published_counts(num_steps: int, num_snapshots: int, forwards: int):
    assert advances(num_steps, num_snapshots) + num_steps == forwards


# ---- chains with stages that may run only once ---------------------------------------------------------------------


def with_glue(chain: Chain, *places: int) -> Chain:
    """The same chain with some stages that may run only once."""
    stages = [
        msgspec.structs.replace(stage, recomputable=index not in places, joins_next=index not in places)
        for index, stage in enumerate(chain.stages)
    ]
    return msgspec.structs.replace(chain, stages=tuple(stages))


def test_without_such_stages_it_is_the_schedule_of_the_theory():
    chain = even_chain(9)
    assert revolve(Case(chain, 10**15)).nodes == revolve_nodes(0, 9, 9)


def test_what_may_run_only_once_is_kept_and_the_runs_between_are_reversed_on_their_own():
    chain = with_glue(even_chain(12), 5, 11)
    case = Case(chain, 1).with_budget(Case(chain, 1).nested.plain.peak_bytes * 3 // 4)
    nodes = revolve(case).nodes
    assert list(stages_of(nodes)) == list(range(12))
    assert {Keep(stage=5), Keep(stage=11)} <= set(nodes)
    assert judge(case, revolve(case)) is not None


@given(random=st.integers(0, 2**32).map(Random), num_stages=st.integers(1, 8), share=st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_every_schedule_may_be_run_and_what_is_too_large_says_how_large(random: Random, num_stages: int, share: float):
    chain = odd_chain(random, num_stages)
    start = Case(chain, 1, Link(name="disk", out_bytes_per_second=1.0, in_bytes_per_second=1.0))
    low, high = start.nested.least.peak_bytes, start.nested.plain.peak_bytes
    case = start.with_budget(max(1, round(low + share * (high - low))))
    for proposal in (revolve(case), disk_revolve(case)):
        if proposal is not None:
            assert list(stages_of(proposal.nodes)) == list(range(num_stages))
            _check_rules(chain, proposal.nodes)
    found = compare_planners(chain, case.budget_bytes, names=["revolve"])[0]
    assert found.peak_bytes is not None
    assert found.fits == (found.peak_bytes <= case.budget_bytes)


def _check_rules(chain: Chain, nodes: tuple[Node, ...]) -> None:
    for node in nodes:
        if isinstance(node, Checkpoint):
            inside = list(stages_of(node.inside))
            assert all(chain.stages[stage].recomputable for stage in inside)
            assert all(chain.stages[stage].joins_next for stage in inside[:-1])
            _check_rules(chain, node.inside)


def test_what_it_needs_at_least_is_the_smallest_peak_of_all_numbers_of_snapshots():
    chain = even_chain(9)
    case = Case(chain, chain.fixed.total_bytes + 1)
    peaks = [case.sizes.peak_bytes(revolve_nodes(0, 9, num_snapshots)) for num_snapshots in range(1, 10)]
    found = compare_planners(chain, case.budget_bytes, names=["revolve"])[0]
    assert found.peak_bytes == min(peaks) < max(peaks)
