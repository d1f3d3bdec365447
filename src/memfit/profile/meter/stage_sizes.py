"""Sizes of stages from the marks of one step; pure.

Marks are called `start 3`, `end 3` (the forward of stage 3), `turn` (the backward begins), `gradient 3` (the
gradient of what stage 3 returned is there, so its backward begins) and `done`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from memfit.profile.meter.events import Mark, Moments, Record


@dataclass(frozen=True, slots=True)
class Window:
    """When a stage ran, in events."""

    forward: tuple[int, int]
    backward: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Measured:
    """Bytes of one stage."""

    saved_bytes: int
    forward_transient_bytes: int
    backward_extra_bytes: int
    """The most alive during its backward, above what was alive when it began."""
    gradient_bytes: int


def windows_of(record: Moments, num_stages: int) -> list[Window]:
    """Forward and backward of every stage; what runs between modules belongs to glue."""
    turn, done = record.at("turn") or 0, record.at("done") or len(record.events)
    starts = _starts(record, num_stages, turn)
    backward = _backward_starts(record, num_stages, turn, done)
    windows = []
    for index in range(num_stages):
        end = starts[index + 1] if index + 1 < num_stages else turn
        until = backward[index - 1] if index else done
        windows.append(Window((starts[index], end), (backward[index], until)))
    return windows


def _starts(record: Moments, num_stages: int, turn: int) -> list[int]:
    """Where each forward begins: a module where it says so, glue where the stage before it ended."""
    starts: list[int] = []
    for index in range(num_stages):
        start = record.at(f"start {index}")
        if start is None:
            before = record.at(f"end {index - 1}") if index else record.at("begin")
            start = before if before is not None else (starts[-1] if starts else 0)
        starts.append(min(max(start, starts[-1] if starts else 0), turn))
    return starts


def _backward_starts(record: Moments, num_stages: int, turn: int, done: int) -> list[int]:
    """Where each backward begins; a stage whose output has no gradient takes no time."""
    starts = [0] * num_stages
    at = turn
    for index in range(num_stages - 1, -1, -1):
        mark = record.at(f"gradient {index}")
        if mark is None and index < num_stages - 1:
            mark = done if _none_below(record, index) else at
        at = min(max(at, mark if mark is not None else at), done)
        starts[index] = at
    return starts


def _none_below(record: Moments, index: int) -> bool:
    return all(record.at(f"gradient {below}") is None for below in range(index + 1))


def with_stages_joined(record: Record, groups: Sequence[range]) -> Record:
    """The record of stages some of which are taken as one: it begins with its first part and ends with its last."""
    names: dict[str, str] = {}
    for number, parts in enumerate(groups):
        names[f"start {parts[0]}"] = f"start {number}"
        names[f"end {parts[-1]}"] = f"end {number}"
        names[f"gradient {parts[-1]}"] = f"gradient {number}"
    marks = [replace(mark, name=names.get(mark.name, mark.name)) for mark in record.marks if _stays(mark, names)]
    return record.with_marks(marks)


def _stays(mark: Mark, names: dict[str, str]) -> bool:
    return mark.name in names or not mark.name.startswith(("start ", "end ", "gradient "))


def measure_stage(record: Record, window: Window, outputs: list[tuple[int, int]]) -> Measured:
    """Sizes of one stage; `outputs` are address and bytes of what it returned."""
    (start, end), (turns, until) = window.forward, window.backward
    turn, done = record.at("turn") or 0, record.at("done") or len(record.events)
    made = record.made_between(start, end)
    staying = sum(block.num_bytes for block in made if block.alive_at(turn))
    addresses = {address for address, _ in outputs}
    passing = sum(b.num_bytes for b in made if b.address in addresses and b.alive_at(end) and not b.alive_at(turn))
    saved = staying + passing
    return Measured(
        saved_bytes=saved,
        forward_transient_bytes=max(0, record.peak_between(start, end) - record.alive[start] - saved),
        backward_extra_bytes=max(0, record.peak_between(turns, until) - record.alive[turns]),
        gradient_bytes=record.left_by(turns, until, done),
    )


def staying_bytes(record: Record, windows: Sequence[Window], outputs: Sequence[int]) -> list[int]:
    """For every stage: what it and all later stages have left behind when its backward is over.

    That is gradients of parameters, and whatever else lives on: the first part of the gradient of a shared parameter,
    gradients that wait for a branch, an output that the loop still holds. The gradient of the stage's input, as large
    as the output of the stage before, goes on to that stage and is left out.
    """
    found = []
    for index, window in enumerate(windows):
        until, turn = window.backward[1], record.at("turn") or 0
        waiting = outputs[index - 1] if index else 0
        made = [*record.made_between(window.forward[0], turn), *record.made_between(turn, until)]
        found.append(sum(block.num_bytes for block in made if block.alive_at(until)) - waiting)
    return found


def gradients_that_stay(sizes: Sequence[Measured], staying: Sequence[int]) -> list[int]:
    """Gradient bytes of every stage, so that in each backward what later stages have left behind is counted.

    A chain knows nothing that goes away before the end, so that what does counts to the end: a promise is then too
    high and never too low.
    """
    found = [0] * len(sizes)
    left = so_far = 0
    for index in range(len(sizes) - 1, -1, -1):
        left += sizes[index].gradient_bytes
        there = max(left, staying[index], so_far)
        found[index], so_far = there - so_far, there
    return found
