"""Coordinator of a study from its first trial to its last, through interruptions of every kind.

    ask the engine -> (predict, reject) -> store the proposal -> start -> hear -> tell the engine -> store the end

Every arrow may be the last thing this process does. A proposal that was stored and never started is started by the
next session; a trial that runs without its coordinator goes on and is taken up again, or its recorded end is; one
whose end was not recorded is run again with the same parameters. Ctrl-C starts nothing new and waits; a second one,
or SIGTERM, ends what runs, to be run again.
"""

from __future__ import annotations

import contextlib
import re
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec

from memfit.errors import MemfitError, StorageError
from memfit.job.network_size import known_size
from memfit.records.figure import Figure
from memfit.records.study import Proposal, Standing, StudySettings, TrialOutcome, TrialRecord
from memfit.study.control import Request, take_requests
from memfit.study.engine.engine import SearchEngine
from memfit.study.folder import new_id
from memfit.study.options import StudyOptions
from memfit.study.storage.interface import Proposed, Started, StudyExtent, now_text, study_of
from memfit.study.storage.write_ahead import StudyLog
from memfit.study.trials.files import Report, final_of, intermediates_of
from memfit.study.trials.gpus import GpuPool
from memfit.study.trials.prediction import TrialPredictor, verdict
from memfit.study.trials.process import INTERRUPTED, kept_gpus
from memfit.study.trials.result import TrialEnd
from memfit.study.trials.runner import News, Runner
from memfit.study.trials.trial_order import TrialOrder, absolute, command_of, trial_folder_name
from memfit.study.tuners.replicated_blocks import engine_for

DIE_ALIKE = 5
"""So many first trials of a session that fail with the same words end it: the rest would fail as well."""
MOST_ATTEMPTS = 3
"""A trial whose end is lost so many times is a failed one."""
WAIT_SECONDS = 0.5
LONG_THOUGHT_SECONDS = 30.0


class ToolGivenUp(Exception):
    """A class of the user's own did not come back, and the study is to end."""


class StudyWatcher(Protocol):
    """Receives the progress."""

    has_line: bool
    """Whether `tick` shows anything; then the memory of running trials is sampled for it."""

    def ended(self, trial: TrialRecord, standing: Standing) -> None: ...
    def note(self, sentence: str) -> None: ...
    def tick(self, standing: Standing) -> None: ...


