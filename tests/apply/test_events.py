"""Do the allocator's events add up to the peaks, the leavings and the windows that stages are made of?"""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from memfit.profile.meter.events import AllocatorEvent as Event
from memfit.profile.meter.events import Mark, Record
from memfit.profile.meter.stage_sizes import gradients_that_stay, measure_stage, staying_bytes, windows_of


@st.composite
def event_lists(draw: st.DrawFn) -> list[Event]:
    """Allocations and releases; some releases are of blocks that were there before."""
    alive: dict[int, int] = {}
    events: list[Event] = []
    for _ in range(draw(st.integers(0, 40))):
        if alive and draw(st.booleans()):
            address = draw(st.sampled_from(sorted(alive)))
            events.append(Event(address, -alive.pop(address)))
        elif draw(st.integers(0, 9)) == 0:
            events.append(Event(draw(st.integers(1000, 1010)), -7))
        else:
            address = draw(st.integers(0, 30).filter(lambda a: a not in alive))
            alive[address] = draw(st.integers(1, 100))
            events.append(Event(address, alive[address]))
    return events


@given(events=event_lists())
def test_the_blocks_alive_at_any_moment_add_up_to_the_running_sum(events: list[Event]):
    record = Record(events, [])
    for moment in range(len(events) + 1):
        assert sum(b.num_bytes for b in record.blocks if b.alive_at(moment)) == record.alive[moment]
    assert record.peak_bytes == record.peak_between(0, len(events))


@given(events=event_lists(), data=st.data())
def test_what_ranges_leave_adds_up_to_what_is_alive(events: list[Event], data: st.DataObject):
    record = Record(events, [])
    cuts = sorted(data.draw(st.lists(st.integers(0, len(events)), max_size=4)))
    edges = [0, *cuts, len(events)]
    left = [record.left_by(a, b, len(events)) for a, b in itertools.pairwise(edges)]
    assert sum(left) == record.alive[-1]


def test_a_step_of_two_stages_gives_their_sizes():
    events = [
        Event(1, 100), Event(2, 30), Event(2, -30),  # stage 0 leaves 100, 30 in passing
        Event(3, 50), Event(4, 8),  # stage 1 leaves 50 and an output of 8 that is gone at the turn
        Event(4, -8),
        Event(5, 20), Event(6, 5), Event(3, -50), Event(5, -20),  # its backward: 20 in passing, a gradient of 5
        Event(7, 9), Event(1, -100),
    ]  # fmt: skip
    marks = [
        Mark("begin", 0), Mark("start 0", 0), Mark("end 0", 3), Mark("start 1", 3), Mark("end 1", 5), Mark("turn", 6),
        Mark("gradient 1", 6), Mark("gradient 0", 10), Mark("done", 12),
    ]  # fmt: skip
    record = Record(events, marks)
    windows = windows_of(record, 2)
    assert [(w.forward, w.backward) for w in windows] == [((0, 3), (10, 12)), ((3, 6), (6, 10))]
    first, second = measure_stage(record, windows[0], [(1, 100)]), measure_stage(record, windows[1], [(4, 8)])
    assert (first.saved_bytes, first.forward_transient_bytes, first.gradient_bytes) == (100, 30, 9)
    assert (second.saved_bytes, second.backward_extra_bytes, second.gradient_bytes) == (50, 25, 5)


@given(
    marks=st.dictionaries(
        st.sampled_from([f"{w} {i}" for w in ("start", "end", "gradient") for i in range(4)]), st.integers(0, 30)
    )
)
def test_windows_are_in_order_whatever_marks_are_missing(marks: dict[str, int]):
    events = [Event(i, 1) for i in range(30)]
    fixed = [Mark("begin", 0), Mark("turn", 15), Mark("done", 30)]
    record = Record(events, [*fixed, *(Mark(name, at) for name, at in marks.items())])
    windows = windows_of(record, 4)
    for before, after in itertools.pairwise(windows):
        assert before.forward[1] == after.forward[0]
        assert after.backward[1] == before.backward[0]
    assert all(w.forward[0] <= w.forward[1] <= 15 <= w.backward[0] <= w.backward[1] <= 30 for w in windows)


def test_the_first_part_of_a_shared_gradient_and_an_output_that_is_held_count_in_the_backwards_between():
    events = [
        Event(1, 100), Event(2, 50), Event(3, 7),  # stages 0 and 1; the loop holds the 7 to the end
        Event(4, 24), Event(5, 10), Event(2, -50),  # stage 1 makes a part of a shared gradient, and that of its input
        Event(6, 24), Event(7, 24), Event(4, -24), Event(6, -24), Event(5, -10), Event(1, -100),  # both parts added
    ]  # fmt: skip
    marks = [
        Mark("begin", 0), Mark("start 0", 0), Mark("end 0", 1), Mark("start 1", 1), Mark("end 1", 2), Mark("turn", 3),
        Mark("gradient 1", 3), Mark("gradient 0", 6), Mark("done", 12),
    ]  # fmt: skip
    record = Record(events, marks)
    windows = windows_of(record, 2)
    sizes = [measure_stage(record, window, []) for window in windows]
    assert [size.gradient_bytes for size in sizes] == [24, 0]
    assert gradients_that_stay(sizes, staying_bytes(record, windows, [10, 0])) == [0, 31]
