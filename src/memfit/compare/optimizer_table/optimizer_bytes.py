"""The table of bytes per parameter: the runs it needs, and the processes that make them, in parallel and resumable."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue

import msgspec

from memfit.compare.optimizer_table.torch_optimizer_names import MODULES
from memfit.errors import MemfitError, UsageError
from memfit.job.recipes.optimizer_names import parse_optimizer
from memfit.records.optimizer_bytes import OptimizerRun, OptimizerTable, RunSource, ShapesName
from memfit.units import format_seconds

SHAPES: dict[str, tuple[ShapesName, ...]] = {"cpu": ("square", "deep", "tall"), "cuda": ("square", "deep")}
Tell = Callable[[str], None]


def runs_needed(names: Iterable[str], devices: Sequence[str], *, measure: bool) -> list[OptimizerRun]:
    """One question per optimizer, shapes, device and source; only a CPU can be measured here."""
    found: list[OptimizerRun] = []
    for name in dict.fromkeys(names):
        base = parse_optimizer(name).base
        for device in devices:
            kind = device.partition(":")[0]
            if kind not in SHAPES:
                raise UsageError(f"there is no device {device!r}", hint="cpu, cuda or cuda:NAME")
            sources: tuple[RunSource, ...] = ("predicted", "measured") if measure and kind == "cpu" else ("predicted",)
            shapes: tuple[ShapesName, ...] = ("sparse",) if base == "sparseadam" else SHAPES[kind]
            found += [
                OptimizerRun(optimizer=name, shapes=one, device=device, source=source)
                for one in shapes
                for source in sources
            ]
    return sorted(found, key=_turn)


def _turn(run: OptimizerRun) -> int:
    """What matters most comes first for all optimizers: an interrupted table has every row, with fewer columns."""
    if run.shapes in ("square", "sparse"):
        return 0 if run.device == "cpu" else 1
    return 2 if run.source == "measured" else 3 if run.device != "cpu" else 4


def fill_table(
    names: Sequence[str],
    *,
    devices: Sequence[str] = ("cpu", "cuda"),
    measure: bool = True,
    num_processes: int = 2,
    kept_in: Path | None = None,
    only_kept: bool = False,
    left_out: dict[str, str] | None = None,
    tell: Tell | None = None,
) -> OptimizerTable:
    """Every run of these optimizers; what a file already keeps is not run again, and with `only_kept` nothing is."""
    questions = runs_needed(names, devices, measure=measure)
    kept = _read_kept(kept_in)
    todo = [] if only_kept else [question for question in questions if _key(question) not in kept]
    answers = dict(kept)
    progress = _Progress(len(todo), tell)
    with contextlib.ExitStack() as stack:
        stream = stack.enter_context(open(kept_in, "ab")) if kept_in is not None else None

        def keep(run: OptimizerRun) -> None:
            answers[_key(run)] = run
            if stream is not None:
                stream.write(msgspec.json.encode(run) + b"\n")
                stream.flush()
            progress.one_more(run)

        _ask_workers(todo, max(1, min(num_processes, len(todo))), keep)
    runs = tuple(answers[_key(question)] for question in questions if _key(question) in answers)
    packages = sorted({run.package for run in runs if run.package and not run.package.startswith("torch ")})
    return OptimizerTable(
        runs=runs,
        torch_version=next((run.torch_version for run in runs if run.torch_version), ""),
        packages=tuple(packages),
        left_out=left_out or {},
        num_not_run=len(questions) - len(runs),
    )


def _key(run: OptimizerRun) -> tuple[str, str, str, str]:
    return run.optimizer, run.shapes, run.device, run.source


def _read_kept(path: Path | None) -> dict[tuple[str, str, str, str], OptimizerRun]:
    """The runs of a file; a last line that was not written to its end is left out."""
    if path is None or not path.exists():
        return {}
    found = {}
    for line in path.read_bytes().splitlines():
        with contextlib.suppress(msgspec.DecodeError):
            run = msgspec.json.decode(line, type=OptimizerRun)
            found[_key(run)] = run
    return found


class _Progress:
    """Says what was done and how long the rest will take."""

    def __init__(self, num_runs: int, tell: Tell | None) -> None:
        self._num_runs, self._tell, self._num_done = num_runs, tell, 0
        self._started = time.monotonic()

    def one_more(self, run: OptimizerRun) -> None:
        self._num_done += 1
        if self._tell is None:
            return
        passed = time.monotonic() - self._started
        left = passed / self._num_done * (self._num_runs - self._num_done)
        what = f"{run.optimizer} ({run.shapes}, {run.device}, {run.source})"
        self._tell(f"{self._num_done} of {self._num_runs}, {format_seconds(left)} left: {what}")


# ---- workers ---------------------------------------------------------------------------------------------------------


def _ask_workers(todo: Sequence[OptimizerRun], num_workers: int, keep: Callable[[OptimizerRun], None]) -> None:
    """Hand the questions to worker processes; `keep` is called in this thread, as answers come."""
    if not todo:
        return
    questions: SimpleQueue[OptimizerRun] = SimpleQueue()
    answers: SimpleQueue[OptimizerRun | BaseException | None] = SimpleQueue()
    for question in todo:
        questions.put(question)
    packages = sorted({MODULES[p] for run in todo if (p := parse_optimizer(run.optimizer).package) in MODULES})
    workers = [_Worker(packages, questions, answers) for _ in range(num_workers)]
    try:
        num_running = len(workers)
        while num_running:
            found = answers.get()
            if isinstance(found, BaseException):
                raise found
            if found is None:
                num_running -= 1
            else:
                keep(found)
    finally:
        for worker in workers:
            worker.end()


class _Worker:
    """One worker process and the thread that talks to it."""

    def __init__(
        self,
        packages: Sequence[str],
        questions: SimpleQueue[OptimizerRun],
        answers: SimpleQueue[OptimizerRun | BaseException | None],
    ) -> None:
        self._questions, self._answers = questions, answers
        self._process = subprocess.Popen(
            [sys.executable, "-m", "memfit.compare.optimizer_table.torch_optimizer_worker", *packages],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        threading.Thread(target=self._talk, daemon=True).start()

    def _talk(self) -> None:
        try:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            if not self._process.stdout.readline():
                raise MemfitError("the process that runs optimizers did not start", hint="is torch installed?")
            with contextlib.suppress(Empty):
                while True:
                    question = self._questions.get_nowait()
                    self._process.stdin.write(msgspec.json.encode(question) + b"\n")
                    self._process.stdin.flush()
                    line = self._process.stdout.readline()
                    self._answers.put(msgspec.json.decode(line, type=OptimizerRun))
            self._answers.put(None)
        except (OSError, msgspec.DecodeError, MemfitError) as error:
            self._answers.put(error)

    def end(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
