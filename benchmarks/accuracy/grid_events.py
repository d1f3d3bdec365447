"""Do two lists of allocations and releases say the same, and if not, where do they part first? Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from memfit.records.timeline import LiveSpan, Timeline

NEAR = 0.35
"""How far a workspace by rule may be from the library's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One allocation or release."""

    is_alloc: bool
    num_bytes: int
    span: LiveSpan

    @property
    def key(self) -> tuple[bool, int]:
        """What two engines must agree on."""
        return self.is_alloc, rounded(self.num_bytes)

    @property
    def is_by_rule(self) -> bool:
        """Whether its size is a rule's, close to what a library takes."""
        return "by rule" in self.span.operator

    def agrees(self, other: tuple[bool, int]) -> bool:
        """Whether the event of the other engine with this key is this one."""
        is_alloc, rounded_bytes = other
        if self.is_by_rule:
            return self.is_alloc == is_alloc and abs(self.num_bytes - rounded_bytes) <= NEAR * rounded_bytes
        return self.key == other

    def __str__(self) -> str:
        """As a person reads it."""
        by = ", ".join(part for part in (self.span.operator, self.span.module, self.span.line, self.span.phase) if part)
        return f"{'alloc' if self.is_alloc else 'free'} {self.num_bytes} ({by})"


def rounded(num_bytes: int) -> int:
    """As the allocator rounds a request."""
    return max(512, -(-num_bytes // 512) * 512)


def events_of(timeline: Timeline, step: int, without: Sequence[LiveSpan] = ()) -> list[Event]:
    """Allocations and releases of one step on the GPU, in order; nothing is allocated for an empty tensor."""
    start = next((mark.start for mark in timeline.phases if mark.step == step), 0)
    left_out = {span.start for span in without}
    found: dict[int, Event] = {}
    for span in timeline.spans:
        if not span.device.startswith("cuda") or not span.num_bytes or span.start in left_out:
            continue
        if span.start >= start:
            found[span.start] = Event(is_alloc=True, num_bytes=span.num_bytes, span=span)
        if span.end is not None and span.end >= start:
            found[span.end] = Event(is_alloc=False, num_bytes=span.num_bytes, span=span)
    return settled([found[index] for index in sorted(found)])


def settled(events: list[Event]) -> list[Event]:
    """Releases in a row by size: autocast empties its cache in the order of addresses, which means nothing."""
    result: list[Event] = []
    for is_alloc, together in itertools.groupby(events, key=lambda event: event.is_alloc):
        run = list(together)
        result += run if is_alloc else sorted(run, key=lambda event: event.num_bytes)
    return result


def signed(events: Sequence[Event]) -> list[int]:
    """Rounded bytes in order, releases negative."""
    return [event.key[1] if event.is_alloc else -event.key[1] for event in events]


def fleeting(timeline: Timeline, step: int) -> list[LiveSpan]:
    """Storages of one step that nothing else happened to while they lived: workspaces of one call are such."""
    start = next((mark.start for mark in timeline.phases if mark.step == step), 0)
    return [span for span in timeline.spans if span.start >= start and span.end == span.start + 1 and span.num_bytes]


def peak_of(events: Sequence[Event]) -> int:
    """The most these events hold at once above what was there before, in rounded bytes."""
    live = peak = 0
    for event in events:
        live += event.key[1] if event.is_alloc else -event.key[1]
        peak = max(peak, live)
    return peak


def first_difference(fake: list[Event], phantom: list[Event]) -> tuple[int, Event | None, Event | None] | None:
    """Where the two lists part, or None."""
    for index, (left, right) in enumerate(itertools.zip_longest(fake, phantom)):
        if left is None or right is None or not left.agrees(right.key):
            return index, left, right
    return None


def differs_from(fake: Sequence[Event], recorded: Sequence[int]) -> str:
    """Where the fake engine parts from a recorded list of rounded bytes (releases negative); empty when it does not."""
    for index, (event, size) in enumerate(itertools.zip_longest(fake, recorded)):
        if event is None or size is None or not event.agrees((size > 0, abs(size))):
            return f"event {index} of {len(recorded)}: {event} instead of {size}"
    return ""
