"""Timeline with phases, modules, categories and lines from the allocator's own snapshot; pure.

The record carries a text of ours with every event: the number of the place the program was in. Places are numbered in
the order they are entered, so a claim ("what lies at this address is a gradient") that was made after place n belongs
to whatever lives at that address when the record reaches place n + 1.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field

from memfit.predict.observe.storage_log import STRENGTH
from memfit.predict.snapshot.recorded import RecordedEvent, RecordedFrame
from memfit.records.timeline import Category, LiveSpan, Phase, PhaseMark, Timeline

CUDA = "cuda:0"


@dataclass(frozen=True, slots=True)
class Place:
    """Where the program is."""

    step: int
    phase: Phase
    module: str = ""
    line: str = ""


@dataclass(frozen=True, slots=True)
class StorageClaim:
    """From this place on it is known what lies at an address."""

    place: int
    address: int
    category: Category
    module: str = ""


@dataclass(slots=True)
class _Storage:
    address: int
    num_bytes: int
    start: int
    place: Place
    line: str
    end: int | None = None
    category: Category = "temporary"
    module: str = ""


@dataclass(slots=True)
class _Walk:
    """The state while the record is read."""

    live: dict[int, _Storage] = field(default_factory=dict)
    storages: list[_Storage] = field(default_factory=list)
    marks: list[PhaseMark] = field(default_factory=list)
    num_events: int = 0


def timeline_of_record(
    events: Iterable[RecordedEvent],
    places: list[Place],
    claims: list[StorageClaim],
    line_of: Callable[[Sequence[RecordedFrame]], str],
    workspaces: Container[int] = (),
) -> Timeline:
    """Spans of all storages; `line_of` finds the user's line in an event's frames.

    `workspaces` are addresses that cuBLAS was given: what is taken there and returned at once, as from torch 2.15 on,
    was a workspace.
    """
    walk = _Walk()
    waiting = sorted(claims, key=lambda claim: claim.place, reverse=True)
    reached = -1
    for event in events:
        number = _number(event)
        if number > reached:
            while waiting and waiting[-1].place <= number:
                _settle(walk.live, waiting.pop())
            _enter(walk, places, reached, number)
            reached = number
        if event["action"] == "alloc":
            place = places[reached] if reached >= 0 else Place(0, "setup")
            line = line_of(event.get("frames") or ()) or place.line
            storage = _Storage(event["addr"], event["size"], walk.num_events, place, line)
            walk.live[event["addr"]] = storage
            walk.storages.append(storage)
            walk.num_events += 1
        elif event["action"] == "free_completed":
            ended = walk.live.pop(event["addr"], None)
            if ended is not None:
                ended.end = walk.num_events
                if ended.end == ended.start + 1 and ended.address in workspaces and ended.category == "temporary":
                    ended.category = "workspace"
                walk.num_events += 1
    for claim in reversed(waiting):
        _settle(walk.live, claim)
    return Timeline(spans=tuple(_span(s) for s in walk.storages), num_events=walk.num_events, phases=tuple(walk.marks))


def _number(event: RecordedEvent) -> int:
    text = event.get("user_metadata") or ""
    return int(text) if text.isdigit() else -1


def _enter(walk: _Walk, places: list[Place], before: int, number: int) -> None:
    place = places[number]
    if place.phase == "backward" and (before < 0 or places[before].phase != "backward"):
        _keep_for_backward(walk.live.values())
    last = walk.marks[-1] if walk.marks else None
    if last is None or (last.step, last.phase) != (place.step, place.phase):
        walk.marks.append(PhaseMark(start=walk.num_events, step=place.step, phase=place.phase))


def _keep_for_backward(storages: Iterable[_Storage]) -> None:
    """What the forward made and is still alive when the backward begins was kept for it."""
    for storage in storages:
        if storage.place.phase in ("forward", "recompute") and storage.category == "temporary":
            storage.category = "activation"


def _settle(live: dict[int, _Storage], claim: StorageClaim) -> None:
    storage = live.get(claim.address)
    if storage is None:
        return
    if STRENGTH.index(claim.category) < STRENGTH.index(storage.category):
        storage.category = claim.category
    if claim.module:
        storage.module = claim.module


def _span(storage: _Storage) -> LiveSpan:
    return LiveSpan(
        start=storage.start,
        end=storage.end,
        num_bytes=storage.num_bytes,
        category=storage.category,
        phase=storage.place.phase,
        module=storage.module or storage.place.module,
        device=CUDA,
        line=storage.line,
    )
