"""Runs the trials of a study on a Dask cluster.

A trial asks for its predicted peak as the resource `memory` and for its GPUs as the resource `GPU`, where the
workers offer them (`dask worker --resources "memory=16e9,GPU=1"`), so that the scheduler packs by bytes. A worker
that is lost loses nothing: the scheduler gives the same order to another one. The limit that a nanny puts on its
worker's memory has to be off (`--memory-limit 0`): it would end trials by a rule of its own.

As soon as a worker has begun with a trial, the scheduler is asked to keep it for a client that stands for the study and
is never connected. So it belongs to no session: when the coordinator is killed the trial goes on, and the next session
takes it up, or the result that waits for it. (The two messages are those of Dask's own `fire_and_forget`, read in
distributed 2026.8; publishing each trial as a dataset does the same at three times the cost.)
"""

from __future__ import annotations

import io
import platform
import queue
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from distributed import Client, Event, Future

from memfit.errors import UsageError
from memfit.records.study import LiveTrial, StudySettings, TrialOutcome
from memfit.study.trials.cluster.distributed_trial import Answer, WorkerNews, ending_name, run_on_worker, topic
from memfit.study.trials.process import INTERRUPTED, TrialProcess
from memfit.study.trials.result import TrialEnd
from memfit.study.trials.runner import News
from memfit.study.trials.trial_order import TrialOrder
from memfit.version import VERSION

CONNECT_SECONDS = 20
OFFER_SECONDS = 5.0
"""How long an answer of the scheduler on what workers offer is believed."""
PATIENT_SECONDS = 60.0
"""After so long without a worker for waiting trials, the reason is looked for; jobs may well wait in a queue."""
CLOCK_SECONDS = 5.0
"""A worker whose clock is further off than this is named."""


