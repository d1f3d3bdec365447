"""Bytes that each stage made, left and needed, from allocator events and the marks between them; pure.

An event is one allocation (positive bytes) or release (negative); a mark is the name of a moment. Both come in the
order in which they happened. Bytes alive before the first event are not known here and are added by whoever knows
them.
"""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol


@dataclass(frozen=True, slots=True)
class AllocatorEvent:
    """One allocation or release."""

    address: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Mark:
    """A named moment: `before` is the number of events that came before it."""

    name: str
    before: int
    seconds: float = 0.0
    """By the clock of the record."""


@dataclass(slots=True)
class AllocatedBlock:
    """One allocation with its life, counted in events; `end` is None when it outlived the record."""

    address: int
    num_bytes: int
    start: int
    end: int | None = None

    def alive_at(self, moment: int) -> bool:
        """Whether it is there when `moment` events have happened."""
        return self.start < moment and (self.end is None or self.end >= moment)


class Moments(Protocol):
    """Named moments among numbered events, of the allocator or of a clock."""

    @property
    def events(self) -> Sequence[object]:
        """What is numbered."""
        ...

    def at(self, name: str) -> int | None:
        """How many events came before a moment; None when it was never reached."""
        ...


class Record:
    """Events and marks of one step."""

    def __init__(self, events: Sequence[AllocatorEvent], marks: Sequence[Mark]) -> None:
        self.events = events
        self.alive = [0, *accumulate(_changes(events))]
        """Bytes alive after each number of events."""
        self.blocks = _blocks(events)
        self._starts = [block.start for block in self.blocks]
        self._name(marks)

    def _name(self, marks: Sequence[Mark]) -> None:
        self.marks, self._at = marks, {mark.name: mark.before for mark in marks}

    def with_marks(self, marks: Sequence[Mark]) -> Record:
        """The same events, with other names for some moments."""
        other = copy.copy(self)
        other._name(marks)
        return other

    def at(self, name: str) -> int | None:
        """How many events came before a mark; None when it was never reached."""
        return self._at.get(name)

    @property
    def peak_bytes(self) -> int:
        """The most alive at once, above what was there before."""
        return max(self.alive)

    def peak_between(self, start: int, end: int) -> int:
        """The most alive at any moment of a range, both ends included."""
        return max(self.alive[start : end + 1])

    def made_between(self, start: int, end: int) -> list[AllocatedBlock]:
        """Blocks allocated in a range."""
        first, last = bisect_right(self._starts, start - 1), bisect_right(self._starts, end - 1)
        return self.blocks[first:last]

    def left_by(self, start: int, end: int, moment: int) -> int:
        """Bytes allocated in a range that are still alive at a later moment."""
        return sum(block.num_bytes for block in self.made_between(start, end) if block.alive_at(moment))


def _changes(events: Sequence[AllocatorEvent]) -> list[int]:
    """Changes in bytes; the release of a block that was there before counts nothing."""
    alive: dict[int, int] = {}
    changes = []
    for event in events:
        if event.num_bytes > 0:
            alive[event.address] = event.num_bytes
            changes.append(event.num_bytes)
        else:
            changes.append(-alive.pop(event.address, 0))
    return changes


def _blocks(events: Sequence[AllocatorEvent]) -> list[AllocatedBlock]:
    open_blocks: dict[int, AllocatedBlock] = {}
    blocks = []
    for number, event in enumerate(events):
        if event.num_bytes > 0:
            block = open_blocks[event.address] = AllocatedBlock(event.address, event.num_bytes, number)
            blocks.append(block)
        elif event.address in open_blocks:
            open_blocks.pop(event.address).end = number
    return blocks
