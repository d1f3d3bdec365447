"""Document: one record as the page gets it, and its columns of numbers in as few bytes as they need.

A column is base64 of little-endian numbers: whole numbers in one, two or four bytes each, everything else in eight, so
that no value loses a digit on its way. Missing values are all ones in whole numbers and nan in the others.

Traced step as columns: the storages of a timeline with their lifetimes, sizes and owners.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from memfit.records.timeline import CATEGORIES, LiveSpan, Timeline
from memfit.show.as_json import to_json

Body = dict[str, object]
WHOLE_TYPES = ("<u1", "<u2", "<u4")


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One record for the page."""

    kind: str
    """'run', 'study', ...: decides which section of the page draws it."""
    title: str
    body: Body = field(default_factory=dict)

    def to_json(self) -> bytes:
        """The document as JSON; nan and infinity become null."""
        return to_json({"kind": self.kind, "title": self.title, "body": self.body})


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One record in the list of a folder."""

    id: str
    """Path below the folder, '.' for the folder itself."""
    kind: str
    title: str
    changed_at: float = 0.0
    """Seconds since 1970."""
    facts: tuple[str, ...] = ()


def numbers(values: Iterable[float | int | None] | np.ndarray) -> dict[str, object]:
    """A column of numbers; None and nan are missing."""
    column = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    known = column[~np.isnan(column)]
    is_whole = bool(np.all(known == np.floor(known))) if len(known) and np.all(np.isfinite(known)) else not len(known)
    if is_whole and (not len(known) or known.min() >= 0):
        for kind in WHOLE_TYPES:
            missing = np.iinfo(kind).max
            if not len(known) or known.max() < missing:
                whole = np.where(np.isnan(column), missing, column).astype(kind)
                return _column(kind[1:], whole)
    return _column("f8", column.astype("<f8"))


def codes(values: Sequence[str | None], labels: Sequence[str] = ()) -> dict[str, object]:
    """A column of texts as numbers into a list of the different ones; None is missing."""
    known = list(labels) or sorted({value for value in values if value is not None})
    place = {label: number for number, label in enumerate(known)}
    return {"labels": known, **numbers([None if value is None else place[value] for value in values])}


def _column(kind: str, values: np.ndarray) -> dict[str, object]:
    return {"type": kind, "count": len(values), "base64": base64.b64encode(values.tobytes()).decode()}


def read_numbers(column: dict[str, object]) -> np.ndarray:
    """The inverse of `numbers`, as the page does it."""
    kind = str(column["type"])
    raw = np.frombuffer(base64.b64decode(str(column["base64"])), dtype=f"<{kind}")
    if kind == "f8":
        return raw
    return np.where(raw == np.iinfo(raw.dtype).max, np.nan, raw.astype(np.float64))


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
