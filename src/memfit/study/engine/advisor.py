"""Runs advisor classes written for NNI: one class of the user's own that chooses points and ends trials.

An advisor is a `MsgDispatcherBase` that is called with the messages NNI 3 would send (initialize, request trial jobs,
metrics, ends of trials) and answers by `send`: a new trial, no more trials, the end of a trial. It is called with an
intermediate result when that is read, and with the end of a trial when it has ended.

An advisor's state is its own. After a restart a new one is made and called with `handle_import_data` for the trials
that have ended, as NNI does when it resumes; trials of the earlier session that still run go on unseen by it.
"""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from memfit.errors import UsageError
from memfit.records.study import Assessment, Proposal, SearchSpace, TrialRecord
from memfit.study.assessors.median_stop import GO_ON
from memfit.study.engine.history import History
from memfit.study.engine.user_classes import as_reported, last_word
from memfit.study.space.nni_space import write_space
from memfit.study.tuners.base import Answer, NoMore, Wait

EVENTS = {
    "done": "SUCCEEDED",
    "failed": "FAILED",
    "out of memory": "FAILED",
    "over the limit": "FAILED",
    "out of time": "EARLY_STOPPED",
    "stopped early": "EARLY_STOPPED",
    "cancelled": "USER_CANCELED",
}
"""How NNI calls the end of a trial."""
NOT_RUN_EVENT = "FAILED"
"""Of a point that was rejected by prediction: no trial of NNI's, but the advisor waits for its end."""


def is_advisor(made: object) -> bool:
    """Whether an object of the user's class takes messages, where a tuner is asked for parameters."""
    return hasattr(made, "handle_request_trial_jobs")


class NniAdvisor(Protocol):
    """What an advisor class written for NNI has."""

    send: Callable[..., None]

    def handle_initialize(self, data: dict[str, object]) -> None: ...
    def handle_request_trial_jobs(self, data: int) -> None: ...
    def handle_import_data(self, data: list[dict[str, object]]) -> None: ...
    def handle_report_metric_data(self, data: dict[str, object]) -> None: ...
    def handle_trial_end(self, data: dict[str, object]) -> None: ...


class CustomAdvisor:
    """An advisor behind the interface of tuners and that of assessors."""

    def __init__(self, advisor: NniAdvisor, space: SearchSpace, metric: str) -> None:
        self.advisor = advisor
        self.metric = metric
        self.values_are_json = getattr(self.advisor, "values_are_json", True)
        """NNI 3 hands metrics over as JSON; advisors that import the names of NNI 1 get plain values."""
        self._waiting: deque[dict[str, Any]] = deque()
        self._ends: dict[str, str] = {}
        self._parameter_ids: dict[int, int] = {}
        """By trial number, of the trials that this advisor asked for."""
        self._num_heard: dict[int, int] = {}
        self._num_ended = 0
        self._has_no_more = False
        self._may_request = True
        self._listen()
        self.advisor.handle_initialize(write_space(space))

    def _listen(self) -> None:
        self.advisor.send = self._sent
        module = sys.modules.get("nni.protocol")
        if module is not None:
            module.receiver = self._sent  # pyright: ignore[reportAttributeAccessIssue]

    # ---- points -----------------------------------------------------------------------------------------------------

    def propose(self, history: History, number: int) -> Answer:
        self._catch_up(history)
        if not self._waiting and self._may_request:
            self._may_request = self._has_no_more = False
            self.advisor.handle_request_trial_jobs(1)
        if self._waiting:
            return self._proposal(number, self._waiting.popleft())
        if history.num_running == 0 and self._has_no_more:
            return NoMore("the advisor has no more trials")
        return Wait("the advisor sends no trial now")

    def _proposal(self, number: int, sent: dict[str, object]) -> Proposal:
        parameters = sent.get("parameters")
        if not isinstance(parameters, dict):
            raise UsageError("the advisor sent a trial whose parameters are no dict", found=repr(parameters)[:200])
        parameter_id = sent["parameter_id"]
        assert isinstance(parameter_id, int)
        self._parameter_ids[number] = parameter_id
        return Proposal(number=number, parameters=parameters, memo={"parameter_id": parameter_id})

    def hear(self, history: History) -> None:
        """Take in what has ended, without a question."""
        self._catch_up(history)

    def leave(self, *, failed: bool) -> None:
        last_word(self.advisor, failed=failed)

    def _catch_up(self, history: History) -> None:
        """Report the trials that have ended since the last time, in the order they did."""
        earlier = []
        for lesson in history.finished_in_order()[self._num_ended :]:
            self._num_ended += 1
            self._may_request = True
            if lesson.number in self._parameter_ids:
                self._report_end(lesson.trial)
            elif lesson.trial.metric is not None:
                value = as_reported(lesson.trial.metric, lesson.trial.others, self.metric)
                earlier.append({"parameter": lesson.trial.parameters, "value": value})
        if earlier:
            self._import(earlier)

    def _import(self, earlier: list[dict[str, object]]) -> None:
        try:
            self.advisor.handle_import_data(earlier)
        except NotImplementedError:
            return  # its base class says so: this advisor begins anew, as under NNI

    def _report_end(self, trial: TrialRecord) -> None:
        self._report_intermediates(trial)
        if trial.metric is not None:
            self._report(trial, "FINAL", 0, as_reported(trial.metric, trial.others, self.metric))
        sent = {"parameter_id": self._parameter_ids[trial.number], "parameters": trial.parameters}
        self.advisor.handle_trial_end(
            {
                "trial_job_id": trial.trial_id,
                "event": EVENTS.get(trial.kind, NOT_RUN_EVENT),
                "hyper_params": json.dumps(sent),
            }
        )

    # ---- running trials ---------------------------------------------------------------------------------------------

    def assess(self, history: History, trial: TrialRecord) -> Assessment:
        if trial.number not in self._parameter_ids:
            return GO_ON
        self._report_intermediates(trial)
        reason = self._ends.pop(trial.trial_id, "")
        return Assessment(stop=True, reason=reason) if reason else GO_ON

    def take_ends(self) -> list[tuple[str, str]]:
        """Trials that the advisor wants ended, and why."""
        ends, self._ends = self._ends, {}
        return list(ends.items())

    def _report_intermediates(self, trial: TrialRecord) -> None:
        known = self._num_heard.get(trial.number, 0)
        for report in trial.intermediates[known:]:
            self._report(trial, "PERIODICAL", report.sequence, as_reported(report.value, report.others, self.metric))
        self._num_heard[trial.number] = max(known, len(trial.intermediates))

    def _report(self, trial: TrialRecord, kind: str, sequence: int, value: object) -> None:
        self.advisor.handle_report_metric_data(
            {
                "parameter_id": self._parameter_ids[trial.number],
                "trial_job_id": trial.trial_id,
                "type": kind,
                "sequence": sequence,
                "value": json.dumps(value) if self.values_are_json else value,
            }
        )

    # ---- answers ----------------------------------------------------------------------------------------------------

    def _sent(self, command: object, data: str = "") -> None:
        """One message of the advisor."""
        word = getattr(command, "value", command)
        word = word.decode() if isinstance(word, bytes) else str(word)
        if word == "TR":
            self._waiting.append(json.loads(data))
            self._may_request = True
        elif word == "NO":
            self._has_no_more = True
        elif word == "KI":
            self._ends[json.loads(data)] = f"{type(self.advisor).__name__} ended it"
        elif word != "ID":
            raise UsageError("the advisor sent a message that is not supported", found=f"{word}: {data}"[:200])