class DaskRunner:
    """Sends orders to a scheduler and takes in what comes back; Dask's threads only fill the queue."""

    task = staticmethod(run_on_worker)
    """What a worker does with an order."""

    def __init__(
        self,
        client: Client,
        settings: StudySettings,
        tell: Callable[[str], None],
        why_no_worker: Callable[[], str] = lambda: "",
    ) -> None:
        self.tell = tell
        self.why_no_worker = why_no_worker
        """Asked when no worker takes a trial for long: what is known of the reason."""
        self.settings = settings
        self.client = client
        self.orders: dict[int, TrialOrder] = {}
        self._futures: dict[int, Future] = {}
        self._queue: queue.Queue[News] = queue.Queue()
        self._noted: set[str] = set()
        self._kept: set[str] | None = None
        """What earlier sessions left with the scheduler; None before it was asked."""
        self._is_listening = False
        self._offered: dict[str, float] = {}
        self._ask_again_at = 0.0
        self._begun: dict[int, list[str]] = {}
        self._endings: dict[int, TrialEnd] = {}
        self._complain_at: float | None = None
        self._check_workers()

    def has_room(self, num_starting: int = 0) -> bool:
        return len(self.orders) + num_starting < self.settings.concurrency

    def widen(self, concurrency: int) -> None:
        self.settings = msgspec.structs.replace(self.settings, concurrency=concurrency)

    def start(self, order: TrialOrder) -> None:
        self._expect(order)
        future = self.client.submit(
            self.task,
            msgspec.json.encode(order),
            key=task_key(order),
            pure=False,
            retries=0,
            resources=self._wishes(order) or None,
        )
        self._follow(order.number, future)

    def adopt(self, order: TrialOrder) -> bool:
        """Take up a trial that an earlier session gave to this scheduler; another scheduler does not know it."""
        if self._kept is None:
            self._kept = _known_keys(self.client, f"memfit-{order.study_id}-")
        if task_key(order) not in self._kept:
            return self._adopt_from_home(order)
        self._expect(order)
        self._begun.setdefault(order.number, [])  # a worker had taken it, as far as this session knows
        self._follow(order.number, Future(task_key(order), self.client))
        self._want(order, self.client.id)
        return True

    def _want(self, order: TrialOrder, client_name: str, *, no_more: bool = False) -> None:
        """Say to the scheduler that a client wants a trial's result, or does so no more."""
        op = "client-releases-keys" if no_more else "client-desires-keys"
        self.client._send_to_scheduler({"op": op, "keys": [task_key(order)], "client": client_name})

    def _adopt_from_home(self, order: TrialOrder) -> bool:
        """Take the record of a trial whose files had come home when the coordinator was killed."""
        record = TrialProcess(order).conclude() if Path(order.folder, "run").is_dir() else None
        if record is not None:
            self.orders[order.number] = order
            self._queue.put(News(number=order.number, record=record))
        return record is not None

    def _expect(self, order: TrialOrder) -> None:
        """Be ready for news of a trial before it is given out: the scheduler keeps none for a later listener."""
        if not self._is_listening:
            self.client.subscribe_topic(topic(order.study_id), self._heard)
            self._is_listening = True
        self.orders[order.number] = order

    def _follow(self, number: int, future: Future) -> None:
        self._futures[number] = future
        future.add_done_callback(lambda done: self._queue.put(self._answer(number, done)))

    def wait(self, timeout_seconds: float) -> list[News]:
        self._watch_for_workers()
        news = []
        try:
            news.append(self._queue.get(timeout=timeout_seconds))
            while True:
                news.append(self._queue.get_nowait())
        except queue.Empty:
            pass
        for each in news:
            if each.record is not None or each.is_lost:
                self._forget(each.number)
        return news

    def _watch_for_workers(self) -> None:
        """Say it, and again after a while, when trials wait and no worker has ever taken one."""
        if self._begun or not self.orders:
            self._complain_at = None
            return
        now = time.monotonic()
        self._complain_at = self._complain_at or now + PATIENT_SECONDS
        if now >= self._complain_at:
            self._complain_at = now + 10 * PATIENT_SECONDS
            why = self.why_no_worker()
            said = f"; the last line of its log: {why}" if why else "; Ctrl-C twice ends the study, to be resumed"
            self.tell(f"{len(self.orders)} trials wait, and no worker has taken one for a while{said}")

    def _forget(self, number: int) -> None:
        """Let the scheduler drop the trial, whose result is home."""
        order, future = self.orders.pop(number, None), self._futures.pop(number, None)
        if order is not None and future is not None:
            self._want(order, keeper_name(order.study_id), no_more=True)

    def end(self, number: int, ending: TrialEnd, *, at_once: bool = False) -> None:
        order = self.orders.get(number)
        if order is None:
            return
        self._endings[number] = ending
        Event(ending_name(order.study_id, number, order.attempt), client=self.client).set()
        if ending == INTERRUPTED:
            self._futures[number].cancel(force=True)

    def live(self) -> list[LiveTrial]:
        return [LiveTrial(number=number) for number in self.orders]

    def close(self) -> None:
        for number in list(self.orders):
            self.end(number, INTERRUPTED)
            self._forget(number)
        self.client.close()

    # ---- what a trial needs, and what workers offer ------------------------------------------------------------------

    def _wishes(self, order: TrialOrder) -> dict[str, float]:
        """What to ask for, of what is offered now: a wish that no worker can grant would wait for ever."""
        wishes, offered = dict[str, float](), self._offers()
        predicted = order.predicted_peak
        peak = None if predicted is None else predicted.value if predicted.value is not None else predicted.high
        if peak is not None and "memory" in offered:
            wishes["memory"] = min(peak, offered["memory"])
        if order.num_gpus and "GPU" in offered:
            wishes["GPU"] = min(float(order.num_gpus), offered["GPU"])
        return wishes

    def _offers(self) -> dict[str, float]:
        """What workers offer; asked for now and then, since a thousand of them have much to say."""
        if time.monotonic() >= self._ask_again_at:
            self._offered = _resources(self.client)
            self._ask_again_at = time.monotonic() + OFFER_SECONDS
        return self._offered

    def _check_workers(self) -> None:
        """Say what would make trials wait for ever, or falsify what is measured."""
        workers = self.client.scheduler_info(n_workers=-1)["workers"]
        if not workers:
            self.tell("the cluster has no workers yet; trials start when one joins")
        limited = [address for address, facts in workers.items() if facts.get("memory_limit")]
        if limited:
            what = f"{len(limited)} workers have a memory limit of their own (the first: {limited[0]})"
            self.tell(f"{what}; start workers with --memory-limit 0, or theirs may end trials")
        if self.settings.gpus.num_gpus and workers and "GPU" not in _resources(self.client):
            self.tell("no worker offers GPUs; start one worker per GPU with --resources GPU=1")

    # ---- hearing -----------------------------------------------------------------------------------------------------

    def _heard(self, event: Any) -> None:
        """One event of a worker; runs in a thread of Dask."""
        try:
            news = msgspec.json.decode(event[1], type=WorkerNews)
        except (msgspec.DecodeError, TypeError, IndexError):
            return
        problem = self._difference(news)
        if not news.reports:
            self._begun.setdefault(news.number, []).append(news.worker)
            if (order := self.orders.get(news.number)) is not None:
                self._want(order, keeper_name(order.study_id))
        self._queue.put(News(number=news.number, reports=news.reports, worker=news.worker, problem=problem))

    def _difference(self, news: WorkerNews) -> str:
        """What is odd about a worker, said once."""
        home = platform.python_version()
        off_seconds = abs(time.time() - news.unix_seconds)
        problems = []
        if news.python.split(".")[:2] != home.split(".")[:2]:
            problems.append(f"runs Python {news.python}, the coordinator {home}")
        if news.memfit != VERSION:
            problems.append(f"has memfit {news.memfit}, the coordinator {VERSION}")
        if off_seconds > CLOCK_SECONDS:
            problems.append(f"has a clock that is {off_seconds:.0f} s off; times of its trials are by its own clock")
        if not problems or news.worker in self._noted:
            return ""
        self._noted.add(news.worker)
        return f"the worker {news.worker} {', '.join(problems)}"

    def _answer(self, number: int, future: Future) -> News:
        """What came of a trial: its record with its files brought home, or why there is none."""
        order = self.orders.get(number)
        if order is None or future.status == "cancelled":
            return News(number=number, is_lost=True)
        try:
            answer = msgspec.msgpack.decode(future.result(), type=Answer)
            return self._brought_home(order, answer)
        except Exception as error:  # whatever a worker or the cluster raises is the result of this trial
            text = f"{type(error).__name__}: {error}".splitlines()[0]
            outcome = TrialOutcome(kind="failed", message=f"the cluster could not run it: {text[:300]}")
            return News(number=number, record=msgspec.structs.replace(order.blank_record(), outcome=outcome))

    def _brought_home(self, order: TrialOrder, answer: Answer) -> News:
        if answer.files:
            folder = Path(order.folder)
            folder.mkdir(parents=True, exist_ok=True)
            with tarfile.open(fileobj=io.BytesIO(answer.files)) as archive:
                archive.extractall(folder, filter="data")
        record = answer.record
        if record is None:
            return News(number=order.number, is_lost=True)
        begun, ending = len(self._begun.get(order.number, ())), self._endings.get(order.number)
        outcome = record.outcome
        if ending is not None and outcome.kind == "stopped early":  # as the worker calls whatever home asks for
            outcome = msgspec.structs.replace(outcome, kind=ending.kind, message=ending.reason)
        record = msgspec.structs.replace(
            record,
            outcome=outcome,
            run_folder=order.run_folder,
            worker=answer.worker,
            num_attempts=max(order.attempt, begun),
            notes=(*record.notes, *_loss_note(begun)),
        )
        return News(number=order.number, record=record, worker=answer.worker)


