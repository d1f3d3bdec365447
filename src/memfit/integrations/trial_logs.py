"""Numbers of trials and runs for experiment trackers: flat names with finite numbers, the same for each of them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from pathlib import Path

from memfit.records.figure import Figure
from memfit.records.run import RunRecord
from memfit.records.study import Intermediate, Standing, Study, TrialRecord
from memfit.show.views.decimate import decimate

MOST_POINTS = 1000
"""Of a timeline; the highest of every stretch is kept."""


MOST_FAILURES = 3
"""After so many trials in a row that a tracker did not take, it gets no more: each of them may wait for a network."""


class TrackedTrials:
    """Follows a study and gives each trial that has ended to a tracker; one that fails does not end the study."""

    has_line = False
    tracker = ""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.not_logged: list[int] = []
        """Numbers of trials that the tracker did not take; `log_study` gives them to it later."""
        self._num_failures = 0

    def log(self, trial: TrialRecord) -> object:
        """Give one trial to the tracker."""
        raise NotImplementedError

    def ended(self, trial: TrialRecord, standing: Standing) -> None:
        """A trial has ended: it becomes a run of its own."""
        if self._num_failures >= MOST_FAILURES:
            self.not_logged.append(trial.number)
            return
        try:
            self.log(trial)
            self._num_failures = 0
        except Exception as error:  # whatever a tracker, its server or the network raises
            self.not_logged.append(trial.number)
            self._num_failures += 1
            what = f"trial {trial.number} is not in {self.tracker} ({type(error).__name__}: {error})"
            more = "" if self._num_failures < MOST_FAILURES else "; no further trial is given to it"
            self.note(f"{what}{more}; log_study adds what is missing later")
            warnings.warn(self.notes[-1], RuntimeWarning, stacklevel=2)

    def note(self, sentence: str) -> None:
        """Kept in `notes`."""
        self.notes.append(sentence)

    def tick(self, standing: Standing) -> None:
        """Nothing is shown while trials run."""


def trial_results(trial: TrialRecord) -> dict[str, float]:
    """Final numbers of a trial; what is not known is left out."""
    figures = {
        "memory/peak_bytes": trial.peak, "memory/average_bytes": trial.average,
        "memory/gpu_peak_bytes": trial.gpu_peak,
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


def intermediate_rows(trial: TrialRecord) -> Iterator[tuple[Intermediate, dict[str, float]]]:
    """Every intermediate result with its numbers; other keys of a reported dict beside it."""
    for each in trial.intermediates:
        named = {"intermediate": each.value, **{f"intermediate/{key}": value for key, value in each.others.items()}}
        row = {name: float(value) for name, value in named.items() if _is_number(value)}
        if row:
            yield each, row


def _is_number(value: object) -> bool:
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # a whole number beyond all floats
        return False


def timeline_rows(run: RunRecord) -> list[tuple[float, float]]:
    """(seconds, bytes of the job) over a run."""
    level = decimate(run.tree.time_seconds, run.tree.tree_bytes, MOST_POINTS)
    return list(zip(level.time_seconds.tolist(), (float(high) for high in level.high.tolist()), strict=True))


def study_name(study: Study) -> str:
    """What a tracker calls the study."""
    return study.settings.name or Path(study.folder).name or study.study_id
