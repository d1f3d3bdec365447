"""How many workers does one coordinator keep busy? A thousand simulated ones, through everything else that is real.

Real: the coordinator, its tuner (Random), the SQLite storage with its flushes, the orders, reports and answers as the
bytes they are on a cluster, the runner that reads them, the files of every trial that come home. Made: the scheduler's
network and the workers. A worker takes ten seconds for a trial on a made clock: what the coordinator does takes the
time it really takes, and when it waits, the clock is moved to the next thing that happens. What simulated workers cost
this process is taken off the clock; what Dask's own client costs per trial is measured first, with a real scheduler
and two real workers, and added.

    python -m benchmarks.study.simulation --ask
    python -m benchmarks.study.simulation [--workers 1000] [--trials 100000] [--seconds 10] [--clock wall|cpu]
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from memfit.records.study import GpuWish, SearchSpace, Span, StudySettings, Tool, TrialRecord
from memfit.study.coordinator import Coordinator
from memfit.study.folder import create, storage_of
from memfit.study.options import StudyOptions
from memfit.study.session import SilentStudy
from memfit.study.storage.write_ahead import StudyLog
from memfit.study.trials.cluster.distributed_runner import DaskRunner
from memfit.study.trials.cluster.distributed_trial import Answer, WorkerNews, packed, tell
from memfit.study.trials.files import Report
from memfit.study.trials.gpus import GpuPool
from memfit.study.trials.runner import LocalRunner, News
from memfit.study.trials.trial_order import TrialOrder
from memfit.version import VERSION

LEAST_BUSY = 0.9
MOST_BYTES = 10**9
TRIAL = """
import nni
x = nni.get_next_parameter()["x"]
for step in range(5):
    nni.report_intermediate_result(x * step)
nni.report_final_result({"default": x, "loss": -x})
"""


@dataclass(slots=True)
class MadeClock:
    """Real time, wall or CPU, that can be moved forward and held."""

    source: Callable[[], float]
    offset_seconds: float = 0.0

    def now(self) -> float:
        return self.source() + self.offset_seconds

    def move_to(self, moment: float) -> None:
        self.offset_seconds += max(0.0, moment - self.now())

    @contextmanager
    def held(self) -> Iterator[None]:
        """What is done within takes no time."""
        began = self.source()
        try:
            yield
        finally:
            self.offset_seconds -= self.source() - began


class MadeFuture:
    """A task of the simulated scheduler."""

    def __init__(self, order: TrialOrder) -> None:
        self.order = order
        self.status = "pending"
        self.content = b""
        self.callbacks: list[Callable[[MadeFuture], None]] = []

    def add_done_callback(self, function: Callable[[MadeFuture], None]) -> None:
        self.callbacks.append(function)

    def result(self) -> bytes:
        return self.content

    def cancel(self, force: bool = False) -> None:
        self.status = "cancelled"


@dataclass(slots=True)
class MadeCluster:
    """The scheduler and its workers: takes orders as bytes, and gives back reports and answers as bytes."""

    clock: MadeClock
    template: TrialRecord
    files: bytes
    trial_seconds: float
    client_seconds: float
    """What Dask's client costs for one trial."""
    num_reports: int = 5
    busy_seconds: float = 0.0
    first_start: float = 0.0
    last_end: float = 0.0
    hear: Callable[[Any], None] | None = None
    _events: list[tuple[float, int, MadeFuture, int]] = field(default_factory=list)
    _count: int = 0
    _random: random.Random = field(default_factory=lambda: random.Random(1))

    def submit(self, task: object, raw: bytes, **options: object) -> MadeFuture:
        self.clock.offset_seconds += self.client_seconds
        with self.clock.held():
            future = MadeFuture(msgspec.json.decode(raw, type=TrialOrder))
            takes = self.trial_seconds * self._random.uniform(0.9, 1.1)
            began = self.clock.now()
            self.first_start = self.first_start or began
            self.busy_seconds += takes
            for step in range(self.num_reports + 1):
                self._count += 1
                moment = began + takes * (step + 1) / (self.num_reports + 1)
                heapq.heappush(self._events, (moment, self._count, future, step))
        return future

    def deliver(self) -> bool:
        """Hand over everything that has happened by now; False when nothing had."""
        found = False
        while self._events and self._events[0][0] <= self.clock.now():
            moment, _, future, step = heapq.heappop(self._events)
            found = True
            if step == self.num_reports:
                self._end(future, moment)
            elif self.hear is not None:
                self.hear(("", self._news(future.order, step)))
        return found

    def next_moment(self) -> float | None:
        return self._events[0][0] if self._events else None

    def _news(self, order: TrialOrder, step: int) -> str:
        with self.clock.held():
            reports = tuple(
                Report(is_final=False, sequence=index, value=0.5 * index, time_unix_seconds=time.time())
                for index in range(step + 1)
            )
            news = WorkerNews(
                number=order.number, worker="tcp://10.0.0.1:40000", unix_seconds=time.time(),
                python=sys.version.split()[0], memfit=VERSION, reports=reports,
            )  # fmt: skip
            return msgspec.json.encode(news).decode()

    def _end(self, future: MadeFuture, moment: float) -> None:
        with self.clock.held():
            own = msgspec.structs.replace(
                self.template, proposal=future.order.proposal, trial_id=future.order.trial_id, notes=()
            )
            answer = Answer(record=own, worker="tcp://10.0.0.1:40000", files=self.files)
            future.content, future.status = msgspec.msgpack.encode(answer), "finished"
            self.last_end = max(self.last_end, moment)
        for function in future.callbacks:
            function(future)
        future.content = b""

    # What the runner asks of a client besides.

    def _send_to_scheduler(self, message: object) -> None: ...
    def close(self) -> None: ...

    def subscribe_topic(self, topic: str, handler: Callable[[Any], None]) -> None:
        self.hear = handler

    def scheduler_info(self, n_workers: int = 5) -> dict[str, dict[str, dict[str, object]]]:
        return {"workers": {"tcp://10.0.0.1:40000": {}}}


