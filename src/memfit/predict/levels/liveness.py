"""Live bytes over a timeline: the peak, and the tensors alive there; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np

from memfit.records.prediction import AtPeak, Share
from memfit.records.timeline import LiveSpan, PhaseMark, Timeline


def live_bytes(timeline: Timeline, device: str) -> np.ndarray:
    """Bytes alive on one device after each event."""
    change = np.zeros(timeline.num_events + 1, dtype=np.int64)
    for span in timeline.spans:
        if span.device == device:
            change[span.start] += span.num_bytes
            if span.end is not None:
                change[span.end] -= span.num_bytes
    return np.cumsum(change[:-1]) if timeline.num_events else np.zeros(1, dtype=np.int64)


def peak_of(timeline: Timeline, device: str) -> tuple[int, int]:
    """The largest number of bytes alive at once, and the first event at which it is reached."""
    live = live_bytes(timeline, device)
    event = int(live.argmax())
    return int(live[event]), event


def alive_at(timeline: Timeline, device: str, event: int) -> list[LiveSpan]:
    """The spans that cover an event."""
    return [
        span
        for span in timeline.spans
        if span.device == device and span.start <= event and (span.end is None or span.end > event)
    ]


def who_is_alive(timeline: Timeline, device: str, event: int) -> AtPeak:
    """The bytes alive at one event by category, module, phase of birth, source line and operator."""
    spans = alive_at(timeline, device, event)
    mark = mark_at(timeline.phases, event)
    return AtPeak(
        event=event,
        step=mark.step,
        phase=mark.phase,
        by_category=_shares(spans, lambda span: span.category),
        by_module=_shares(spans, lambda span: span.module),
        by_phase=_shares(spans, lambda span: span.phase),
        by_line=_shares(spans, lambda span: span.line),
        by_operator=_shares(spans, lambda span: span.operator),
    )


def peak_by_phase(timeline: Timeline, device: str) -> tuple[Share, ...]:
    """The largest live bytes within each phase of the last whole step."""
    live = live_bytes(timeline, device)
    best: dict[str, int] = {}
    bounds = [*(mark.start for mark in timeline.phases[1:]), timeline.num_events]
    for mark, end in zip(timeline.phases, bounds, strict=True):
        if end > mark.start:
            best[mark.phase] = max(best.get(mark.phase, 0), int(live[mark.start : end].max()))
    return tuple(Share(name=name, num_bytes=num_bytes, num_tensors=0) for name, num_bytes in best.items())


def peak_in_step(timeline: Timeline, device: str, step: int) -> int | None:
    """The largest live bytes while a step trained, evaluations left out; None where there was no such step."""
    live = live_bytes(timeline, device)
    bounds = [*(mark.start for mark in timeline.phases[1:]), timeline.num_events]
    trained = [
        int(live[mark.start : end].max())
        for mark, end in zip(timeline.phases, bounds, strict=True)
        if mark.step == step and mark.phase not in ("setup", "evaluation") and end > mark.start
    ]
    return max(trained, default=None)


def mark_at(marks: tuple[PhaseMark, ...], event: int) -> PhaseMark:
    """The phase an event lies in."""
    before = PhaseMark(start=0, step=0, phase="setup")
    for mark in marks:
        if mark.start > event:
            break
        before = mark
    return before


def _shares(spans: Iterable[LiveSpan], key: Callable[[LiveSpan], str]) -> tuple[Share, ...]:
    sizes: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for span in spans:
        sizes[key(span)] += span.num_bytes
        counts[key(span)] += 1
    return tuple(Share(name=n, num_bytes=b, num_tensors=counts[n]) for n, b in sizes.most_common() if b)
