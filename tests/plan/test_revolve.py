"""Does Revolve repeat as few steps as the theory says, also with a disk, and are its schedules runnable?"""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memfit.plan.revolve import Action, DiskCosts, DiskRevolve, advances, revolve_nodes
from memfit.records.plan import Checkpoint, Node, stages_of


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