class MadeRunner(DaskRunner):
    """The runner of clusters, which waits on the made clock."""

    client: Any

    def wait(self, timeout_seconds: float) -> list[News]:
        cluster: MadeCluster = self.client
        if not cluster.deliver():
            moment = cluster.next_moment()
            soonest = cluster.clock.now() + timeout_seconds
            cluster.clock.move_to(soonest if moment is None else min(moment, soonest))
            cluster.deliver()
        return super().wait(0.0) if not self._queue.empty() else []


def real_trial(folder: Path) -> tuple[TrialRecord, bytes]:
    """The record and the packed files of one real trial, which all simulated ones resemble."""
    from memfit.records.study import Proposal

    (folder / "trial.py").write_text(TRIAL)
    order = TrialOrder(
        study_id="s", trial_id="t", proposal=Proposal(number=0, parameters={"x": 0.5}),
        command=(sys.executable, "trial.py"), code_folder=str(folder), folder=str(folder / "sample"),
    )  # fmt: skip
    runner = LocalRunner(1)
    runner.start(order)
    record = None
    while record is None:
        record = next((news.record for news in runner.wait(0.5) if news.record is not None), None)
    return record, packed(folder / "sample")


def settings_for(workers: int, trials: int) -> StudySettings:
    return StudySettings(
        name="simulation",
        space=SearchSpace(parameters=(Span(name="x", low=0, high=1), Span(name="lr", low=1e-4, high=1e-1, log=True))),
        command="python trial.py", tuner=Tool(name="Random"), concurrency=workers, max_trials=trials,
    )  # fmt: skip


class Steps(SilentStudy):
    """Notes how long trials take the coordinator as the study grows."""

    def __init__(self, clock: Callable[[], float], every: int) -> None:
        super().__init__()
        self.clock, self.every = clock, every
        self.marks: list[tuple[int, float, int]] = []
        self.num_ended = 0

    def ended(self, trial: object, standing: object) -> None:
        self.num_ended += 1
        if self.num_ended % self.every == 0:
            self.marks.append((self.num_ended, self.clock(), peak_bytes()))
            self._print()

    def _print(self) -> None:
        """What the trials since the last mark took of this process, the simulated workers' part included."""
        if len(self.marks) < 2:
            print(f"{'trials ended':>14}{'ms per trial':>16}{'memory, MB':>12}")
            return
        (before, began, _), (number, moment, memory) = self.marks[-2:]
        cost_ms = (moment - began) * 1000 / (number - before)
        print(f"{number:>14}{cost_ms:>16.2f}{memory / 1e6:>12.0f}", flush=True)


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def simulate(
    workers: int, trials: int, seconds: float, clock_name: str, client_seconds: float, home: str | None
) -> int:
    """One study; what became of it is printed before its files are removed, which takes minutes on a slow disk."""
    folder = Path(tempfile.mkdtemp(prefix="memfit-simulation-", dir=home))
    try:
        record, files = real_trial(folder)
        source = time.perf_counter if clock_name == "wall" else time.process_time
        clock = MadeClock(source)
        cluster = MadeCluster(clock, record, files, seconds, client_seconds)
        settings = settings_for(workers, trials)
        where = create(folder / "study", "")
        watcher = Steps(source, max(1, trials // 10))
        log = StudyLog(storage_of(folder / "study", where), where.study_id, folder / "study", watcher.note)
        log.begin(settings)
        runner = MadeRunner(cluster, settings, watcher.note)  # pyright: ignore[reportArgumentType]
        pool = GpuPool(GpuWish(), ())
        coordinator = Coordinator(settings, folder / "study", log, runner, pool, watcher, StudyOptions())
        began = clock.now()
        coordinator.run()
        took = cluster.last_end - began
        found = {
            "busy": cluster.busy_seconds / (workers * took), "seconds": took, "peak_bytes": peak_bytes(),
            "num_ended": watcher.num_ended, "notes": watcher.notes,
            "answer_bytes": len(files), "ideal_seconds": trials * seconds / workers,
            "database_bytes": (folder / "study" / "study.db").stat().st_size,
        }  # fmt: skip
        return report(found, workers, trials)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# ---- what Dask's own client costs ----


def answer_at_once(raw: bytes) -> bytes:
    """What a worker does in the measurement of Dask's cost: say that it has begun."""
    order = msgspec.json.decode(raw, type=TrialOrder)
    tell(order)
    return msgspec.msgpack.encode(Answer(record=order.blank_record(), worker=""))


class IdleRunner(DaskRunner):
    task = staticmethod(answer_at_once)


def client_cost(trials: int = 400) -> float:
    """CPU seconds that the coordinator's process takes for one trial through a real scheduler."""
    from memfit.records.study import Proposal
    from memfit.study.trials.cluster.distributed_runner import connect

    with tempfile.TemporaryDirectory(prefix="memfit-dask-") as name:
        file = Path(name) / "scheduler.json"
        words = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file)]
        started = [_dask("scheduler", *words)]
        try:
            while not file.exists() or not file.read_text().strip():
                time.sleep(0.1)
            address = json.loads(file.read_text())["address"]
            common = ["--nthreads", "1", "--no-nanny", "--no-dashboard", "--memory-limit", "0"]
            started += [_dask("worker", address, *common, "--local-directory", name) for _ in range(2)]
            client = connect(address)
            client.wait_for_workers(2)
            runner = IdleRunner(client, settings_for(trials, trials), lambda sentence: None)
            began = time.process_time()
            for number in range(trials):
                proposal = Proposal(number=number, parameters={"x": 0.5, "lr": 0.01})
                runner.start(
                    TrialOrder(
                        study_id="s", trial_id=f"t{number}", proposal=proposal, command=("true",), code_folder="/",
                        folder=f"{name}/{number}",
                    )
                )  # fmt: skip
            ended = 0
            while ended < trials:
                ended += sum(news.record is not None for news in runner.wait(1.0))
            took = time.process_time() - began
            client.close()
        finally:
            for process in reversed(started):
                process.kill()
                process.wait()
    return took / trials