@dataclass(slots=True)
class Coordinator:
    """One session of one study."""

    settings: StudySettings
    folder: Path
    log: StudyLog
    runner: Runner
    gpus: GpuPool
    watcher: StudyWatcher
    options: StudyOptions
    environment: dict[str, str] = field(default_factory=dict)
    """Variables that every trial gets besides those of the process that runs it."""
    engine: SearchEngine = field(init=False)
    predictor: TrialPredictor = field(init=False)
    orders: dict[int, TrialOrder] = field(default_factory=dict)
    """Of the trials that run now."""
    again: list[tuple[TrialRecord, int]] = field(default_factory=list)
    """Trials to start with the parameters they have, and the number of the attempt."""
    why_stopped: str = ""
    has_failed: bool = False
    """Whether that was no way for a study to end: its tuner failed, or its first trials all did."""
    problem: StorageError | None = None
    _starting: list[TrialOrder] = field(default_factory=list)
    """Trials of this round that are stored as started, and will be as soon as that is on disk."""
    _began: float = 0.0
    _num_interrupts: int = 0
    _tool_failed: bool = False
    """Whether a tuner or assessor raised; its last call is then the one for errors."""
    _thinks_since: float | None = None
    """When the tuner was asked what it has not answered yet."""
    _is_in_tool: bool = False
    _noted: set[str] = field(default_factory=set)
    _first_deaths: list[str] | None = field(default_factory=list)
    """How the first trials failed; None as soon as one has not."""

    # ---- the session ----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Go on until nothing is left to do; raises StorageError when the database lacks something in the end."""
        self._began = time.monotonic()
        self.engine = engine_for(self.settings)
        limited = self.settings.memory.limit_bytes is not None
        self.predictor = TrialPredictor(self.settings, wanted=self.options.predict and limited)
        study = study_of(self.log.study_id, self.log.facts)
        self.engine.restore(study.trials)
        if any(trial.was_run and trial.kind not in ("failed", "running") for trial in study.trials):
            self._first_deaths = None
        with self._signals():
            for trial in study.trials:
                self._take_up(trial)
            try:
                while self._go_on():
                    pass
            finally:
                self.predictor.close()
            self._leave()
        self.why_stopped = self.why_stopped or self.engine.why_finished
        self.log.close()
        if self.problem is not None:
            raise self.problem

    def _leave(self) -> None:
        """Let classes of the user's own write down what they want to keep."""
        try:
            with self._calling_tool():
                self.engine.leave(failed=self._tool_failed)
        except Exception as error:  # the study itself is complete
            self._note(f"the tuner or assessor failed at the end of the session: {_words(error)}")

    def _go_on(self) -> bool:
        """One round; False when there is nothing left to do."""
        self._obey()
        self._answer_requests()
        self._fill()
        if not self.orders:
            return self._await_prediction() or self._await_tuner()
        with self.log.together():
            for news in self.runner.wait(WAIT_SECONDS):
                self._hear(news)
        for trial_id, reason in self.engine.take_ends():
            self._end_trial(trial_id, TrialEnd(kind="stopped early", reason=reason))
        self.watcher.tick(self.standing())
        return True

    def _await_prediction(self) -> bool:
        """With nothing running, the answer to the point that is being predicted is all there is to wait for."""
        if not self.predictor.is_busy or self._has_to_stop():
            return False
        self._take_prediction(WAIT_SECONDS)
        self.watcher.tick(self.standing())
        return True

    def _await_tuner(self) -> bool:
        """With nothing running, a tuner that is at its answer is all there is to wait for."""
        if not self.engine.is_thinking or self._has_to_stop():
            return False
        self.watcher.tick(self.standing())
        return True

    def _take_up(self, trial: TrialRecord) -> None:
        """Go on with a trial that an earlier session proposed and did not see end."""
        if trial.is_finished:
            return
        if not trial.run_folder:
            self.again.append((trial, 1))
            return
        kept = kept_gpus(self.folder / trial_folder_name(trial.number, trial.num_attempts))
        if kept is not None:
            self.gpus.hold(trial.number, kept)
        order = self._order(trial, trial.num_attempts)
        if self.runner.adopt(order):
            self.orders[trial.number] = order
        else:
            self.gpus.give_back(trial.number)
            self.again.append((trial, trial.num_attempts + 1))

    # ---- starting -------------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Start as many trials as there is room for, once all of them are stored."""
        with self.log.together():
            self._choose()
        starting, self._starting = self._starting, []
        for order in starting:
            self._launch(order)

    def _choose(self) -> None:
        """Fill the room there is with trials that are to be started."""
        self._take_prediction()
        while not self._has_to_stop() and self.runner.has_room(len(self._starting)) and self.gpus.has_room():
            if self.again:
                self._start(*self.again.pop(0))
                continue
            if self.predictor.is_busy:
                return
            proposal = None if self.engine.is_finished else self._ask()
            if proposal is None:
                return
            if self.predictor.is_on:
                self.predictor.begin(proposal)
                self._take_prediction()
            else:
                self._begin(proposal, None)

    def _take_prediction(self, most_seconds: float = 0.0) -> None:
        """Begin with the point that was predicted meanwhile."""
        found = self.predictor.finished(most_seconds)
        if found is not None and not self._has_to_stop():
            self._begin(*found)

    def _has_to_stop(self) -> bool:
        most = self.settings.max_seconds
        if most is not None and not self.why_stopped and time.monotonic() - self._began > most:
            self.why_stopped = f"the study may take {most:g} s"
        return bool(self.why_stopped)

    def _ask(self) -> Proposal | None:
        """The next point; a tuner that raises ends the study, not what runs."""
        try:
            with self._calling_tool():
                proposal = self.engine.ask()
        except Exception as error:  # a tuner may be the user's own class
            self._tool_failed = True
            self._stop(f"the tuner failed: {_words(error)}")
            return None
        if self.engine.is_thinking:
            self._note_long_thought()
            return None
        self._thinks_since = None
        if proposal is None and not self.engine.is_finished and not self.orders and not self.again:
            self._stop(f"the tuner waits for a trial, but none runs: {self.engine.why_waiting}")
        return proposal

    def _note_long_thought(self) -> None:
        """Say once of every long silence of the tuner that it is the tuner who is waited for."""
        self._thinks_since = self._thinks_since or time.monotonic()
        if time.monotonic() - self._thinks_since > LONG_THOUGHT_SECONDS:
            self._note(f"the tuner is waited for: it has not answered for {LONG_THOUGHT_SECONDS:.0f} s")

    def _begin(self, proposal: Proposal, peak: Figure | None) -> None:
        """Store a new point, and put it in line unless it cannot fit."""
        trial_id = new_id(5)
        body = Proposed(proposal=proposal, trial_id=trial_id, predicted_peak=peak)
        self.log.add(f"p{proposal.number}", "proposed", body, proposal.number)
        known: dict[str, Any] = {} if peak is None else {"predicted_peak": peak}
        trial = TrialRecord(proposal=proposal, trial_id=trial_id, **known)
        rejection = verdict(peak, self.settings.memory.limit_bytes)
        if rejection is not None:
            reason = "the trial was not run"
            self._end(msgspec.structs.replace(trial, outcome=rejection, num_attempts=0, metric_reason=reason))
        else:
            self.again.append((trial, 1))

    def _start(self, trial: TrialRecord, attempt: int) -> None:
        """Store that one attempt starts, and put it among those that do."""
        order = self._order(trial, attempt)
        folder = trial_folder_name(trial.number, attempt)
        body = Started(attempt=attempt, folder=folder, started_at=now_text(), worker=order.worker)
        self.log.add(f"s{trial.number}.{attempt}", "started", body, trial.number)
        self.orders[trial.number] = order
        self._starting.append(order)

    def _launch(self, order: TrialOrder) -> None:
        """Start one attempt; when that is not possible here, the trial waits for another session."""
        try:
            if self.problem is None:
                self.runner.start(order)
        except StorageError as error:
            self.problem = error
            self._stop(str(error))
        if self.problem is not None:
            self._forget(order.number)

    def _order(self, trial: TrialRecord, attempt: int) -> TrialOrder:
        settings, name = self.settings, trial_folder_name(trial.number, attempt)
        return TrialOrder(
            study_id=self.log.study_id,
            trial_id=trial.trial_id,
            proposal=trial.proposal,
            command=command_of(settings),
            code_folder=absolute(settings.code_folder),
            folder=str(self.folder.absolute() / name),
            attempt=attempt,
            metric=settings.goal.metric,
            limit_bytes=settings.memory.limit_bytes,
            max_seconds=settings.max_trial_seconds,
            gpu_indices=self.gpus.take(trial.number),
            num_gpus=settings.gpus.num_gpus,
            route=settings.nni,
            profile=self.options.profile,
            live=self.watcher.has_line,
            predicted_peak=trial.predicted_peak,
            environment=self.environment,
            run_folder=f"{name}/run",
        )

    # ---- hearing --------------------------------------------------------------------------------------------------

    def _hear(self, news: News) -> None:
        order = self.orders.get(news.number)
        if news.problem:
            self._note(news.problem)
        if order is None:
            return
        if news.record is not None:
            self._end(news.record)
        elif news.is_lost:
            self._lose(order)
        elif news.reports:
            self._assess(order, list(news.reports))

    def _end(self, trial: TrialRecord) -> None:
        """A trial has ended: tell the engine, and store its record."""
        self._forget(trial.number)
        trial = self.engine.tell(self._completed(trial))
        self.log.add(f"e{trial.number}", "ended", trial, trial.number)
        try:
            with self._calling_tool():
                self.engine.hand_on()
        except Exception as error:  # a tuner or an assessor may be the user's own class
            self._tool_failed = True
            self._stop(f"the tuner or assessor failed at the result of trial {trial.number}: {_words(error)}")
        self.watcher.ended(trial, self.standing())
        self._watch_for_deaths(trial)

    def _watch_for_deaths(self, trial: TrialRecord) -> None:
        """Stop a study whose first trials all die alike, and say why."""
        if self._first_deaths is None or not trial.was_run:
            return
        if trial.kind != "failed":
            self._first_deaths = None
            return
        self._first_deaths.append(trial.outcome.message)
        if len({_alike(message) for message in self._first_deaths}) > 1:
            self._first_deaths = None
        elif len(self._first_deaths) == DIE_ALIKE:
            words = self._first_deaths[0] or "no message"
            self._stop(f"the first {DIE_ALIKE} trials all failed alike, so no further one is started: {words}")

    def _completed(self, trial: TrialRecord) -> TrialRecord:
        """The record with what the study knows beyond the trial."""
        others = known_size(self.settings.workload, {**self.settings.fixed, **trial.parameters})
        notes = trial.notes
        if self.settings.concurrency > 1 and trial.background.value is not None:
            notes = (*notes, f"up to {self.settings.concurrency - 1} other trials are in its background")
        return msgspec.structs.replace(trial, others={**trial.others, **others}, notes=notes)

    def _lose(self, order: TrialOrder) -> None:
        """It is unknown how it ended: once more, or, after several times, as a failure."""
        self._forget(order.number)
        trial = order.blank_record()
        if self._num_interrupts > 1:
            return  # ended by us; stored as running, which makes the next session run it again
        if order.attempt < MOST_ATTEMPTS:
            self._note(f"trial {order.number} was lost (its sampler died); it is run again with the same parameters")
            self.again.append((trial, order.attempt + 1))
            return
        message = f"its end was not recorded in {order.attempt} attempts"
        self._end(msgspec.structs.replace(trial, outcome=TrialOutcome(kind="failed", message=message)))

    def _forget(self, number: int) -> None:
        self.orders.pop(number, None)
        self.gpus.give_back(number)

    def _assess(self, order: TrialOrder, reports: list[Report]) -> None:
        """End a trial that the assessor finds hopeless."""
        if self.engine.assessor is None or final_of(reports) is not None:
            return
        trial = msgspec.structs.replace(order.blank_record(), intermediates=intermediates_of(reports, 0.0))
        try:
            with self._calling_tool():
                assessment = self.engine.assess(trial)
        except Exception as error:  # an assessor may be the user's own class
            self._note(f"the assessor failed: {_words(error)}; trials go on without it")
            return
        if assessment.stop:
            self.runner.end(order.number, TrialEnd(kind="stopped early", reason=assessment.reason))

    # ---- requests of other processes ------------------------------------------------------------------------------

    def _answer_requests(self) -> None:
        requests, refused = take_requests(self.folder)
        for sentence in refused:
            self._note(sentence)
        for request in requests:
            self._answer(request)

    def _answer(self, request: Request) -> None:
        if request.end_trial:
            reason = request.reason or "it was ended by hand (memfit study stop --trial)"
            if not self._end_trial(request.end_trial, TrialEnd(kind="cancelled", reason=reason)):
                self._note(f"no trial {request.end_trial} runs, so none was ended")
        asked = extent_of(self.settings)
        wanted = StudyExtent(
            max_trials=asked.max_trials if request.max_trials is None else request.max_trials,
            max_seconds=asked.max_seconds if request.max_seconds is None else request.max_seconds,
            concurrency=asked.concurrency if request.concurrency is None else request.concurrency,
            max_trial_seconds=asked.max_trial_seconds,
        )
        if wanted != asked:
            self._extend(wanted)

    def _extend(self, wanted: StudyExtent) -> None:
        """Go on with another number of trials, at a time or in all, or for longer."""
        self.log.add(f"x{len(self.log.facts)}", "settings", wanted)
        self.settings = wanted.applied(self.settings)
        self.engine.extend(self.settings)
        self.runner.widen(wanted.concurrency)

    def _end_trial(self, name: str, ending: TrialEnd) -> bool:
        """End a running trial, by its id or its number; False when none of that name runs."""
        found = [order for order in self.orders.values() if name in (order.trial_id, str(order.number))]
        for order in found:
            self.runner.end(order.number, ending)
        return bool(found)

    # ---- telling --------------------------------------------------------------------------------------------------

    def standing(self) -> Standing:
        """How far the study is."""
        wanted = self._num_wanted()
        return Standing(
            num_finished=self.engine.history.num_ended_runs,
            num_wanted=wanted,
            num_running=len(self.orders),
            seconds=time.monotonic() - self._began,
            seconds_left=self._seconds_left(wanted),
            live=tuple(self.runner.live()) if self.watcher.has_line else (),
            is_ending=self.was_interrupted,
        )

    def _num_wanted(self) -> int | None:
        tuner = self.engine.tuner
        num_points = len(tuner.order) if hasattr(tuner, "order") else None  # pyright: ignore[reportAttributeAccessIssue]
        known = [number for number in (self.settings.max_trials, num_points) if number is not None]
        return min(known) if known else None

    def _seconds_left(self, wanted: int | None) -> float | None:
        """By the mean of the trials that ran, so many at a time; never more than the study may take."""
        history, most = self.engine.history, self.settings.max_seconds
        by_clock = None if most is None else max(0.0, most - (time.monotonic() - self._began))
        if not history.num_timed or wanted is None:
            return by_clock
        left = max(0, wanted - history.num_ended_runs)
        by_count = left * history.timed_seconds / history.num_timed / self.settings.concurrency
        return by_count if by_clock is None else min(by_count, by_clock)

    def _note(self, sentence: str) -> None:
        """Say something once."""
        if sentence not in self._noted:
            self._noted.add(sentence)
            self.watcher.note(sentence)

    def _stop(self, why: str) -> None:
        """End a study that cannot go on."""
        self.has_failed = self.has_failed or not self.why_stopped
        self.why_stopped = self.why_stopped or why
        self._note(why)

    # ---- signals --------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM end the study, not the program; only the main thread may listen to them."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _interrupt(self, number: int, _: object) -> None:
        """Only count: what is to be done is done between two rounds, where nothing is half done. A class of the user's
        own that is in a call then, and may never come back, is given up at the second time."""
        self._num_interrupts += 2 if number == signal.SIGTERM else 1
        if self._num_interrupts > 1 and self._is_in_tool:
            raise ToolGivenUp("it was interrupted while it was busy")

    @contextlib.contextmanager
    def _calling_tool(self) -> Iterator[None]:
        """While a tuner or an assessor is called, which may be the user's own class."""
        self._is_in_tool = True
        try:
            yield
        finally:
            self._is_in_tool = False

    def _obey(self) -> None:
        if not self._num_interrupts:
            return
        self.why_stopped = "interrupted"
        if self._num_interrupts > 1:
            for running in list(self.orders):
                self.runner.end(running, INTERRUPTED, at_once=self._num_interrupts > 2)
        elif self.orders:
            self._note(f"waiting for {len(self.orders)} running trials; press Ctrl-C again to end them")

    @property
    def was_interrupted(self) -> bool:
        return self._num_interrupts > 0


def extent_of(settings: StudySettings) -> StudyExtent:
    """What may change from one session to the next."""
    return StudyExtent(
        max_trials=settings.max_trials,
        max_seconds=settings.max_seconds,
        concurrency=settings.concurrency,
        max_trial_seconds=settings.max_trial_seconds,
    )


def _alike(message: str) -> str:
    """A message without its numbers: those of processes, lines and files differ from trial to trial."""
    return re.sub(r"0x[0-9a-fA-F]+|\d+(\.\d+)?(e-?\d+)?", "#", message)


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, MemfitError) else f"{type(error).__name__}: {error}"
