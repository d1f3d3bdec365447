"""Runs: measure a command, a running process or this one; read a run folder; examine this machine.

A run that was looked at once: its ledgers and the noise of its peak, for every view, page and comparison of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from memfit.api.shared.options import checked_options

if TYPE_CHECKING:
    from memfit.measure.in_process import MeasuredRun
    from memfit.records.difference import NoiseInterval
    from memfit.records.machine.doctor import MachineReport
    from memfit.records.run import RunRecord, Settings
    from memfit.records.run_parts.ledger import Ledger
    from memfit.records.run_parts.live import LiveState


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """A measured command: where its record is, and how it ended by its exit status."""

    folder: Path
    exit_code: int | None
    signal: int | None
    storage_problem: str = ""

    def read(self) -> RunRecord:
        """Read the record it left."""
        return read_run(self.folder)


@checked_options
def measure_command(
    command: Sequence[str],
    *,
    output: str | Path | None = None,
    overwrite: bool = False,
    settings: Settings | None = None,
    grace_seconds: float = 5.0,
    on_live: Callable[[LiveState], None] | None = None,
) -> CommandResult:
    """Run a command unchanged and measure its whole process tree; `.read()` gives the record.

    `output` is the run folder (memfit-runs/NAME-DATE by default), `settings` what `memfit.records.run.settings_for`
    makes, `grace_seconds` the time between SIGTERM and SIGKILL when a limit is passed. `on_live` receives how it goes,
    several times a second.

    >>> result = measure_command(["python", "train.py"], output="runs/first")  # doctest: +SKIP
    >>> result.read().peak.value  # doctest: +SKIP
    """
    from memfit.measure.new_run import default_folder
    from memfit.measure.session import check_command, run_command
    from memfit.records.run import settings_for

    words = list(command)
    check_command(words)
    folder = Path(output) if output is not None else default_folder(words)
    settings = settings or settings_for(None)
    end = run_command(words, folder, settings, overwrite=overwrite, grace_seconds=grace_seconds, on_live=on_live)
    return CommandResult(folder=folder, exit_code=end.exit_code, signal=end.signal, storage_problem=end.storage_problem)


@checked_options
def attach_process(
    pid: int,
    *,
    output: str | Path | None = None,
    overwrite: bool = False,
    interval_seconds: float = 0.01,
    duration_seconds: float | None = None,
    on_live: Callable[[LiveState], None] | None = None,
) -> RunRecord:
    """Measure a running process until it ends, `duration_seconds` have passed, or KeyboardInterrupt detaches from it.

    >>> record = attach_process(4711, duration_seconds=30)  # doctest: +SKIP
    """
    from memfit.measure.new_run import default_folder
    from memfit.measure.session import Attachment, check_process
    from memfit.records.run import Settings
    from memfit.runfolder.reader import read_run as read

    command = check_process(pid)
    folder = Path(output) if output is not None else default_folder(command)
    settings = Settings(interval_seconds=interval_seconds, marks=False, attached=True)
    attachment = Attachment(pid, folder, settings, overwrite=overwrite, live=on_live is not None)
    attachment.follow(duration_seconds, on_live)
    return read(folder)


@checked_options
def measure_run(
    output: str | Path | None = None,
    *,
    interval_seconds: float | None = None,
    marks: bool = True,
    ledger_every: int | None = None,
    overwrite: bool = False,
) -> MeasuredRun:
    """Measure this process: a context manager and a decorator; the finished record is in `.record`.

    Samples are taken every 10 ms, and every 200 ms beside short steps; an interval that is given is kept everywhere.
    `ledger_every=50` traces the tensors of step 2 and of every 50th step.

    >>> with measure_run("runs/first") as run:  # doctest: +SKIP
    ...     train()
    >>> run.record.peak.value  # doctest: +SKIP
    """
    from memfit.measure.in_process import measure_this_process

    return measure_this_process(
        output, overwrite=overwrite, interval_seconds=interval_seconds, marks=marks, ledger_every=ledger_every
    )


@checked_options
def read_run(folder: str | Path) -> RunRecord:
    """Read the run folder that `memfit measure` wrote.

    >>> read_run("memfit-runs/train-20261117-101500").peak.value  # doctest: +SKIP
    """
    from memfit.runfolder.reader import read_run as read

    return read(folder)


def examine_machine() -> MachineReport:
    """Try everything memfit would like to read on this machine, and say what works, what does not, and what to try."""
    import os

    import msgspec

    from memfit.measure.counters.machine import describe_environment
    from memfit.measure.doctor.probes import run_probes
    from memfit.records.machine.doctor import MachineReport
    from memfit.records.run import Environment

    environment = msgspec.convert(describe_environment(os.environ), Environment)
    return MachineReport(environment=environment, checks=run_probes())


def use_working_instructions() -> str:
    """Let torch, which this process must not have loaded yet, use only instruction sets that work here.

    Returns what was changed and why, for a person; nothing where the processor keeps its word.
    """
    import os
    import sys

    from memfit.measure.instruction_sets import working_instructions

    if "torch" in sys.modules:  # it may have chosen its instructions: too late
        return ""
    found = working_instructions()
    os.environ.update(found.cure)
    return found.sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedRun:
    """A run with what was found by looking at it: who held its peak, and how far the peak varies by itself."""

    record: RunRecord
    ledgers: tuple[Ledger, ...]
    noise: NoiseInterval | None
    """None when the peak itself is unknown."""


def explain_run(record: RunRecord | ExplainedRun) -> ExplainedRun:
    """Look at a run once; what was looked at already is returned as it is.

    >>> explained = explain_run(memfit.read_run("runs/first"))  # doctest: +SKIP
    >>> explained.ledgers[0].num_bytes  # doctest: +SKIP
    """
    from memfit.explain.run.ledger import explain_peak
    from memfit.explain.run.noise import noise_interval

    if isinstance(record, ExplainedRun):
        return record
    return ExplainedRun(record=record, ledgers=explain_peak(record), noise=noise_interval(record))
