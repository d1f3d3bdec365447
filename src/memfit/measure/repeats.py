"""Runs two commands again and again in a given order, each as a run folder; a series that was interrupted goes on.

    FOLDER/repeats.json     the plan, written first
    FOLDER/a1, b1, b2, ...  one run folder each; a run counts when it ended by itself with exit code 0
    FOLDER/a1.txt, ...      what the job printed

A run that failed stops the series: figures of jobs that did not do their work compare nothing.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path

import msgspec

from memfit.errors import (
    DamagedRecord,
    Interrupted,
    MemfitError,
    NewerFormat,
    NotARun,
    RecordError,
    RunExists,
    StorageError,
    UsageError,
)
from memfit.measure.session import JobEnd, check_command, run_command
from memfit.records.difference import (
    PLAN_FILE,
    PLAN_FORMAT,
    PLAN_VERSION,
    Label,
    RepeatedCommand,
    RepeatPlan,
    RepeatProgress,
)
from memfit.records.files.only_text import only_text
from memfit.records.run import RunRecord
from memfit.records.run_parts.live import LiveState
from memfit.runfolder.reader import read_run

OnProgress = Callable[[RepeatProgress], None]
_MAX_PLAN_BYTES = 1 << 20


def create_series(folder: Path, plan: RepeatPlan, *, overwrite: bool = False) -> None:
    """Make the folder and write the plan; refuses to touch what is not an old series of ours."""
    for side in (plan.first, plan.second):
        _check_side(side)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        if not (folder / PLAN_FILE).is_file():
            raise RunExists(f"{folder} exists and holds no repeats of memfit diff", hint="choose another place with -o")
        if not overwrite:
            hint = f"go on with it: memfit diff --resume {folder}; or overwrite it with -f"
            raise RunExists(f"{folder} already holds repeated runs", hint=hint)
        shutil.rmtree(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = folder / f"{PLAN_FILE}.part"
        unfinished.write_bytes(msgspec.json.format(msgspec.json.encode(plan), indent=2))
        unfinished.replace(folder / PLAN_FILE)
    except OSError as error:
        found = error.strerror or str(error)
        raise StorageError(f"{folder} cannot be written", found=found, hint="choose another place with -o") from None


def _check_side(side: RepeatedCommand) -> None:
    """Refuse what cannot be started, or not be kept in a plan, before anything is written."""
    words = (*side.command, side.working_folder)
    if any(only_text(word) != word for word in words):
        raise UsageError("repeats are kept as text, and the command is none", found=repr(words)[:200], hint="rename it")
    if not Path(side.working_folder).is_dir():
        raise UsageError("the folder a run was started in is gone", found=side.working_folder, hint="give the commands")
    with chdir(side.working_folder):
        check_command(list(side.command))


def read_plan(folder: Path) -> RepeatPlan:
    """The plan of a series."""
    path = folder / PLAN_FILE
    if not path.is_file():
        raise NotARun(f"{folder} holds no repeats of memfit diff", found=f"no {PLAN_FILE}", hint="check the path")
    if path.stat().st_size > _MAX_PLAN_BYTES:
        raise DamagedRecord(f"{path} is too large for a plan", found=f"{path.stat().st_size} bytes")
    try:
        content = msgspec.json.decode(path.read_bytes())
        version = content.get("format_version") if isinstance(content, dict) else None
        if isinstance(version, int) and version > PLAN_VERSION:
            raise NewerFormat(
                f"{path} was written by a newer memfit", found=f"version {version}", hint="upgrade memfit"
            )
        plan = msgspec.convert(content, RepeatPlan)
    except (msgspec.DecodeError, msgspec.ValidationError, OSError) as error:
        raise DamagedRecord(f"{path} cannot be read", found=str(error), hint="measure again with -f") from None
    if plan.format != PLAN_FORMAT:
        raise DamagedRecord(f"{path} is no plan of repeats", found=repr(plan.format))
    return plan


def run_series(folder: Path, plan: RepeatPlan, on_progress: OnProgress | None = None) -> None:
    """Run what is not there yet, in the order of the plan."""
    series = _Series(folder.resolve(), plan, on_progress)
    for number in range(len(plan.order)):
        try:
            series.run(number)
        except KeyboardInterrupt:
            raise series.interrupted(number) from None


def read_series(folder: Path, plan: RepeatPlan) -> tuple[list[RunRecord], list[RunRecord]]:
    """The runs of both sides, in the order they were made."""
    sides: dict[str, list[RunRecord]] = {"A": [], "B": []}
    for label, name in zip(plan.order, plan.names, strict=True):
        sides[label].append(read_run(folder / name))
    return sides["A"], sides["B"]


class _Series:
    """Runs one after the other and knows how long each side takes."""

    def __init__(self, folder: Path, plan: RepeatPlan, on_progress: OnProgress | None) -> None:
        self.folder = folder
        self.plan = plan
        self.on_progress = on_progress
        self.began = time.monotonic()
        self.took_seconds: dict[str, list[float]] = {"A": [], "B": []}

    def run(self, number: int) -> None:
        """Run one, unless its folder is complete."""
        label, run = self.plan.order[number], self.folder / self.plan.names[number]
        record = _finished(run)
        if record is None:
            started = time.monotonic()
            end = self._measure(number, label, run)
            record = self._checked(number, run, end)
            self.took_seconds[label].append(time.monotonic() - started)
        else:
            self.took_seconds[label].append(record.duration_seconds)
        self._tell(number + 1, label, record.peak.value)

    def _measure(self, number: int, label: Label, run: Path) -> JobEnd:
        side = self.plan.side(label)
        shutil.rmtree(run, ignore_errors=True)

        def on_live(live: LiveState) -> None:
            self._tell(number, label, live.tree_bytes)

        with chdir(side.working_folder):
            return run_command(
                list(side.command), run, side.settings, on_live=on_live if self.on_progress else None,
                output_file=run.with_suffix(".txt"),
            )  # fmt: skip

    def _checked(self, number: int, run: Path, end: JobEnd) -> RunRecord:
        if end.interrupted_by is not None:
            shutil.rmtree(run, ignore_errors=True)
            raise self.interrupted(number)
        if end.storage_problem:
            raise StorageError(f"{run} could not be written to the end", found=end.storage_problem, hint="free space")
        record = read_run(run)
        if record.outcome.kind != "done":
            raise MemfitError(
                f"run {number + 1} of {len(self.plan.order)} did not end well, so there is nothing to compare",
                found=f"{record.outcome.kind}: {record.outcome.message}" + _last_line(run.with_suffix(".txt")),
                hint=f"what it printed is in {run.with_suffix('.txt')}",
            )
        return record

    def interrupted(self, num_done: int) -> Interrupted:
        """The error that says how to go on."""
        return Interrupted(
            f"interrupted after {num_done} of {len(self.plan.order)} runs; these are kept",
            hint=f"go on with: memfit diff --resume {os.path.relpath(self.folder)}",
        )

    def _tell(self, num_done: int, label: Label, peak_bytes: float | None) -> None:
        if self.on_progress is None:
            return
        self.on_progress(
            RepeatProgress(
                num_done=num_done,
                num_runs=len(self.plan.order),
                label=label,
                seconds=time.monotonic() - self.began,
                seconds_left=self._seconds_left(num_done),
                peak_bytes=peak_bytes,
            )
        )

    def _seconds_left(self, num_done: int) -> float | None:
        """From how long runs of the same side took, or of the other one."""
        known = [*self.took_seconds["A"], *self.took_seconds["B"]]
        if not known:
            return None
        left = 0.0
        for label in self.plan.order[num_done:]:
            mine = self.took_seconds[label] or known
            left += sum(mine) / len(mine)
        return left


def _finished(run: Path) -> RunRecord | None:
    """The record of a run that ended by itself; None when it must be made (again)."""
    try:
        record = read_run(run)
    except RecordError:
        return None
    return record if record.outcome.kind == "done" else None


def _last_line(path: Path) -> str:
    """The end of what a job printed."""
    try:
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - 2048, 0))
            lines = file.read(2048).decode(errors="replace").split("\n")
    except OSError:
        return ""
    words = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f"; its last line: {words[:200]}" if words else ""
