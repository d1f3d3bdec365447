"""Savings: the peak with another batch size, optimizer or precision, from one timeline; pure.

Each change rewrites the spans and looks for the new peak. It is an estimate: the order of events stays, kernels are
taken to be the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
import numpy as np

from memfit.predict.levels.liveness import peak_of
from memfit.records.prediction import Saving
from memfit.records.timeline import LiveSpan, Timeline

Change = Callable[[LiveSpan], int]
"""The bytes a span would have."""
WORTH_SAYING = 0.01
"""What saves less than this share of the peak is not worth a line."""
GUESSES = 3
HALVES_AT = {"float32": 2, "float64": 4, "complex64": 2, "complex128": 4}
"""By which factor a type shrinks in half precision."""
STEP_PHASES = ("forward", "backward", "recompute", "data", "evaluation")


def savings_of(timeline: Timeline, device: str, most: int = 4) -> tuple[Saving, ...]:
    """What single changes would save at the peak, the largest first; those that save next to nothing are left out."""
    before, _ = peak_of(timeline, device)
    changes: dict[str, Timeline] = {
        "an optimizer without state (plain SGD)": _resized(timeline, _without_state),
        "half the batch": _resized(timeline, _half_batch),
        "activations in half precision": _resized(timeline, _half_activations),
        "an update in one kernel (fused=True)": _resized(timeline, _fused_update),
        "recomputing the blocks in the backward (activation checkpointing)": _recomputed(timeline),
    }
    found = []
    for change, changed in changes.items():
        after, _ = peak_of(changed, device)
        if before - after > before * WORTH_SAYING:
            found.append(Saving(change=change, saved_bytes=before - after, peak_bytes=after, how="from the trace"))
    return tuple(sorted(found, key=lambda saving: -saving.saved_bytes)[:most])


def _resized(timeline: Timeline, change: Change) -> Timeline:
    spans = (msgspec.structs.replace(span, num_bytes=change(span)) for span in timeline.spans)
    return msgspec.structs.replace(timeline, spans=tuple(spans))


def _without_state(span: LiveSpan) -> int:
    in_update = span.category == "temporary" and span.phase == "update"
    return 0 if span.category == "optimizer state" or in_update else span.num_bytes


def _half_batch(span: LiveSpan) -> int:
    grows = span.category in ("activation", "input") or (span.category == "temporary" and span.phase in STEP_PHASES)
    return span.num_bytes // 2 if grows else span.num_bytes


def _half_activations(span: LiveSpan) -> int:
    """Only what is known to be in single precision; half precision is not halved again."""
    share = HALVES_AT.get(span.dtype, 1) if span.category == "activation" else 1
    return span.num_bytes // share


def _fused_update(span: LiveSpan) -> int:
    return 0 if span.category == "temporary" and span.phase == "update" else span.num_bytes


def _recomputed(timeline: Timeline) -> Timeline:
    """Drop what blocks keep for the backward, but for their last result and the largest block as a whole."""
    blocks: dict[tuple[str, int], list[LiveSpan]] = {}
    step = 0
    marks = iter([*timeline.phases, None])
    mark = next(marks)
    for span in timeline.spans:
        while mark is not None and mark.start <= span.start:
            step, mark = mark.step, next(marks)
        block = block_of(span.module)
        if span.category == "activation" and span.phase == "forward" and block:
            blocks.setdefault((block, step), []).append(span)
    largest = max(blocks, key=lambda key: sum(span.num_bytes for span in blocks[key]), default=None)
    dropped = {id(span) for key, spans in blocks.items() if largest and key[0] != largest[0] for span in spans[:-1]}
    spans = tuple(msgspec.structs.replace(s, num_bytes=0) if id(s) in dropped else s for s in timeline.spans)
    return msgspec.structs.replace(timeline, spans=spans)


def block_of(module: str) -> str:
    """The repeated block a module lies in: its path up to the first number; empty outside of such blocks."""
    parts = module.split(".")
    for index, part in enumerate(parts):
        if part.isdigit():
            return ".".join(parts[: index + 1]) if len(parts) > 1 else ""
    return ""


# ---- one setting, many values ----------------------------------------------------------------------------


def values_between(low: int, high: int) -> list[int]:
    """Both ends and the powers of two between them."""
    powers = [2**k for k in range(64) if low < 2**k < high]
    return sorted({low, *powers, high})


def sweep_peaks(
    peak_at: Callable[[int], int], values: Iterable[int], tolerance: float = 0.002
) -> dict[int, tuple[int, str]]:
    """Peaks at values: traced where the curve bends, on a straight line between traced points where it does not."""
    wanted = sorted(set(values))
    known: dict[int, int] = {}

    def traced(value: int) -> int:
        if value not in known:
            known[value] = peak_at(value)
        return known[value]

    def fill(left: int, right: int) -> dict[int, tuple[int, str]]:
        inner = wanted[left + 1 : right]
        if not inner:
            return {}
        middle = (left + right) // 2
        ends = ([wanted[left], wanted[right]], [traced(wanted[left]), traced(wanted[right])])
        guess = float(np.interp(wanted[middle], *ends))
        straight = abs(traced(wanted[middle]) - guess) <= tolerance * guess
        here = {wanted[middle]: (traced(wanted[middle]), "traced")}
        if straight:
            rest = [value for value in inner if value != wanted[middle]]
            return here | {value: (round(float(np.interp(value, *ends))), "interpolated") for value in rest}
        return fill(left, middle) | here | fill(middle, right)

    ends = {value: (traced(value), "traced") for value in {wanted[0], wanted[-1]}}
    return dict(sorted((ends | fill(0, len(wanted) - 1)).items()))


def largest_fitting(
    fits: Callable[[int], bool], start: int, guess: Callable[[], float | None] = lambda: None, most: int = 2**20
) -> int | None:
    """The largest whole number that fits; None when not even 1 does.

    From `start`, or from the last of a few guesses, outwards in growing steps until the answer
    changes, then by halving. Where larger values do not always need more, some value is found whose successor fails.
    """
    if not fits(1):
        return None
    at = stride = max(2, start)
    for _ in range(GUESSES):  # each guess knows what was tried before
        fits(at)
        guessed = guess()
        if guessed is not None:
            at = max(2, min(most, int(guessed)))
            stride = max(1, at // 256)
    low, high = 1, most + 1
    if fits(at):
        low = at
        while low < most and fits(min(most, low + stride)):
            low, stride = min(most, low + stride), stride * 2
        high = min(most, low + stride) if low < most else most + 1
    else:
        high = at
        while high - stride > low and not fits(high - stride):
            high, stride = high - stride, stride * 2
        low = max(low, high - stride)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
