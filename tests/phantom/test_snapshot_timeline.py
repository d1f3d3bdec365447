"""Does the allocator's record become the timeline it stands for? Pure; the record is made up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from memfit.predict.phantom.snapshot_timeline import Place, timeline_of_record
from memfit.predict.snapshot.recorded import RecordedEvent

PHASES = ("setup", "forward", "backward", "recompute", "update")
Happening = tuple[str, bool]
"""A phase, and whether what is allocated in it is released at once."""


def recorded(happenings: list[Happening]) -> tuple[list[RecordedEvent], list[Place]]:
    """One place for each happening, one storage in each place."""
    events: list[RecordedEvent] = []
    for index, (_, is_short) in enumerate(happenings):
        event = RecordedEvent(action="alloc", addr=index, size=512 * (index + 1), user_metadata=str(index))
        events.append(event)
        if is_short:
            events.append({**event, "action": "free_completed"})
    return events, [Place(1, phase) for phase, _ in happenings]  # pyright: ignore[reportArgumentType]


@given(st.lists(st.tuples(st.sampled_from(PHASES), st.booleans()), max_size=30))
def test_what_a_forward_leaves_to_a_backward_is_an_activation_and_nothing_else_is(happenings: list[Happening]) -> None:
    events, places = recorded(happenings)
    timeline = timeline_of_record(events, places, [], lambda frames: "")
    for index, (span, (phase, is_short)) in enumerate(zip(timeline.spans, happenings, strict=True)):
        waits = not is_short and any(later == "backward" for later, _ in happenings[index + 1 :])
        expected = "activation" if waits and phase in ("forward", "recompute") else "temporary"
        assert (span.num_bytes, span.phase, span.category) == (512 * (index + 1), phase, expected)


@given(st.lists(st.booleans(), min_size=1, max_size=20))
def test_what_is_taken_at_a_workspace_of_cublas_and_returned_at_once_was_one(at_once: list[bool]) -> None:
    events, places = recorded([("forward", is_short) for is_short in at_once])
    timeline = timeline_of_record(events, places, [], lambda frames: "", frozenset(range(0, 20, 2)))
    for index, (span, is_short) in enumerate(zip(timeline.spans, at_once, strict=True)):
        assert span.category == ("workspace" if is_short and index % 2 == 0 else "temporary")
