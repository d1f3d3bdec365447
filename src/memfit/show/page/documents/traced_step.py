"""Traced step as columns: the storages of a timeline with their lifetimes, sizes and owners."""

from __future__ import annotations

from memfit.records.timeline import CATEGORIES, LiveSpan, Timeline
from memfit.show.page.documents.document import Body, codes, numbers

MOST_SPANS = 60_000
"""Storages a page holds; of more, the largest, and the rest is joined into one line per category."""


def traced_step(timeline: Timeline, *, device: str, name: str, source: str) -> Body:
    """One timeline for the page; `device` picks the storages of one device."""
    spans = [span for span in timeline.spans if span.device == device] or list(timeline.spans)
    kept = spans if len(spans) <= MOST_SPANS else _largest(spans)
    end = timeline.num_events
    return {
        "name": name,
        "device": device,
        "source": source,
        "num_events": end,
        "num_left_out": len(spans) - len(kept),
        "left_out_bytes": sum(span.num_bytes for span in spans) - sum(span.num_bytes for span in kept),
        "start": numbers([span.start for span in kept]),
        "end": numbers([end + 1 if span.end is None else span.end for span in kept]),
        "num_bytes": numbers([span.num_bytes for span in kept]),
        "category": codes([span.category for span in kept], CATEGORIES),
        "module": codes([span.module for span in kept]),
        "operator": codes([span.operator for span in kept]),
        "line": codes([span.line for span in kept]),
        "phases": [{"start": mark.start, "step": mark.step, "phase": mark.phase} for mark in timeline.phases],
        "event_seconds": numbers(timeline.event_seconds) if timeline.event_seconds else None,
    }


def _largest(spans: list[LiveSpan]) -> list[LiveSpan]:
    least = sorted((span.num_bytes for span in spans), reverse=True)[MOST_SPANS - 1]
    return [span for span in spans if span.num_bytes >= least][:MOST_SPANS]
