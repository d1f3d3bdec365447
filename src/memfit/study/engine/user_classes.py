"""Runs tuner and assessor classes written for NNI, unchanged.

The class is imported from its folder with `nni` on the path: the installed NNI where there is one (the class may use
other parts of it), memfit's stand-in where not. It lives in this process and has a state of its own, so after a restart
its history is replayed: the same questions and results in the same order, with the parameters that were really used.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from memfit.errors import UsageError
from memfit.records.study import Assessment, Intermediate, Proposal, SearchSpace, Tool, TrialRecord
from memfit.study.assessors.median_stop import GO_ON
from memfit.study.engine.history import History, Lesson
from memfit.study.engine.user_calls import UserCalls
from memfit.study.space.nni_space import write_space
from memfit.study.trials.files import shim_folder
from memfit.study.tuners.base import Answer, NoMore, Thinking, Wait

LEAVE_SECONDS = 5.0
"""A call that is not over by then when a session ends is given up."""


def make_custom(tool: Tool) -> Any:
    """Import the class and make one."""
    module_name, _, class_name = tool.class_name.rpartition(".")
    hint = "className: module.Class, and codeDirectory: the folder the module is in"
    if not module_name:
        raise UsageError("a custom tuner or assessor needs module.Class", found=tool.class_name, hint=hint)
    _have_nni()
    if tool.code_folder not in ("", *sys.path[:1]):
        sys.path.insert(0, tool.code_folder)
    _forget_another(module_name, tool.code_folder)
    with _without_server():
        try:
            made = getattr(importlib.import_module(module_name), class_name)
        except (ImportError, AttributeError, SyntaxError) as error:
            raise UsageError(f"{tool.class_name} cannot be imported", found=str(error), hint=hint) from error
        try:
            return made(**tool.arguments)
        except Exception as error:
            found, hint = f"{type(error).__name__}: {error}", "see classArgs"
            raise UsageError(f"{tool.class_name} does not take its arguments", found=found, hint=hint) from error


@contextlib.contextmanager
def _without_server() -> Iterator[None]:
    """An advisor of the installed NNI 3.0 connects to its server when it is made, unless the address is this one."""
    name, address = "NNI_TUNER_COMMAND_CHANNEL", "ws://_unittest_memfit"
    os.environ[name] = address
    try:
        yield
    finally:
        os.environ.pop(name, None)


def _forget_another(module_name: str, folder: str) -> None:
    """A module of the same name from another study's folder must not answer for this one."""
    own = Path(folder) / f"{module_name.replace('.', '/')}.py"
    loaded = getattr(sys.modules.get(module_name), "__file__", None)
    if folder and loaded and own.is_file() and Path(loaded).resolve() != own.resolve():
        del sys.modules[module_name]


def _have_nni() -> None:
    """Let `import nni` succeed in this process."""
    if "nni" not in sys.modules and importlib.util.find_spec("nni") is None:
        sys.path.append(str(shim_folder()))


def as_reported(value: float | None, others: Mapping[str, object], metric: str) -> object:
    """The result as the trial reported it: a number, or a dict."""
    return {metric: value, **others} if others else value


def last_word(tool: object, *, failed: bool) -> None:
    """Call the method by which NNI says that no more comes, where the class has it (its base class of NNI does)."""
    method = getattr(tool, "_on_error" if failed else "_on_exit", None)
    if callable(method):
        method()


class NniTuner(Protocol):
    """What a tuner class written for NNI has."""

    def update_search_space(self, search_space: dict[str, object]) -> None: ...
    def generate_multiple_parameters(
        self, parameter_id_list: list[int], **kwargs: object
    ) -> list[dict[str, object]]: ...
    def receive_trial_result(
        self, parameter_id: int, parameters: dict[str, object], value: object, **kwargs: object
    ) -> None: ...
    def trial_end(self, parameter_id: int, success: bool, **kwargs: object) -> None: ...


