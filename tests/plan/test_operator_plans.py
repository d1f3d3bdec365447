"""Is a trace replayed as the backward would run it, and is what the search finds never worse than it says?"""

from __future__ import annotations

from itertools import chain, combinations, product

import msgspec
import pytest

from memfit.plan.operators import OperatorPlanner, ReplayedOperators
from memfit.records.operators import Operator, OperatorTrace, TracedTensor
from memfit.records.plan import Link

SIZES = (100, 100, 300, 100)


def a_chain() -> OperatorTrace:
    """Four operators in a row, each reading the tensor before it; the backward uses the four tensors, last first.

    A backward holds a gradient as large as its tensor while it runs. Moments: four operators, the end of the forward,
    the turn, four uses.
    """
    count = len(SIZES)
    operators = [
        Operator(name=f"aten::op{n}", seconds=1.0, reads=(n - 1,) if n else (), makes=(n,)) for n in range(count)
    ]
    tensors = [
        TracedTensor(
            num_bytes=size, operator=n, writers=(n,), is_saved=True, may_drop=n > 0, may_move=True,
            gone=min(n + 2, count), used=count + 2 + (count - 1 - n), ends=count + 2 + (count - 1 - n), depth=1,
        )
        for n, size in enumerate(SIZES)
    ]  # fmt: skip
    made = [sum(SIZES[:n]) for n in range(count + 1)]
    left = [sum(SIZES[: n + 1]) for n in reversed(range(count))]
    peaks = [*made[1:], made[-1], made[-1], *(total + SIZES[n] for total, n in zip(left, (3, 2, 1, 0), strict=True))]
    starts = [*made[:-1], made[-1], made[-1], *left]
    labels = [f"moment {n}" for n in range(len(peaks))]
    return OperatorTrace(
        operators=tuple(operators), tensors=tuple(tensors), starts=tuple(starts), peaks=tuple(peaks),
        labels=tuple(labels),
    )  # fmt: skip


def all_choices(planner: OperatorPlanner) -> list[ReplayedOperators]:
    may = [n for n, each in enumerate(planner.trace.tensors) if each.may_drop]
    sets = [frozenset(s) for s in chain.from_iterable(combinations(may, k) for k in range(len(may) + 1))]
    return [
        planner.replayer.replay(dropped, passing)
        for dropped in sets
        for passing in map(
            frozenset, chain.from_iterable(combinations(sorted(dropped), k) for k in range(len(dropped) + 1))
        )
    ]


def test_a_dropped_tensor_is_gone_until_the_backward_asks_for_it():
    planner = OperatorPlanner(a_chain())
    assert planner.plain.peak_bytes == 500 + 300
    found = planner.replayer.replay(frozenset({2}))
    # gone from the end of the forward, made again at its own use from the tensor before it
    assert list(found.levels[:4]) == [100, 200, 500, 600]
    assert list(found.levels[4:6]) == [300, 300]
    assert found.levels[6] == 700 - 300
    assert found.levels[7] == 500 + 300
    assert (found.made_again, found.repeated, found.sources) == ([(7, 2)], {2}, {1})


def test_what_is_made_on_the_way_stays_unless_it_passes():
    planner = OperatorPlanner(a_chain())
    stays = planner.replayer.replay(frozenset({1, 2}))
    passes = planner.replayer.replay(frozenset({1, 2}), frozenset({1}))
    assert sorted(stays.made_again) == [(7, 1), (7, 2)]
    assert sorted(passes.made_again) == [(7, 2), (8, 1)]
    assert passes.levels[7] == stays.levels[7] - SIZES[1]
    assert passes.seconds == pytest.approx(stays.seconds + 1.0, rel=1e-3)


def test_the_search_finds_the_lowest_peak_of_a_chain_and_keeps_to_every_budget():
    planner = OperatorPlanner(a_chain())
    every = all_choices(planner)
    lowest = min(each.peak_bytes for each in every)
    assert planner.least().peak_bytes == lowest
    for budget_bytes in sorted({each.peak_bytes for each in every}):
        found = planner.within(budget_bytes)
        assert found is not None
        assert found.peak_bytes <= budget_bytes
    assert planner.within(lowest - 1) is None


def test_what_was_made_again_stays_until_the_last_that_is_made_from_it():
    """The backward uses the second tensor first and the third at last; the third is made from the second."""
    operators = [Operator(name=f"aten::op{n}", seconds=1.0, reads=(n - 1,) if n else (), makes=(n,)) for n in range(3)]
    uses = {0: 7, 1: 5, 2: 8}
    tensors = [
        TracedTensor(
            num_bytes=100, operator=n, writers=(n,), is_saved=True, may_drop=n > 0, gone=3, used=at, ends=at, depth=1
        )
        for n, at in uses.items()
    ]
    starts = (0, 100, 200, 300, 300, 300, 200, 200, 100)
    peaks = (100, 200, 300, 300, 300, 300, 200, 200, 100)
    labels = tuple(f"moment {n}" for n in range(9))
    planner = OperatorPlanner(
        OperatorTrace(operators=tuple(operators), tensors=tuple(tensors), starts=starts, peaks=peaks, labels=labels)
    )
    found = planner.replayer.replay(frozenset({1, 2}))
    assert sorted(found.made_again) == [(5, 1), (8, 2)]
    # the second is there from its own use at 5 until the third is made, the first kept for it
    assert list(found.levels[3:5]) == [100, 100]
    assert list(found.levels[6:8]) == [200, 200]
    assert found.levels[8] == 200


