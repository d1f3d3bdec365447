"""Interface between coordinator and machines that run trials, and the runner on this machine."""

from __future__ import annotations

import selectors
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from memfit.measure.sampler.process_tree import become_subreaper
from memfit.records.study import LiveTrial, TrialRecord
from memfit.study.trials.files import Report
from memfit.study.trials.process import INTERRUPTED, TrialProcess
from memfit.study.trials.result import TrialEnd
from memfit.study.trials.trial_order import TrialOrder

LOOK_SECONDS = 0.1
"""How often the reports of running trials are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What was heard of one trial."""

    number: int
    reports: Sequence[Report] = ()
    """All reports so far, when there are new ones."""
    record: TrialRecord | None = None
    """The trial's record, when it has ended."""
    is_lost: bool = False
    """Its end was not recorded: it is to be run again with the same parameters."""
    problem: str = ""
    worker: str = ""
    """Set when a worker of a cluster has begun with it."""


class Runner(Protocol):
    """Runs trials somewhere."""

    def has_room(self, num_starting: int = 0) -> bool:
        """Whether another trial may start besides those that run and so many that are about to."""
        ...

    def widen(self, concurrency: int) -> None:
        """Run so many trials at a time from now on."""
        ...

    def start(self, order: TrialOrder) -> None: ...
    def adopt(self, order: TrialOrder) -> bool:
        """Take up a trial of an earlier session; False when it has to be run again."""
        ...

    def wait(self, timeout_seconds: float) -> list[News]: ...
    def end(self, number: int, ending: TrialEnd, *, at_once: bool = False) -> None: ...
    def live(self) -> list[LiveTrial]:
        """How the running trials stand, for the eye."""
        ...

    def close(self) -> None: ...


@dataclass(slots=True)
class LocalRunner:
    """Runs up to so many trials at a time on this machine; everything happens in the caller's thread."""

    concurrency: int
    trials: dict[int, TrialProcess] = field(default_factory=dict)
    _waiting: list[News] = field(default_factory=list)
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    _next_look: float = 0.0

    def __post_init__(self) -> None:
        become_subreaper()  # what a dead sampler leaves behind becomes ours to end

    def has_room(self, num_starting: int = 0) -> bool:
        return len(self.trials) + num_starting < self.concurrency

    def widen(self, concurrency: int) -> None:
        self.concurrency = concurrency

    def start(self, order: TrialOrder) -> None:
        trial = TrialProcess(order)
        trial.start()
        self._take(trial)

    def adopt(self, order: TrialOrder) -> bool:
        trial = TrialProcess(order)
        if trial.adopt():
            self._take(trial)
            return True
        record = trial.conclude()
        if record is not None:
            self._waiting.append(News(number=order.number, record=record))
        return record is not None

    def wait(self, timeout_seconds: float) -> list[News]:
        news, self._waiting = self._waiting, []
        if news or not self.trials:
            return news
        for key, _ in self._selector.select(min(timeout_seconds, LOOK_SECONDS)):
            trial: TrialProcess = key.data
            self._selector.unregister(trial.fileno())
            trial.take_leave()
            news.append(self._concluded(trial))
        return [*self._look(), *news]

    def end(self, number: int, ending: TrialEnd, *, at_once: bool = False) -> None:
        if number in self.trials:
            self.trials[number].end(ending, at_once=at_once)

    def live(self) -> list[LiveTrial]:
        return [
            LiveTrial(number=number, seconds=trial.seconds, state=trial.live) for number, trial in self.trials.items()
        ]

    def close(self) -> None:
        """End what still runs, with everything it has started."""
        for trial in self.trials.values():
            trial.end(INTERRUPTED)
        while self.trials:
            self.wait(LOOK_SECONDS)
        self._selector.close()

    def _take(self, trial: TrialProcess) -> None:
        self.trials[trial.order.number] = trial
        self._selector.register(trial.fileno(), selectors.EVENT_READ, trial)

    def _concluded(self, trial: TrialProcess) -> News:
        del self.trials[trial.order.number]
        record = trial.conclude()
        return News(number=trial.order.number, record=record, is_lost=record is None)

    def _look(self) -> list[News]:
        """Read reports and clocks, now and then."""
        now = time.monotonic()
        if now < self._next_look:
            return []
        self._next_look = now + LOOK_SECONDS
        news = []
        for number, trial in list(self.trials.items()):
            trial.hear()
            trial.look_at_the_clock()
            if trial.read_reports():
                news.append(News(number=number, reports=tuple(trial.reports)))
        return news
