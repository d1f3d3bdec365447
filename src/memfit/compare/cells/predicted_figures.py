"""Figures of a cell out of a prediction: peaks of first and last step, what binds and what would bind next. Pure."""

from __future__ import annotations

import itertools

import numpy as np

from memfit.predict.levels.gpu import CUDA
from memfit.predict.levels.liveness import live_bytes, peak_in_step, peak_of
from memfit.records.figure import Figure, unknown
from memfit.records.grid import CellFigures, CurvePoint, PeakMoment
from memfit.records.prediction import LevelName, Prediction
from memfit.records.timeline import Timeline

MOST_POINTS = 400
NO_METER = "a prediction runs nothing, so there is no energy to read: --measure"
SHARE_SIZE = 8
"""Parts of the peak that are kept."""


def figures_of(prediction: Prediction, level: LevelName, epoch_steps: float | None) -> CellFigures:
    """What a prediction says of one cell."""
    timeline = prediction.timeline
    assert timeline is not None
    where = CUDA if prediction.level("device") is not None else "cpu"
    moments = moments_in(timeline, where, _highest_step(timeline, where, prediction.num_steps))
    tensors = prediction.level("tensors")
    peak = prediction.level(level)
    assert tensors is not None
    assert peak is not None
    step_time = prediction.step_time or unknown("seconds", "not predicted")
    return CellFigures(
        tensors=tensors,
        peak=peak,
        level=level,
        needed=prediction.level("device") or prediction.level("process") or peak,
        first_step=_of_step(timeline, where, 1),
        steady=_of_step(timeline, where, prediction.num_steps),
        average=_average(timeline, where, prediction.num_steps),
        at_peak=prediction.at_peak.by_category[:SHARE_SIZE],
        binds=moments[0] if moments else None,
        next_binds=moments[1] if len(moments) > 1 else None,
        host=_host(prediction, timeline, where),
        step_time=step_time,
        epoch_time=epoch_time(step_time, epoch_steps),
        energy=unknown("joules", NO_METER),
        error_band=prediction.error_band,
        assumptions=tuple(assumption.text for assumption in prediction.assumptions),
        curve=curve_of(timeline, where),
        step_begins=step_begins(timeline),
    )


def epoch_time(step_time: Figure, epoch_steps: float | None) -> Figure:
    """The time of an epoch of so many steps."""
    if epoch_steps is None:
        return unknown("seconds", "how many steps an epoch has is not known: --epoch-steps N")
    if step_time.value is None:
        return unknown("seconds", step_time.reason)
    return Figure(
        value=step_time.value * epoch_steps, unit="seconds", source=step_time.source,
        method=f"{epoch_steps:g} steps, each {step_time.method or 'as above'}",
        low=None if step_time.low is None else step_time.low * epoch_steps,
        high=None if step_time.high is None else step_time.high * epoch_steps,
    )  # fmt: skip


def moments_in(timeline: Timeline, where: str, step: int) -> list[PeakMoment]:
    """Phases of one step, and of building the job, with the largest bytes in each; the highest first."""
    live = live_bytes(timeline, where)
    best: dict[str, int] = {}
    bounds = [*(mark.start for mark in timeline.phases[1:]), timeline.num_events]
    for mark, end in zip(timeline.phases, bounds, strict=True):
        if (mark.step == step or mark.phase == "setup") and end > mark.start:
            best[mark.phase] = max(best.get(mark.phase, 0), int(live[mark.start : end].max()))
    moments = [PeakMoment(phase=phase, peak_bytes=peak) for phase, peak in best.items()]
    return sorted(moments, key=lambda moment: -moment.peak_bytes)


def _highest_step(timeline: Timeline, where: str, num_steps: int) -> int:
    """The step with the highest peak, the last of them: some optimizers need more in the first than ever again."""
    return max(range(1, num_steps + 1), key=lambda step: (peak_in_step(timeline, where, step) or 0, step))


def curve_of(timeline: Timeline, where: str) -> tuple[CurvePoint, ...]:
    """Live bytes from the first step on, thinned out so that the largest of every stretch is kept."""
    live = live_bytes(timeline, where)
    begin = next((mark.start for mark in timeline.phases if mark.step), 0)
    live = live[begin:]
    if not len(live):
        return ()
    edges = np.unique(np.linspace(0, len(live), min(len(live), MOST_POINTS) + 1).astype(int))
    return tuple(
        CurvePoint(position=float(low) / len(live), num_bytes=float(live[low:high].max()))
        for low, high in itertools.pairwise(edges)
    )


def step_begins(timeline: Timeline) -> tuple[float, ...]:
    """Where on the curve the steps begin, as shares of its length."""
    starts: dict[int, int] = {}
    for mark in timeline.phases:
        if mark.step:
            starts.setdefault(mark.step, mark.start)
    if not starts:
        return ()
    begin = min(starts.values())
    length = max(1, timeline.num_events - begin)
    return tuple((start - begin) / length for start in sorted(starts.values()))


def _of_step(timeline: Timeline, where: str, step: int) -> Figure:
    peak = peak_in_step(timeline, where, step)
    if peak is None:
        return unknown("bytes", f"step {step} was not traced")
    return Figure(value=peak, unit="bytes", source="predicted", method=f"largest live tensor bytes of step {step}")


def _average(timeline: Timeline, where: str, step: int) -> Figure:
    live = live_bytes(timeline, where)
    bounds = [*(mark.start for mark in timeline.phases[1:]), timeline.num_events]
    parts = [live[m.start : e] for m, e in zip(timeline.phases, bounds, strict=True) if m.step == step and e > m.start]
    if not parts:
        return unknown("bytes", f"step {step} was not traced")
    method = "mean over the allocations and releases of the last step, which are not evenly spread over its time"
    return Figure(value=float(np.concatenate(parts).mean()), unit="bytes", source="predicted", method=method)


def _host(prediction: Prediction, timeline: Timeline, where: str) -> Figure:
    """On a GPU the tensors in host memory; on a CPU the process."""
    if where == "cpu":
        return prediction.level("process") or unknown("bytes", "the process was not predicted")
    peak, _ = peak_of(timeline, "cpu")
    return Figure(value=peak, unit="bytes", source="predicted", method="largest live bytes of tensors on the host")