def task_key(order: TrialOrder) -> str:
    """The name of one attempt at a trial with the scheduler."""
    return f"memfit-{order.study_id}-{order.number}-{order.attempt}"


def keeper_name(study_id: str) -> str:
    """The client, never connected, that the scheduler keeps a study's trials for."""
    return f"memfit-{study_id}"


def _known_keys(client: Client, prefix: str) -> set[str]:
    """The trials that the scheduler has, waiting, running or ended."""
    # A function inside of a function is sent by value: the scheduler's Python need not have memfit.
    found: Any = client.run_on_scheduler(lambda dask_scheduler: [str(key) for key in dask_scheduler.tasks])
    return {key for key in found if key.startswith(prefix)}


def _loss_note(num_begun: int) -> tuple[str, ...]:
    if num_begun < 2:
        return ()
    return (f"{num_begun - 1} workers were lost while they ran it; it was run again with the same parameters",)


def connect(address: str) -> Client:
    """A connection to a scheduler, or one clear line."""
    try:
        return Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        hint = "start one with `dask scheduler`, and give its address: tcp://HOST:8786"
        raise UsageError(f"there is no Dask scheduler at {address}", found=str(error)[:200], hint=hint) from None


def _resources(client: Client) -> dict[str, float]:
    """The most that any worker offers of each resource."""
    most: dict[str, float] = {}
    for facts in client.scheduler_info(n_workers=-1)["workers"].values():
        for name, amount in (facts.get("resources") or {}).items():
            most[name] = max(most.get(name, 0.0), amount)
    return most