class CustomTuner:
    """A tuner class behind memfit's seam."""

    def __init__(self, tuner: NniTuner, space: SearchSpace, metric: str) -> None:
        self.tuner = tuner
        self.metric = metric
        self.tuner.update_search_space(write_space(space))
        self._asked: set[int] = set()
        self._asks = False
        """Whether the call that it is at is a question."""
        self._num_reported = 0
        self._late: deque[tuple[int, dict[str, Any]]] = deque()
        """Parameters the tuner sent by its callback, after it had none when it was asked."""
        self._calls = UserCalls()
        self._heard: History | None = None
        """The last that it was called with, or is to be."""

    def propose(self, history: History, number: int) -> Answer:
        if not self._asks and not self._may_begin():
            return self._thinking()
        if not self._asks:
            seen = _as_it_stands(history)
            self._calls.begin(lambda: self._answer(seen, number))
            self._asks = True
        try:
            end = self._calls.ended()
        except BaseException:
            self._asks = False
            raise
        if end is None:
            return self._thinking()
        self._asks = False
        assert isinstance(end.value, Answer)
        return end.value

    def _may_begin(self) -> bool:
        """Whether the last call is over; raises what the class raised."""
        return not self._calls.is_busy or self._calls.ended() is not None

    def _thinking(self) -> Thinking:
        return Thinking(f"{type(self.tuner).__name__} has not answered for {self._calls.seconds:.0f} s")

    def _answer(self, history: History, number: int) -> Answer:
        self._catch_up(history)
        parameters = self._generate(number)
        if parameters is None:
            reason = "the tuner has no more parameters"
            return Wait(reason) if history.num_running else NoMore(reason)
        self._asked.add(number)
        return Proposal(number=number, parameters=parameters, memo={"num_told": self._num_reported})

    def hear(self, history: History) -> None:
        """Take in what has ended, without a question; a class that is busy hears of it before its next question."""
        self._heard = history
        if self._asks or not self._may_begin():
            return
        seen = _as_it_stands(history)
        self._calls.begin(lambda: self._catch_up(seen))
        self._calls.ended()

    def leave(self, *, failed: bool) -> None:
        """Everything it has not heard of, then its last word; a call that it is at is waited for a while only."""
        if self._calls.is_busy and self._calls.ended(LEAVE_SECONDS) is None:
            raise TimeoutError(f"it was still at its last call, for {self._calls.seconds:.0f} s")
        if self._heard is not None and not failed:
            self._catch_up(self._heard)
        last_word(self.tuner, failed=failed)

    def _catch_up(self, history: History) -> None:
        """Tell what the tuner does not know yet, in the order it happened."""
        finished = history.finished_in_order()
        for lesson in history:
            if lesson.number not in self._asked:
                self._tell(finished[self._num_reported : lesson.trial.proposal.memo.get("num_told", 0)])
                self._generate(lesson.number)
                self._asked.add(lesson.number)
        self._tell(finished[self._num_reported :])

    def _generate(self, number: int) -> dict[str, Any] | None:
        """Ask for one set; sets that come late by the callback go to the next question."""
        found = self.tuner.generate_multiple_parameters([number], st_callback=self._send_late)
        if found:
            return found[0]
        return self._late.popleft()[1] if self._late else None

    def _send_late(self, parameter_id: int, parameters: dict[str, Any]) -> None:
        self._late.append((parameter_id, parameters))

    def _tell(self, lessons: list[Lesson]) -> None:
        for lesson in lessons:
            self._num_reported += 1  # first: a result at which the tuner raises is not reported again
            self._tell_one(lesson)

    def _tell_one(self, lesson: Lesson) -> None:
        trial = lesson.trial
        if trial.metric is not None and not lesson.is_infeasible and trial.kind != "stopped early":
            value = as_reported(trial.metric, trial.others, self.metric)
            self.tuner.receive_trial_result(
                trial.number, trial.parameters, value, customized=False, trial_job_id=trial.trial_id
            )
        # A class that knows of memory may say so by having this method; NNI's own interface has no word for it.
        if lesson.is_infeasible and hasattr(self.tuner, "receive_infeasible"):
            self.tuner.receive_infeasible(  # pyright: ignore[reportAttributeAccessIssue]
                trial.number, trial.parameters, lesson.violation
            )
        self.tuner.trial_end(trial.number, trial.kind == "done", trial_job_id=trial.trial_id)


def _as_it_stands(history: History) -> History:
    """The trials of this moment, for a thread that reads them while others end."""
    return replace(history, lessons=dict(history.lessons))


class CustomAssessor:
    """An assessor class behind memfit's seam."""

    def __init__(self, tool: Tool, metric: str) -> None:
        self.assessor = make_custom(tool)
        self.metric = metric
        self._assessed: set[int] = set()
        self._ended: set[int] = set()

    def hear(self, history: History) -> None:
        """Take in which trials have ended."""
        for lesson in history.finished_in_order():
            self._end(lesson.trial)

    def leave(self, *, failed: bool) -> None:
        last_word(self.assessor, failed=failed)

    def assess(self, history: History, trial: TrialRecord) -> Assessment:
        self.hear(history)
        self._assessed.add(trial.number)
        result = self.assessor.assess_trial(trial.trial_id, self._reports(trial.intermediates))
        is_good = result.value if hasattr(result, "value") else bool(result)
        return GO_ON if is_good else Assessment(stop=True, reason=f"{type(self.assessor).__name__} found it bad")

    def _end(self, trial: TrialRecord) -> None:
        if trial.number in self._ended or not trial.intermediates:
            return
        self._ended.add(trial.number)
        if trial.number not in self._assessed:
            self.assessor.assess_trial(trial.trial_id, self._reports(trial.intermediates))
        self.assessor.trial_end(trial.trial_id, trial.kind == "done")

    def _reports(self, intermediates: tuple[Intermediate, ...]) -> list[Any]:
        return [as_reported(report.value, report.others, self.metric) for report in intermediates]
