"""Median-stop assessor, and the interface that all assessors share.

Assessors stand outside of the tuner, so they work with any number of objectives.
"""

from __future__ import annotations

from typing import Protocol

from memfit.records.study import Assessment, Direction, TrialRecord
from memfit.study.engine.history import History

GO_ON = Assessment(stop=False)


class Assessor(Protocol):
    """Judges a running trial by its intermediate results so far."""

    def assess(self, history: History, trial: TrialRecord) -> Assessment:
        """Whether the trial goes on; `history` holds the other trials."""
        ...


class MedianAssessor:
    """Stops a trial whose best result so far is worse than the median of the others' running averages at that step.

    Golovin et al., Google Vizier (2017), as NNI's Medianstop: the averages are those of trials that are done; of an
    even number of averages the worse of the two in the middle counts.
    """

    def __init__(self, direction: Direction, start_step: int = 0) -> None:
        self.sign = -1.0 if direction == "maximize" else 1.0
        self.start_step = start_step

    def assess(self, history: History, trial: TrialRecord) -> Assessment:
        step = len(trial.intermediates)
        losses = [self.sign * report.value for report in trial.intermediates if report.value is not None]
        if step < self.start_step or not losses:
            return GO_ON
        done = (lesson.trial for lesson in history if lesson.trial.kind == "done" and lesson.number != trial.number)
        averages = sorted(average for other in done if (average := self._average(other, step)) is not None)
        if not averages or min(losses) <= averages[len(averages) // 2]:
            return GO_ON
        median = self.sign * averages[len(averages) // 2]
        reason = f"its best of {step} results, {self.sign * min(losses):.6g}, is worse than the median {median:.6g}"
        return Assessment(stop=True, reason=f"{reason} of {len(averages)} finished trials")

    def _average(self, trial: TrialRecord, step: int) -> float | None:
        """The mean of a trial's first results; None when it has fewer, or one of them is no number."""
        if len(trial.intermediates) < step:
            return None
        total = 0.0
        for report in trial.intermediates[:step]:
            if report.value is None:
                return None
            total += self.sign * report.value
        return total / step if step else None
