"""Prediction before a trial starts: whether its point can fit.

Only workloads are predicted: what a command does is not known before it runs. A point is rejected when even the lower
end of its prediction is above the limit; where nothing can be predicted, the trial is run, and the reason is kept.
"""

from __future__ import annotations

from typing import Any

from memfit.errors import MemfitError
from memfit.records.figure import Figure, unknown
from memfit.records.study import StudySettings, TrialOutcome
from memfit.study.space.space import fingerprint
from memfit.study.trials.order import parameters_for_workload
from memfit.units import format_bytes

MOST_SECONDS = 120.0


class TrialPredictor:
    """Predicts the peaks of points, each once."""

    def __init__(self, settings: StudySettings, *, wanted: bool = True) -> None:
        self.settings = settings
        self.is_on = bool(settings.workload) and wanted
        self._known: dict[str, Figure] = {}

    def peak(self, parameters: dict[str, Any]) -> Figure | None:
        """The predicted peak at a point; None when nothing is predicted in this study."""
        if not self.is_on:
            return None
        built_with = parameters_for_workload(self.settings, parameters)
        key = fingerprint(built_with)
        if key not in self._known:
            self._known[key] = _predict(self.settings.workload, built_with)
        return self._known[key]


def _predict(workload: str, built_with: dict[str, object]) -> Figure:
    from memfit.measure.instruction_sets import ask_processor
    from memfit.predict.options import PredictOptions
    from memfit.predict.predict import predict

    options = PredictOptions(most_seconds=MOST_SECONDS)
    try:
        prediction = predict(workload, options, settings=built_with, ask_processor=ask_processor)
    except MemfitError as error:
        return unknown("bytes", f"no prediction: {error.what}")
    return prediction.level("process") or unknown("bytes", "the prediction has no figure for a process")


def verdict(peak: Figure | None, limit_bytes: int | None) -> TrialOutcome | None:
    """The rejection of a point that cannot fit; None when it may."""
    if peak is None or limit_bytes is None:
        return None
    least = peak.low if peak.low is not None else peak.value  # a process's peak may be known as a range only
    if least is None or least <= limit_bytes:
        return None
    message = f"it would need at least {format_bytes(least)} ({peak.method or 'predicted'})"
    return TrialOutcome(kind="rejected by prediction", message=f"{message}; the limit is {format_bytes(limit_bytes)}")
