"""Curve that a prediction would have drawn of a run.

A prediction knows events, not seconds. The events of each phase of its last step are laid into the same phase of every
measured step, in equal parts, and what the process takes beside its tensors is added as predicted. So the height is the
prediction's own, the width is the run's.
"""

from __future__ import annotations

import numpy as np

from memfit.errors import UsageError
from memfit.records.prediction import Prediction
from memfit.records.run import RunRecord
from memfit.records.timeline import Timeline
from memfit.show.views.curves import Curve
from memfit.show.views.decimate import pyramid

PHASES = ("forward", "backward", "update")
BUCKETS_PER_PHASE = 24
"""Parts of a phase that are drawn, each by its highest event."""
MAX_STEPS = 2000


def predicted_curve(prediction: Prediction, run: RunRecord, *, max_rows: int) -> Curve:
    """The curve that was predicted for a run of one process; refuses where the two cannot be laid over each other."""
    timeline = prediction.timeline
    if prediction.device != "cpu" or timeline is None:
        found = f"device {prediction.device}" if timeline is not None else "no timeline in it"
        raise UsageError("this prediction has no curve of a process", found=found, hint="memfit predict ... --json")
    heights = {phase: _heights(timeline, phase) for phase in PHASES}
    edges = _edges(run)
    if not len(edges) or any(heights[phase] is None for phase in PHASES):
        found = "no step" if not len(edges) else "a step without all its phases"
        raise UsageError("there is no step to lay the prediction over", found=found, hint="measure with marks")
    pieces = [(row[n], row[n + 1], heights[phase]) for row in edges for n, phase in enumerate(PHASES)]
    times = np.concatenate([np.linspace(a, b, len(h), endpoint=False) for a, b, h in pieces if h is not None])
    values = np.concatenate([h for _, _, h in pieces if h is not None]) + _rest_bytes(prediction)
    name = "predicted (tensors traced, the rest of the process as assumed)"
    levels = pyramid(times, values, max_rows=max_rows)
    return Curve(name=name, role="predicted", index=0, levels=levels, source="predicted")


def _edges(run: RunRecord) -> np.ndarray:
    """Begin of forward, backward and update, and end, of the steps that have all four."""
    steps = run.steps
    table = np.column_stack([steps.forward_seconds, steps.backward_seconds, steps.update_seconds, steps.end_seconds])
    return table[(~np.isnan(table)).all(axis=1) & (np.diff(table, axis=1) >= 0).all(axis=1)][:MAX_STEPS]


def _heights(timeline: Timeline, phase: str) -> np.ndarray | None:
    """Tensor bytes alive in one phase of the last whole step, the highest of each part; None when there is none."""
    last = max((mark.step for mark in timeline.phases if mark.phase == "update"), default=None)
    starts = [mark.start for mark in timeline.phases]
    for number, mark in enumerate(timeline.phases):
        if (mark.step, mark.phase) == (last, phase):
            end = starts[number + 1] if number + 1 < len(starts) else timeline.num_events
            alive = _alive_bytes(timeline)[mark.start : max(end, mark.start + 1)]
            return np.array([part.max() for part in np.array_split(alive, min(BUCKETS_PER_PHASE, len(alive)))])
    return None


def _alive_bytes(timeline: Timeline) -> np.ndarray:
    """Bytes of host storages alive at each event."""
    change = np.zeros(timeline.num_events + 2, dtype=np.int64)
    for span in timeline.spans:
        if span.device == "cpu":
            change[span.start] += span.num_bytes
            if span.end is not None:
                change[span.end] -= span.num_bytes
    return np.cumsum(change)


def _rest_bytes(prediction: Prediction) -> float:
    """What the process takes beside its tensors; the middle where only a range is predicted."""
    process, tensors = prediction.level("process"), prediction.level("tensors")
    if process is None or tensors is None or tensors.value is None:
        raise UsageError("this prediction says nothing of the process", hint="memfit predict --device cpu")
    whole = process.value
    if whole is None and process.low is not None and process.high is not None:
        whole = (process.low + process.high) / 2
    if whole is None:
        raise UsageError("this prediction says nothing of the process", found=process.reason, hint="predict it anew")
    return max(0.0, whole - tensors.value)
