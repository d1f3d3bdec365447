"""Curves over time of a run, and the resolution at which each is drawn.

Curve that a prediction would have drawn of a run.

A prediction knows events, not seconds. The events of each phase of its last step are laid into the same phase of every
measured step, in equal parts, and what the process takes beside its tensors is added as predicted. So the height is the
prediction's own, the width is the run's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from memfit.errors import UsageError
from memfit.records.prediction import Prediction
from memfit.records.run import RunRecord
from memfit.records.timeline import Timeline
from memfit.show.views.decimate import DecimationLevel, pyramid
from memfit.show.wording import cut

Role = Literal["tree", "upper bound", "process", "used", "background", "device", "predicted", "imports"]
MAX_DRAWN_PROCESSES = 24
_SAME_BYTES = 512 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Bytes over time, at one or more resolutions (finest first)."""

    name: str
    role: Role
    index: int
    """The process or device it belongs to; 0 where there is only one."""
    levels: tuple[DecimationLevel, ...]
    source: str = "measured"


def curves_of(run: RunRecord, *, max_rows: int) -> tuple[tuple[Curve, ...], int]:
    """All curves of a run, and how many processes were left out because they are too many to draw."""
    processes, num_hidden = _process_curves(run, max_rows)
    return (*_tree_curves(run, max_rows), *processes, *_system_curves(run), *_gpu_curves(run)), num_hidden


def _tree_curves(run: RunRecord, max_rows: int) -> list[Curve]:
    tree = run.tree
    if not len(tree.time_seconds):
        return []
    source = run.header.kind
    name = "job" if len(run.processes) <= 1 else "whole tree"
    curves = [_curve(name, "tree", 0, tree.time_seconds, tree.tree_bytes, max_rows, source)]
    if np.any(tree.summed_resident_bytes - tree.tree_bytes > _SAME_BYTES):
        rows = max(max_rows // 4, 512)
        summed = tree.summed_resident_bytes
        curves.append(
            _curve("summed resident (upper bound)", "upper bound", 0, tree.time_seconds, summed, rows, source)
        )
    return curves


def imports_curve(tree: Curve, num_bytes: int) -> Curve:
    """The part of the job's curve below what its interpreter and imports take in the end."""
    levels = tuple(
        replace(level, low=np.minimum(level.low, num_bytes), high=np.minimum(level.high, num_bytes))
        for level in tree.levels
    )
    return Curve(name="interpreter and imports", role="imports", index=0, levels=levels, source=tree.source)


def _process_curves(run: RunRecord, max_rows: int) -> tuple[list[Curve], int]:
    """One curve per process, the largest first; a lone process is the tree itself."""
    if len(run.processes) <= 1:
        return [], 0
    order = sorted(run.processes, key=lambda process: -(process.peak.value or 0))
    drawn = sorted(order[:MAX_DRAWN_PROCESSES], key=lambda process: process.index)
    rows = max(min(max_rows, 2 * max_rows // max(len(drawn), 1)), 256)
    curves = []
    for process in drawn:
        own = run.samples.of_process(process.index)
        if len(own):
            name = f"{process.pid} {cut(process.command, 40)}"
            curves.append(_curve(name, "process", process.index, own.time_seconds, own.resident_bytes, rows))
    return curves, len(run.processes) - len(drawn)


def _system_curves(run: RunRecord, max_rows: int = 2048) -> list[Curve]:
    if not run.system:
        return []
    times = np.array([reading.time_seconds for reading in run.system])
    used = np.array([reading.used_bytes for reading in run.system])
    background = np.array([reading.background_bytes for reading in run.system])
    return [
        _curve("system used", "used", 0, times, used, max_rows),
        _curve("background (system used minus this job)", "background", 0, times, background, max_rows),
    ]


def _gpu_curves(run: RunRecord, max_rows: int = 2048) -> list[Curve]:
    curves = []
    for device in sorted({reading.device for reading in run.gpus}):
        rows = [reading for reading in run.gpus if reading.device == device]
        times, used = np.array([r.time_seconds for r in rows]), np.array([r.used_bytes for r in rows])
        curves.append(_curve(f"GPU {device} {rows[0].name}", "device", device, times, used, max_rows))
    return curves


def _curve(
    name: str, role: Role, index: int, times: np.ndarray, values: np.ndarray, max_rows: int, source: str = "measured"
) -> Curve:
    levels = pyramid(times, values, max_rows=max_rows)
    return Curve(name=name, role=role, index=index, levels=levels, source=source)


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
