"""Joining of two timelines: steps without their updates, and the updates of one optimizer, traced apart.

Forward and backward do not depend on the optimizer, and an update does not depend on what came before it. A grid of
m optimizers and n techniques is therefore had from m + n traces. Both timelines hold marks, blocks of a size that
nothing else has: one where the optimizer is made and one per step in the first, two around each of these in the second.
What lies between two marks of the second is put where the mark of the first was. `tests` compare the result, event by
event, with a trace of the whole.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from memfit.records.timeline import LiveSpan, PhaseMark, Timeline


class CannotJoin(Exception):
    """The two timelines are not parts of one: the whole has to be traced."""


@dataclass(frozen=True, slots=True)
class _Window:
    """Events of the updates' timeline from `start` up to `end`, which go where `place` was in the other."""

    start: int
    end: int
    place: int

    @property
    def size(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Joined:
    """Whole steps, and where the events of the steps without updates went."""

    timeline: Timeline
    moved: Callable[[int], int]


def join_updates(steps: Timeline, updates: Timeline, mark_bytes: int, kept_once: str = "") -> Joined:
    """The timeline of whole steps, out of steps without updates and of updates alone.

    `kept_once` names what a process takes once and keeps (a library's workspace): the updates take none where the steps
    have it already.
    """
    if kept_once and any(span.operator == kept_once for span in steps.spans):
        updates = _without(updates, kept_once)
    places = _marks(steps, mark_bytes)
    around = _marks(updates, mark_bytes)
    if len(around) != 2 * len(places) or not places:
        raise CannotJoin(f"{len(places)} marks for {len(around)} around updates")
    _check_gradients(steps, updates, places[1].start)
    windows = [
        _Window(_end_of(before), after.start, place.start)
        for place, before, after in zip(places, around[::2], around[1::2], strict=True)
    ]
    shift = _Shift(windows)
    kept = [shift.outer(span) for span in steps.spans if not _is_mark(span, mark_bytes)]
    added = [moved for span in updates.spans if (moved := shift.inner(span)) is not None]
    spans = sorted(kept + added, key=lambda span: span.start)
    num_events = steps.num_events + sum(window.size - 2 for window in windows)
    phases = tuple(PhaseMark(start=shift.moved(m.start), step=m.step, phase=m.phase) for m in steps.phases)
    return Joined(Timeline(spans=tuple(spans), num_events=num_events, phases=phases), shift.moved)


def _without(timeline: Timeline, operator: str) -> Timeline:
    """The timeline without what one operator took, and without the events of it."""
    gone = [span for span in timeline.spans if span.operator == operator]
    events = sorted(event for span in gone for event in (span.start, span.end) if event is not None)
    spans = [
        msgspec.structs.replace(
            span,
            start=span.start - bisect_left(events, span.start),
            end=None if span.end is None else span.end - bisect_left(events, span.end),
        )
        for span in timeline.spans
        if span.operator != operator
    ]
    phases = [
        msgspec.structs.replace(mark, start=mark.start - bisect_left(events, mark.start)) for mark in timeline.phases
    ]
    return Timeline(spans=tuple(spans), num_events=timeline.num_events - len(events), phases=tuple(phases))


def _is_mark(span: LiveSpan, mark_bytes: int) -> bool:
    return span.num_bytes == mark_bytes and span.dtype in ("", "uint8")


def _marks(timeline: Timeline, mark_bytes: int) -> list[LiveSpan]:
    """The marks in their order; each must be given back at once."""
    found = [span for span in timeline.spans if _is_mark(span, mark_bytes)]
    if any(span.end != span.start + 1 for span in found):
        raise CannotJoin("a mark was not given back at once")
    return sorted(found, key=lambda span: span.start)


def _end_of(mark: LiveSpan) -> int:
    """The first event after a mark."""
    return mark.start + 2


def _check_gradients(steps: Timeline, updates: Timeline, event: int) -> None:
    """The updates must have stepped on the gradients that the steps make: as many bytes, and none of them gone."""
    made = sum(
        span.num_bytes
        for span in steps.spans
        if span.category == "gradient" and span.start < event and (span.end is None or span.end > event)
    )
    given = sum(span.num_bytes for span in updates.spans if span.category == "gradient" and span.phase == "setup")
    if made != given:
        raise CannotJoin(f"{made} bytes of gradients in the steps, {given} in the updates")


class _Shift:
    """New places of the events of both timelines."""

    def __init__(self, windows: list[_Window]) -> None:
        self.windows = windows
        self.places = [window.place for window in windows]
        self.starts = [window.start for window in windows]

    def moved(self, event: int) -> int:
        """Where an event of the steps goes; the marks themselves fall away."""
        before = bisect_left(self.places, event)
        return event + sum(window.size - 2 for window in self.windows[:before])

    def outer(self, span: LiveSpan) -> LiveSpan:
        """A span of the steps in its new place."""
        end = None if span.end is None else self.moved(span.end)
        return msgspec.structs.replace(span, start=self.moved(span.start), end=end)

    def inner(self, span: LiveSpan) -> LiveSpan | None:
        """A span of the updates in its new place; None for what the steps have themselves."""
        start = self._placed(span.start)
        end = None if span.end is None else self._placed(span.end)
        if start is None:
            if end is not None:
                raise CannotJoin("an update released what it was given")
            return None
        if span.end is not None and end is None:
            raise CannotJoin("what an update took was released outside of updates")
        return msgspec.structs.replace(span, start=start, end=end)

    def _placed(self, event: int) -> int | None:
        """The new place of an event between two marks; None for one outside."""
        index = bisect_left(self.starts, event + 1) - 1
        if index < 0 or event >= self.windows[index].end:
            return None
        window = self.windows[index]
        return self.moved(window.place) + event - window.start
