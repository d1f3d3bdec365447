"""Decides which trial is next and which is stopped: asks the tuner and the assessor.

    engine = Engine(settings)
    engine.restore(stored_trials)          # a resumed study goes on as if it had never stopped
    proposal = engine.ask()                # None: nothing now; `engine.is_finished` says whether for ever
    engine.assess(trial_so_far).stop       # while it runs
    engine.tell(trial)                     # when it has ended, in whatever way
    engine.hand_on()                       # classes of the user's own hear of it now, not when they are next asked
    engine.leave()                         # the last thing they hear

The whole state is the trials: what was asked and how it ended. Whoever stores each proposal before starting it, and
each record that `tell` gives back, may be killed at any moment and go on from the stored trials alone. A trial that was
running then stays running in the eyes of the tuner until it is reported; run it again with the same parameters, or
tell it as cancelled.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice, takewhile
from typing import Protocol

import msgspec

from memfit.errors import UsageError
from memfit.records.study import Assessment, Proposal, StudySettings, TrialRecord
from memfit.study.assessors.median_stop import GO_ON
from memfit.study.engine.advisor import CustomAdvisor
from memfit.study.engine.history import History
from memfit.study.engine.registry import make_assessor, make_tuner, tool_notes
from memfit.study.engine.user_classes import CustomAssessor, CustomTuner
from memfit.study.tuners.base import NoMore, Thinking, Wait

MOST_REJECTIONS_PER_TRIAL = 50
"""So many points in a row that cannot fit end the study: then the limit, not the tuner, is what to change."""


class AskTell(Protocol):
    """What the coordinator of a study needs to know of an engine."""

    @property
    def is_finished(self) -> bool: ...
    def restore(self, trials: Iterable[TrialRecord]) -> None: ...
    def ask(self) -> Proposal | None: ...
    def tell(self, trial: TrialRecord) -> TrialRecord: ...
    def assess(self, trial: TrialRecord) -> Assessment: ...


class SearchEngine:
    """Tuner, assessor and history of one study."""

    def __init__(self, settings: StudySettings) -> None:
        self.settings = settings
        self.tuner = make_tuner(settings)
        self.assessor = make_assessor(settings) or (self.tuner if isinstance(self.tuner, CustomAdvisor) else None)
        self.history = History(settings)
        self.notes = (*settings.notes, *tool_notes(settings))
        self.why_finished = ""
        """Why nothing will be asked any more; empty while the study goes on."""
        self.why_waiting = ""
        """Why the last question had no answer, though later ones may."""
        self.is_thinking = False
        """Whether the tuner is still at the last question."""

    @property
    def is_finished(self) -> bool:
        return bool(self.why_finished)

    def restore(self, trials: Iterable[TrialRecord]) -> None:
        """Take in what was stored, running trials included."""
        for trial in trials:
            self.history.add(trial)

    def extend(self, settings: StudySettings) -> None:
        """Go on with as many trials as these settings say; what was used up may be so no more."""
        self.settings, self.why_finished = settings, ""

    def ask(self) -> Proposal | None:
        """The next point to try; None when there is none now, or, if `is_finished`, never again."""
        self.why_waiting, self.is_thinking = "", False
        self.why_finished = self._spent()
        if self.is_finished:
            return None
        answer = self.tuner.propose(self.history, self.history.next_number)
        if isinstance(answer, NoMore):
            self.why_finished = answer.reason
        elif isinstance(answer, (Wait, Thinking)):
            self.why_waiting, self.is_thinking = answer.reason, isinstance(answer, Thinking)
        else:
            self.history.add(TrialRecord(proposal=answer))
            return answer
        return None

    def tell(self, trial: TrialRecord) -> TrialRecord:
        """Take in how a trial ended; gives it back with its place in the order of endings, which is to be stored."""
        known = self.history.lessons.get(trial.number)
        if known is None:
            raise UsageError("a trial was reported that was never asked for", found=f"number {trial.number}")
        if not trial.is_finished:
            raise UsageError("a trial was reported that has not ended", found=f"number {trial.number}")
        if trial.end_order is None:
            before = known.trial.end_order
            order = self.history.next_end_order if before is None else before
            trial = msgspec.structs.replace(trial, end_order=order)
        self.history.add(trial)
        return trial

    def hand_on(self) -> None:
        """Report what has ended to classes of the user's own, as NNI does at once; they may raise anything."""
        for tool in self._user_tools():
            tool.hear(self.history)

    def leave(self, *, failed: bool = False) -> None:
        """The last word of a session to classes of the user's own, as in NNI; they may raise anything."""
        for tool in self._user_tools():
            tool.leave(failed=failed)

    def _user_tools(self) -> list[CustomTuner | CustomAdvisor | CustomAssessor]:
        tools = [self.tuner] if self.assessor is self.tuner else [self.tuner, self.assessor]
        return [tool for tool in tools if isinstance(tool, (CustomTuner, CustomAdvisor, CustomAssessor))]

    def take_ends(self) -> list[tuple[str, str]]:
        """Ids of running trials that the user's advisor wants ended, whichever trial made it want so, and why."""
        return self.tuner.take_ends() if isinstance(self.tuner, CustomAdvisor) else []

    def assess(self, trial: TrialRecord) -> Assessment:
        """Whether a running trial goes on, by its intermediate results so far."""
        if self.assessor is None or not trial.intermediates or trial.is_finished:
            return GO_ON
        return self.assessor.assess(self.history, trial)

    def _spent(self) -> str:
        """Whether the number of trials, or of points that cannot fit, is used up."""
        most = self.settings.max_trials
        if most is not None and self.history.num_started >= most:
            return f"{most} trials were started, as many as were asked for"
        if self._num_last_rejected() == MOST_REJECTIONS_PER_TRIAL:
            what = f"the last {MOST_REJECTIONS_PER_TRIAL} points cannot fit by prediction"
            return f"{what}: raise the memory limit or shrink the space"
        return ""

    def _num_last_rejected(self) -> int:
        """How many of the latest points in a row were rejected by prediction, up to the most that are allowed."""
        latest = islice(reversed(self.history.lessons.values()), MOST_REJECTIONS_PER_TRIAL)
        return sum(1 for _ in takewhile(lambda lesson: lesson.trial.kind == "rejected by prediction", latest))
