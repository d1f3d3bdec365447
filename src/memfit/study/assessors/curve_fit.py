"""Curve-fitting assessor: stops a trial whose extrapolated learning curve ends below the best one.

Domhan et al., Speeding up Automatic Hyperparameter Optimization by Extrapolation of Learning Curves (2015), in a
lighter form: several families of curves are fitted by least squares, weighed by how well they fit (Akaike's criterion),
and read at the last epoch. Where they disagree, or too few fit, nothing is stopped. NNI weighs twelve families by
random sampling, so single decisions may differ from its own; the rule and its arguments are the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from memfit.records.study import Assessment, Direction, TrialRecord
from memfit.study.assessors.median_stop import GO_ON
from memfit.study.engine.history import History


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveSettings:
    """NNI's class arguments."""

    epoch_num: int
    start_step: int
    threshold: float
    gap: int


class CurveAssessor:
    """Stops a trial whose curve is expected to end beyond a part of the best result."""

    def __init__(self, direction: Direction, settings: CurveSettings) -> None:
        self.sign = -1.0 if direction == "maximize" else 1.0
        self.settings = settings

    def assess(self, history: History, trial: TrialRecord) -> Assessment:
        step = len(trial.intermediates)
        if step < self.settings.start_step or (step - self.settings.start_step) % self.settings.gap:
            return GO_ON
        best = self._best(history, trial.number)
        curve = [report.value for report in trial.intermediates if report.value is not None]
        if best is None or len(curve) < step:
            return GO_ON
        return self._judge(curve, best)

    def _judge(self, curve: list[float], best: float) -> Assessment:
        from memfit.study.assessors.scipy_curves import prolong

        expected = prolong([-self.sign * value for value in curve], self.settings.epoch_num)
        if expected is None:
            return GO_ON
        # With the turned sign more is better, and the bar lies below the best whatever the sign of the best is.
        turned = -self.sign * best
        bar = turned - (1 - self.settings.threshold) * abs(turned)
        if expected > bar:
            return GO_ON
        shown = -self.sign * expected
        reason = f"it is expected to reach {shown:.6g} after {self.settings.epoch_num} results; the best has {best:.6g}"
        return Assessment(stop=True, reason=reason)

    def _best(self, history: History, number: int) -> float | None:
        """The best last result of the trials that are done."""
        lasts = [
            lesson.trial.intermediates[-1].value
            for lesson in history
            if lesson.trial.kind == "done" and lesson.trial.intermediates and lesson.number != number
        ]
        return min((value for value in lasts if value is not None), key=lambda value: self.sign * value, default=None)
