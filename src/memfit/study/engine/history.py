"""History of the trials so far, in the one form all tuners read.

Tuners are functions of this history, with no state of their own that could be lost: a study is resumed by showing it
the stored trials again. Every metric is turned so that less is better, and a trial that ran out of memory is neither a
bad value nor a failure: it says by how much its point violates the memory limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from memfit.records.study import StudySettings, TrialRecord
from memfit.study.space.space import Draws, fingerprint

_LEAST_VIOLATION = 1e-3
_UNKNOWN_VIOLATION = 1.0
"""Ran out of memory without a figure: as if it had needed twice the limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """What one trial teaches."""

    number: int
    draws: Draws
    losses: tuple[float, ...] | None = None
    """One per objective, less is better; None when it runs, failed, was stopped or is infeasible."""
    violation: float | None = None
    """Above zero: needs too much memory; at or below: fits; None: memory is not limited, or nothing is known."""
    is_running: bool = False
    last_loss: float | None = None
    """Where it stood when it was stopped early."""
    num_reports: int = 0
    trial: TrialRecord

    @property
    def is_infeasible(self) -> bool:
        return self.violation is not None and self.violation > 0


def lesson_of(trial: TrialRecord, settings: StudySettings) -> Lesson:
    """Judge one trial by the goal and the memory rule of its study."""
    blank = Lesson(number=trial.number, draws=trial.proposal.draws, trial=trial, num_reports=len(trial.intermediates))
    if not trial.is_finished:
        return replace(blank, is_running=True)
    violation = _violation(trial, settings)
    if violation is not None and violation > 0:
        return replace(blank, violation=violation)
    if trial.kind == "stopped early":
        return replace(blank, violation=violation, last_loss=_last_loss(trial, settings))
    return replace(blank, violation=violation, losses=_losses(trial, settings))


def num_objectives(settings: StudySettings) -> int:
    """Two when memory is an objective beside the metric."""
    return 2 if settings.memory.use == "objective" else 1


def _sign(settings: StudySettings) -> float:
    return -1.0 if settings.goal.direction == "maximize" else 1.0


def _losses(trial: TrialRecord, settings: StudySettings) -> tuple[float, ...] | None:
    if trial.kind != "done" or trial.metric is None:
        return None
    losses: tuple[float, ...] = (_sign(settings) * trial.metric,)
    if settings.memory.use == "objective":
        if trial.peak.value is None:
            return None
        losses = (*losses, trial.peak.value)
    return losses


def _last_loss(trial: TrialRecord, settings: StudySettings) -> float | None:
    values = [report.value for report in trial.intermediates if report.value is not None]
    return _sign(settings) * values[-1] if values else None


def _violation(trial: TrialRecord, settings: StudySettings) -> float | None:
    """By which part of the limit the point is above (or, below zero, under) it."""
    limit_bytes = settings.memory.limit_bytes
    known = trial.predicted_peak if trial.kind == "rejected by prediction" else trial.peak
    peak_bytes = known.value if known.value is not None else known.low  # a prediction may be a range only
    share = None if limit_bytes is None or peak_bytes is None else peak_bytes / limit_bytes - 1
    if trial.is_infeasible:
        # A run that died of memory was cut off, so what was measured may be less than the limit.
        return _UNKNOWN_VIOLATION if share is None else max(share, _LEAST_VIOLATION)
    return None if trial.kind in ("failed", "cancelled", "out of time") else share


@dataclass(slots=True)
class History:
    """All trials of a study by their numbers, and what they taught; counts are kept, not made by a walk over all."""

    settings: StudySettings
    lessons: dict[int, Lesson] = field(default_factory=dict)
    """In the order of their numbers."""
    tried: set[str] = field(default_factory=set)
    """The fingerprints of all parameter sets ever proposed."""
    num_running: int = 0
    num_started: int = 0
    """Trials that ran or run; a point rejected by prediction does not count."""
    num_ended_runs: int = 0
    """Trials that ran and have ended."""
    timed_seconds: float = 0.0
    num_timed: int = 0
    """How long the trials took together whose duration is known, and how many they are."""
    next_number: int = 0
    next_end_order: int = 0

    def add(self, trial: TrialRecord) -> None:
        """Take in a proposal that runs, or the end of one."""
        before = self.lessons.get(trial.number)
        if before is not None:
            self._count(before, -1)
        lesson = lesson_of(trial, self.settings)
        self.lessons[trial.number] = lesson
        if trial.number < self.next_number - 1 and before is None:
            self.lessons = dict(sorted(self.lessons.items()))
        self._count(lesson, 1)
        self.next_number = max(self.next_number, trial.number + 1)
        if trial.end_order is not None:
            self.next_end_order = max(self.next_end_order, trial.end_order + 1)
        self.tried.add(fingerprint(trial.parameters))

    def _count(self, lesson: Lesson, sign: int) -> None:
        trial = lesson.trial
        self.num_running += sign * lesson.is_running
        self.num_started += sign * trial.was_run
        if trial.is_finished and trial.was_run:
            self.num_ended_runs += sign
            if trial.duration.value is not None:
                self.timed_seconds += sign * trial.duration.value
                self.num_timed += sign

    def __iter__(self) -> Iterator[Lesson]:
        return iter(self.lessons.values())

    def __len__(self) -> int:
        return len(self.lessons)

    def finished_in_order(self) -> list[Lesson]:
        """The trials that ended, in the order they were reported."""
        ended = [lesson for lesson in self if not lesson.is_running]
        return sorted(ended, key=lambda lesson: (lesson.trial.end_order is None, lesson.trial.end_order or 0))


def is_better(first: Lesson, second: Lesson) -> bool:
    """Whether the first is to be preferred: what fits before what does not, then by dominance, then nothing."""
    first_rank, second_rank = _rank(first), _rank(second)
    if first_rank != second_rank:
        return first_rank < second_rank
    if first.losses is not None and second.losses is not None:
        pairs = list(zip(first.losses, second.losses, strict=True))
        return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)
    if first.is_infeasible:
        return (first.violation or 0) < (second.violation or 0)
    if first.last_loss is not None and second.last_loss is not None:
        return first.last_loss < second.last_loss
    return False


def _rank(lesson: Lesson) -> int:
    if lesson.losses is not None:
        return 0
    if lesson.is_infeasible:
        return 2
    return 1 if lesson.last_loss is not None else 3