A_LINK = Link(name="disk", out_bytes_per_second=100.0, in_bytes_per_second=50.0, latency_seconds=0.1)


def test_a_moved_tensor_is_fetched_at_its_first_use_also_for_another():
    planner = OperatorPlanner(a_chain(), A_LINK)
    moved = planner.replayer.replay(frozenset({2}), moved=frozenset({2}))
    assert list(moved.levels) == list(planner.replayer.replay(frozenset({2})).levels)  # the tensor before it is kept
    assert (moved.repeated, moved.sources) == (set(), set())
    assert moved.seconds == pytest.approx(3.1 + 6.1, abs=1e-3)
    both = planner.replayer.replay(frozenset({1, 2}), moved=frozenset({1}))  # what 2 is made from lies on the disk
    assert sorted(both.made_again) == [(7, 1), (7, 2)]
    assert (both.repeated, both.sources) == ({2}, set())
    assert both.seconds == pytest.approx(1.1 + 2.1 + 1.0, abs=1e-2)


def test_the_first_of_a_chain_can_be_moved_where_nothing_can_make_it_again():
    without, planner = OperatorPlanner(a_chain()), OperatorPlanner(a_chain(), A_LINK)
    tensors = range(len(SIZES))
    ways = [
        (frozenset(n for n in tensors if way[n]), frozenset(n for n in tensors if way[n] == "move"))
        for way in product(*((None, "make", "move") if n else (None, "move") for n in tensors))
    ]
    every = [planner.replayer.replay(dropped, moved=moved) for dropped, moved in ways]
    lowest = min(each.peak_bytes for each in every)
    assert planner.least().peak_bytes == lowest < without.least().peak_bytes
    for budget_bytes in sorted({each.peak_bytes for each in every}):
        found = planner.within(budget_bytes)
        assert found is not None
        assert found.peak_bytes <= budget_bytes
    assert planner.within(lowest - 1) is None


def test_what_is_cheaper_to_move_than_to_make_again_is_moved_and_the_room_of_the_link_is_kept_to():
    fast = Link(name="disk", out_bytes_per_second=1e6, in_bytes_per_second=1e6)
    found = OperatorPlanner(a_chain(), fast).within(650)
    assert found is not None
    assert found.sets.moved
    assert not found.repeated
    full = OperatorPlanner(a_chain(), msgspec.structs.replace(fast, capacity_bytes=100))
    for planned in (full.within(650), full.least()):
        assert planned is None or sum(SIZES[n] for n in planned.sets.moved) <= 100


def test_a_choice_names_what_is_dropped_run_again_and_read():
    planner = OperatorPlanner(a_chain())
    choice = planner.choice(planner.replayer.replay(frozenset({1, 2}), frozenset({1})), 7)
    assert [(each.operator, each.num_bytes, each.stays) for each in choice.dropped] == [(1, 100, False), (2, 300, True)]
    assert (choice.repeated, choice.sources, choice.input_bytes) == ((1, 2), (0,), 7)
    assert choice.names == ("aten::op0", "aten::op1", "aten::op2")


def pairs(num_pairs: int) -> OperatorTrace:
    """A dear operator, whose tensor is not saved, and a cheap one that reads it; another after each pair.

    To make the saved tensor of a pair again, the dear operator has to run as well: its own alone looks cheapest.
    """
    operators = [Operator(name="aten::source", makes=(0,), seconds=1e-3)]
    last = 1 + 5 * num_pairs + 4
    tensors = [TracedTensor(num_bytes=1000, operator=0, writers=(0,), is_saved=True, used=last, ends=last, depth=1)]
    for _ in range(num_pairs):
        first = len(operators)
        operators += [
            Operator(name="aten::dear", makes=(first,), reads=(0,), seconds=1.0),
            Operator(name="aten::cheap", makes=(first + 1,), reads=(first,), seconds=1e-6),
            Operator(name="aten::alone", makes=(first + 2,), reads=(0,), seconds=1e-2),
        ]
        tensors += [
            TracedTensor(num_bytes=1000, operator=first, writers=(first,), gone=first + 1, ends=first + 1, depth=1),
            saved(first + 1, num_pairs),
            saved(first + 2, num_pairs),
        ]
    peaks = [sum(t.num_bytes for t in tensors if t.operator <= moment <= t.ends) for moment in range(last + 1)]
    labels = tuple(f"moment {n}" for n in range(len(peaks)))
    return OperatorTrace(
        operators=tuple(operators), tensors=tuple(tensors), starts=tuple(peaks), peaks=tuple(peaks), labels=labels
    )


def saved(operator: int, num_pairs: int) -> TracedTensor:
    """One that may be dropped; the backward uses them last first."""
    count = 1 + 3 * num_pairs
    used = count + 1 + 2 * num_pairs - 2 * (operator // 3) + (operator % 3 == 2)
    return TracedTensor(
        num_bytes=1000, operator=operator, writers=(operator,), is_saved=True, may_drop=True, gone=operator + 1,
        used=used, ends=used, depth=1,
    )  # fmt: skip


def test_what_is_dropped_first_is_what_all_that_must_run_again_makes_cheap():
    planner = OperatorPlanner(pairs(6))
    budget_bytes = planner.plain.peak_bytes - 5000
    found = planner.within(budget_bytes)
    assert found is not None
    assert found.peak_bytes <= budget_bytes
    assert {planner.trace.operators[each].name for each in found.repeated} == {"aten::alone"}
