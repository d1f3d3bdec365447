"""Document of a run: one sentence, the budget, its curves, a traced step, the cheapest changes, and all its tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from memfit.records.plan import Plan
from memfit.records.prediction import Prediction, Saving
from memfit.records.run import RunRecord
from memfit.records.run_parts.ledger import LedgerFacts
from memfit.show.as_json import plain
from memfit.show.page.data import view_data
from memfit.show.page.documents.document import Body, Document, numbers, traced_step
from memfit.show.views.cheapest_changes import cheapest_changes
from memfit.show.views.curve_pyramid import CurveWindow
from memfit.show.views.run import RunView
from memfit.show.wording import bounds_text, steps_text
from memfit.units import format_bytes, format_ratio, format_seconds

MOST_TRACED = 4
MOST_LATE = 500
"""Late samples that the page marks, the latest ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDetails:
    """What is known of a run beside its record."""

    savings: tuple[Saving, ...] = ()
    """Of its traced step."""
    prediction: Prediction | None = None
    plan: Plan | None = None


def run_document(record: RunRecord, view: RunView, details: RunDetails | None = None) -> Document:
    """Everything the page draws of a run; how fine its curves are is up to the view."""
    details = details or RunDetails()
    facts = traced_facts(record.ledger_facts)
    body: Body = {
        "run": view_data(view),
        "sentence": run_sentence(view),
        "late": late_samples(record),
        "budget": budget_of(record, view, details),
        "traced": [
            traced_step(one.timeline, device=one.device, name=f"step {one.step}", source="measured")
            for one in facts
            if one.timeline is not None
        ],
        "changes": [plain(change) for change in cheapest_changes(details.savings, record.header.command, details.plan)],
    }
    return Document(kind="run", title=view.headline.title, body=body)


def late_samples(record: RunRecord) -> Body:
    """Samples that came more than one interval late, the latest ones, each with how late it was."""
    times, firsts = np.unique(record.samples.time_seconds, return_index=True)
    late_seconds = record.samples.late_seconds[firsts]
    rows = np.flatnonzero(late_seconds > _intervals(times, late_seconds, record.header.settings.interval_seconds))
    kept = rows[np.sort(np.argsort(-late_seconds[rows], kind="stable")[:MOST_LATE])]
    return {"seconds": numbers(times[kept]), "late_seconds": numbers(late_seconds[kept])}


def _intervals(times: np.ndarray, late_seconds: np.ndarray, shortest: float) -> np.ndarray:
    """The interval in force at every sample, from one deadline to the next: a sampler looks less often while nothing
    changes, and is then not late by the shortest interval. After a late sample deadlines that were missed are left out.
    """
    intervals = np.maximum(np.diff(times - late_seconds, prepend=times[:1]), shortest)
    for place in np.flatnonzero(late_seconds[:-1] > shortest).tolist():
        num_missed = late_seconds[place] // intervals[place]
        intervals[place + 1] = max(intervals[place + 1] / (1 + num_missed), shortest)
    return intervals


def traced_facts(facts: Sequence[LedgerFacts]) -> list[LedgerFacts]:
    """Of every process and device, the traced step with the highest tensor peak, the largest first."""
    best: dict[tuple[int, str], LedgerFacts] = {}
    for one in facts:
        key = (one.pid, one.device)
        if one.timeline is not None and (key not in best or one.tensor_peak_bytes > best[key].tensor_peak_bytes):
            best[key] = one
    return sorted(best.values(), key=lambda one: -one.tensor_peak_bytes)[:MOST_TRACED]


def run_sentence(view: RunView) -> str:
    """Peak, when, what, fits or not, how exact."""
    head = view.headline
    if head.peak.value is None:
        return f"The peak is unknown: {head.peak.reason}."
    when = "" if head.peak_seconds is None else f", {format_seconds(head.peak_seconds)} after the start"
    place = ", ".join(part for part in (head.peak_phase, steps_text(head.peak_first_step, head.peak_step)) if part)
    took = "So far the job took" if head.outcome.kind == "still running" else "The job took"
    words = f"{took} at most {format_bytes(head.peak.value)}{when}{f' ({place})' if place else ''}"
    exact = ": ".join(part for part in (bounds_text(head.peak), head.peak.method) if part)
    return f"{words}{_mostly(view)}; {_fits(view)}; {exact}."


def _mostly(view: RunView) -> str:
    named = [bar for ledger in view.ledgers[:1] for bar in ledger.bars if bar.kind != "unexplained"]
    if not named:
        return ""
    first = named[0]
    name = first.name if first.name != first.kind else first.kind
    share = "most of it" if first.share > 0.5 else "its largest part"
    return f", {share} {name} ({format_bytes(first.num_bytes)}, {format_ratio(first.share)})"


def _fits(view: RunView) -> str:
    limit, word = room_of(view)
    peak_bytes = view.headline.peak.value or 0.0
    if limit is None:
        return "how much there is to fit into is not known"
    if peak_bytes > limit:
        return f"that is {format_bytes(peak_bytes - limit)} more than {word} of {format_bytes(limit)}"
    return f"it fits into {word} of {format_bytes(limit)} with {format_bytes(limit - peak_bytes)} left"


def room_of(view: RunView) -> tuple[float | None, str]:
    """What the job had to fit into, and what that is called: its limit, its control group, the machine."""
    environment = view.environment
    if view.headline.limit_bytes is not None:
        return float(view.headline.limit_bytes), "the limit"
    limits = [environment.memory_limit_bytes, environment.memory_total_bytes]
    known = [float(one) for one in limits if one is not None]
    if not known:
        return None, ""
    return min(known), "the memory" if min(known) == limits[1] else "the control group"


def budget_of(record: RunRecord, view: RunView, details: RunDetails) -> Body:
    """The bars of the budget: predicted, measured (tensors, reserved, outside of torch), fitted, and the room."""
    room, word = room_of(view)
    tensors = [bar.num_bytes for ledger in view.ledgers[:1] for bar in ledger.bars if bar.kind == "tensors"]
    reserved = [one.allocator_reserved_bytes for one in record.ledger_facts if one.allocator_reserved_bytes is not None]
    predicted = None
    if details.prediction is not None:
        name = "process" if details.prediction.device == "cpu" else "device"
        predicted = details.prediction.level(name) or details.prediction.level("tensors")
    return {
        "room_bytes": room,
        "room_name": word,
        "peak": plain(view.headline.peak),
        "tensor_bytes": sum(tensors) if tensors else None,
        "reserved_bytes": max(reserved) if reserved else None,
        "predicted": None if predicted is None else plain(predicted),
        "plan": None if details.plan is None else _plan_bars(details.plan),
    }


def _plan_bars(plan: Plan) -> Body:
    return {
        "budget_bytes": plan.budget_bytes,
        "peak_bytes": plan.peak_bytes,
        "plain_peak_bytes": plan.plain_peak_bytes,
        "slowdown": plan.slowdown,
    }


def window_body(windows: Sequence[CurveWindow]) -> Body:
    """Curves between two moments, for a page that zooms."""
    return {
        "curves": [
            {
                "name": one.name,
                "role": one.role,
                "index": one.index,
                "source": one.source,
                "samples_per_row": one.rows.samples_per_row,
                "time": numbers(one.rows.time_seconds),
                "low": numbers(one.rows.low),
                "high": numbers(one.rows.high),
            }
            for one in windows
        ]
    }
