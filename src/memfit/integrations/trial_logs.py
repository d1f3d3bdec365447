"""Numbers of trials and runs for experiment trackers: flat names with finite numbers, the same for each of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from memfit.records.figure import Figure
from memfit.records.run import RunRecord
from memfit.records.study import Study, TrialRecord
from memfit.show.views.decimate import decimate

MOST_POINTS = 1000
"""Of a timeline; the highest of every stretch is kept."""


def trial_results(trial: TrialRecord) -> dict[str, float]:
    """Final numbers of a trial; what is not known is left out."""
    figures = {
        "memory/peak_bytes": trial.peak, "memory/average_bytes": trial.average,
        "memory/background_bytes": trial.background, "memory/predicted_peak_bytes": trial.predicted_peak,
        "time/duration_seconds": trial.duration, "time/epoch_seconds": trial.epoch_time, "energy/joules": trial.energy,
    }  # fmt: skip
    known = {} if trial.metric is None else {"metric": trial.metric}
    return {**known, **_values(figures)}


def run_results(run: RunRecord) -> dict[str, float]:
    """Final numbers of a run."""
    average = run.tree.mean_bytes()
    known = {} if average is None else {"memory/average_bytes": average}
    return {**_values({"memory/peak_bytes": run.peak}), **known, "time/duration_seconds": run.duration_seconds}


def _values(figures: dict[str, Figure]) -> dict[str, float]:
    return {name: float(figure.value) for name, figure in figures.items() if figure.value is not None}


def intermediate_rows(trial: TrialRecord) -> Iterator[tuple[int, dict[str, float]]]:
    """(sequence, numbers) of every intermediate result; other keys of a reported dict beside it."""
    for each in trial.intermediates:
        named = {"intermediate": each.value, **{f"intermediate/{key}": value for key, value in each.others.items()}}
        row = {name: float(value) for name, value in named.items() if _is_number(value)}
        if row:
            yield each.sequence, row


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def timeline_rows(run: RunRecord) -> list[tuple[float, float]]:
    """(seconds, bytes of the job) over a run."""
    level = decimate(run.tree.time_seconds, run.tree.tree_bytes, MOST_POINTS)
    return list(zip(level.time_seconds.tolist(), (float(high) for high in level.high.tolist()), strict=True))


def study_name(study: Study) -> str:
    """What a tracker calls the study."""
    return study.settings.name or Path(study.folder).name or study.study_id