def _dask(kind: str, *words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", f"distributed.cli.dask_{kind}", *words]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def ask_cost(tuner: str, trials: int) -> float:
    """CPU seconds of one question to a tuner that knows so many trials."""
    from memfit.records.study import Proposal, TrialOutcome
    from memfit.study.engine.engine import SearchEngine

    chance = random.Random(trials)
    engine = SearchEngine(msgspec.structs.replace(settings_for(1, trials * 2), tuner=Tool(name=tuner)))
    for number in range(trials):
        draws = {"x": chance.random(), "lr": 10 ** chance.uniform(-4, -1)}
        proposal = Proposal(number=number, parameters=dict(draws), draws=draws)
        outcome = TrialOutcome(kind="done")
        engine.history.add(TrialRecord(proposal=proposal, outcome=outcome, metric=chance.random(), end_order=number))
    engine.ask()
    began = time.process_time()
    for _ in range(3):
        engine.ask()
    return (time.process_time() - began) / 3


def print_ask_costs() -> int:
    print(f"{'trials known':>14}{'Random, ms':>14}{'TPE, ms':>12}")
    for trials in (100, 1000, 10_000):
        random_ms, tpe_ms = (ask_cost(tuner, trials) * 1000 for tuner in ("Random", "TPE"))
        print(f"{trials:>14}{random_ms:>14.2f}{tpe_ms:>12.1f}", flush=True)
    return 0


def main() -> int:
    """Simulate, print, and say whether the targets are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--trials", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=10.0, help="of a trial")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall", help="cpu leaves a busy machine out")
    parser.add_argument("--no-dask", action="store_true", help="do not measure what Dask's client costs")
    parser.add_argument("--folder", help="where the study is written [a temporary folder]")
    parser.add_argument("--ask", action="store_true", help="print what one question to a tuner costs, and nothing else")
    options = parser.parse_args()
    if options.ask:
        return print_ask_costs()
    client_seconds = 0.0 if options.no_dask else client_cost()
    print(f"Dask's client: {client_seconds * 1000:.2f} ms of CPU per trial, with a real scheduler", flush=True)
    return simulate(options.workers, options.trials, options.seconds, options.clock, client_seconds, options.folder)


def report(found: dict[str, Any], workers: int, trials: int) -> int:
    """The figures, and whether they reach the targets."""
    took, ideal = found["seconds"], found["ideal_seconds"]
    print(f"{found['num_ended']} trials ended in {took:.0f} s of the made clock (ideal {ideal:.0f} s)")
    answer, database = found["answer_bytes"] / 1000, found["database_bytes"] / 1e6
    print(f"an answer has {answer:.1f} kB of files; the database {database:.0f} MB")
    print(f"{workers} workers are {found['busy']:.1%} busy (target: above {LEAST_BUSY:.0%})")
    print(f"memory of the coordinator: {found['peak_bytes'] / 1e6:.0f} MB (target: below {MOST_BYTES / 1e6:.0f} MB)")
    sys.stdout.flush()
    reached = found["busy"] > LEAST_BUSY and found["peak_bytes"] < MOST_BYTES and found["num_ended"] == trials
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
