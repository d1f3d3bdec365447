"""Export to TensorBoard: scalars and timelines of runs; of a study also hyperparameters, where HParams finds them.

    FOLDER/events...             what the study varies, and which scalars are its metrics
    FOLDER/00012/tensorboard/    trial 12: hyperparameters, intermediate results, memory, its timeline

This is the layout of a study's own folder `trials`, in which `--profile` keeps torch.profiler's traces: exporting there
puts everything of a trial side by side. A number that is not known is left out, never written as zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path

import numpy as np

from memfit.errors import StorageError
from memfit.records.figure import Figure
from memfit.records.run import RunRecord
from memfit.records.study import Study, TrialRecord
from memfit.show.export.tensorboard_events import (
    FILE_NAME,
    MOST_POINTS,
    HParam,
    HParamColumn,
    Scalar,
    Status,
    event_file,
    experiment_event,
    scalar_event,
    session_end_event,
    session_start_event,
)
from memfit.show.new_file import write_bytes
from memfit.show.views.decimate import decimate
from memfit.show.views.study_axes import StudyAxis, axes_of, point_of

TRIAL_FOLDER = "tensorboard"
METRIC_TAGS = {
    "metric": "metric",
    "memory/peak_bytes": "peak memory, bytes",
    "memory/average_bytes": "average memory, bytes",
    "time/duration_seconds": "duration, s",
    "energy/joules": "energy, J",
}
"""Scalars that HParams lists as metrics, and how they are called there."""
_MOST_OPTIONS = 40
"""A list of more values than this is left for TensorBoard to make."""
_STATUS: dict[str, Status] = {"done": "success", "running": "running", "stopped early": "success"}

ReadRun = Callable[[TrialRecord], RunRecord | None]
"""Gives the run of a trial, or None where there is none to be read."""


def write_run_events(run: RunRecord, folder: Path) -> list[Path]:
    """The curves of a run, as one event file in a folder."""
    _make(folder)
    began = seconds_since_1970(run.header.created_at)
    scalars = [*run_scalars(run, began), *_final("memory/peak_bytes", run.peak, began + run.duration_seconds)]
    return [write_bytes(folder / FILE_NAME, event_file(map(scalar_event, scalars), began))]


def write_study_events(study: Study, folder: Path, read_run: ReadRun = lambda trial: None) -> list[Path]:
    """A folder per trial, and what the study varies; returns the event files."""
    points = {trial.number: point_of(trial) for trial in study.trials}
    axes = axes_of(list(points.values()), study.settings.space)
    columns = [column_of(axis, [point.get(axis.name) for point in points.values()]) for axis in axes]
    began = seconds_since_1970(study.created_at)
    _make(folder)
    first = experiment_event(columns, METRIC_TAGS, study.settings.name or study.study_id, began)
    written = [write_bytes(folder / FILE_NAME, event_file([first], began))]
    kinds = {column.name: (axis, column.kind) for axis, column in zip(axes, columns, strict=True)}
    for trial in study.trials:
        own = folder / f"{trial.number:05d}" / TRIAL_FOLDER
        _make(own)
        content = event_file(_trial_events(trial, points[trial.number], kinds, read_run(trial), began), began)
        written.append(write_bytes(own / FILE_NAME, content))
    return written


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{folder} cannot be made", found=str(error), hint="another -o") from None


def column_of(axis: StudyAxis, values: Sequence[object]) -> HParamColumn:
    """A hyperparameter as HParams knows it: a truth value, a number or a text, never a mixture."""
    known = [value for value in values if value is not None]
    if known and all(isinstance(value, bool) for value in known):
        return HParamColumn(name=axis.name, kind="truth")
    if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in known):
        numbers = _numbers(axis.options)
        if axis.is_number or numbers is not None:
            ends = (axis.low, axis.high) if axis.is_number else None
            return HParamColumn(name=axis.name, kind="number", options=_few(numbers or ()), ends=ends)
    return HParamColumn(name=axis.name, kind="text", options=_few(axis.options))


def _few(options: Sequence[HParam]) -> Sequence[HParam]:
    return options if len(options) <= _MOST_OPTIONS else ()


def _numbers(options: Sequence[str]) -> tuple[float, ...] | None:
    try:
        return tuple(float(option) for option in options)
    except ValueError:
        return None


def _trial_events(
    trial: TrialRecord, point: Mapping[str, object], kinds: Mapping[str, tuple[StudyAxis, str]],
    run: RunRecord | None, study_began: float,
) -> Iterator[bytes]:  # fmt: skip
    began = seconds_since_1970(trial.started_at) or study_began
    ended = seconds_since_1970(trial.ended_at) or began + (trial.duration.value or 0.0)
    values = {name: _hparam(value, *kinds[name]) for name, value in point.items() if value is not None}
    yield session_start_event(values, f"trial {trial.number}", began)
    for scalar in [*_intermediates(trial, began), *_results(trial, ended)]:
        yield scalar_event(scalar)
    if run is not None:
        yield from map(scalar_event, run_scalars(run, began))
    if trial.is_finished:
        yield session_end_event(_STATUS.get(trial.kind, "failure"), ended)


def _hparam(value: object, axis: StudyAxis, kind: str) -> HParam:
    if kind == "truth":
        return bool(value)
    return float(value) if kind == "number" and isinstance(value, (int, float)) else axis.label(value)


def _intermediates(trial: TrialRecord, began: float) -> Iterator[Scalar]:
    for each in trial.intermediates:
        at = began + (each.time_seconds or 0.0)
        named = {"intermediate": each.value, **{f"intermediate/{key}": value for key, value in each.others.items()}}
        for tag, value in named.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
                yield Scalar(tag=tag, value=float(value), step=each.sequence, at_seconds=at)


def _results(trial: TrialRecord, ended: float) -> Iterator[Scalar]:
    if trial.metric is not None:
        yield Scalar(tag="metric", value=trial.metric, at_seconds=ended)
    figures = {
        "memory/peak_bytes": trial.peak, "memory/average_bytes": trial.average,
        "memory/gpu_peak_bytes": trial.gpu_peak, "memory/background_bytes": trial.background,
        "memory/predicted_peak_bytes": trial.predicted_peak,
        "time/duration_seconds": trial.duration, "time/epoch_seconds": trial.epoch_time, "energy/joules": trial.energy,
    }  # fmt: skip
    for tag, figure in figures.items():
        yield from _final(tag, figure, ended)


def _final(tag: str, figure: Figure, ended: float) -> Iterator[Scalar]:
    if figure.value is not None:
        yield Scalar(tag=tag, value=float(figure.value), at_seconds=ended)


# ---- curves of a run -------------------------------------------------------------------------------------------------


def run_scalars(run: RunRecord, began: float) -> Iterator[Scalar]:
    """Memory over time (a step is a millisecond), and the exact peak of every training step."""
    yield from _timeline("timeline/job_bytes", run.tree.time_seconds, run.tree.tree_bytes, began)
    if run.system:
        times = np.array([reading.time_seconds for reading in run.system])
        others = np.array([reading.background_bytes for reading in run.system], dtype=float)
        yield from _timeline("timeline/background_bytes", times, others, began)
    for device in dict.fromkeys(reading.device for reading in run.gpus):
        own = [(g.time_seconds, g.used_bytes) for g in run.gpus if g.device == device and g.used_bytes is not None]
        times, used = (
            (np.array(column, dtype=float) for column in zip(*own, strict=True)) if own else (np.zeros(0),) * 2
        )
        yield from _timeline(f"timeline/gpu_{device}_bytes", times, used, began)
    yield from _step_peaks(run, began)


def _timeline(tag: str, times: np.ndarray, values: np.ndarray, began: float) -> Iterator[Scalar]:
    """At most as many points as TensorBoard keeps, the lowest and the highest of every stretch among them."""
    known = ~np.isnan(np.asarray(values, dtype=float))
    times, values = times[known], values[known]
    is_short = len(times) <= MOST_POINTS
    level = decimate(times, values, MOST_POINTS if is_short else MOST_POINTS // 2)
    rows = zip(level.time_seconds.tolist(), level.low.tolist(), level.high.tolist(), strict=True)
    for time_seconds, low, high in rows:
        step = round(time_seconds * 1000)
        yield Scalar(tag=tag, value=float(high), step=step, at_seconds=began + time_seconds)
        if not is_short:
            yield Scalar(tag=tag, value=float(low), step=step, at_seconds=began + time_seconds)


def _step_peaks(run: RunRecord, began: float) -> Iterator[Scalar]:
    """The peaks of training steps; of a long training the highest of every stretch."""
    for process in dict.fromkeys(run.steps.process.tolist()):
        own = (run.steps.process == process) & ~np.isnan(run.steps.peak_bytes)
        steps, peaks, ends = run.steps.step[own], run.steps.peak_bytes[own], run.steps.end_seconds[own]
        tag = "steps/peak_bytes" if process == run.steps.process[0] else f"steps/peak_bytes_process_{process}"
        for part in np.array_split(np.arange(len(steps)), min(len(steps), MOST_POINTS)) if len(steps) else ():
            index = int(part[peaks[part].argmax()])
            at = began + float(np.nan_to_num(ends[index]))
            yield Scalar(tag=tag, value=float(peaks[index]), step=int(steps[index]), at_seconds=at)


def seconds_since_1970(moment: str) -> float:
    """An ISO 8601 moment; 0 where there is none, which TensorBoard shows as unknown."""
    try:
        return datetime.fromisoformat(moment).timestamp()
    except ValueError:
        return 0.0
