"""How is a run measured, read, drawn, compared and exported?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memfit.measure.in_process import MeasuredRun
    from memfit.records.difference import Comparison
    from memfit.records.doctor import MachineReport
    from memfit.records.prediction import Prediction
    from memfit.records.run import RunRecord, Settings
    from memfit.show.views.run import RunView


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """A measured command: where its record is, and how it ended as its parent was told."""

    folder: Path
    exit_code: int | None
    signal: int | None
    storage_problem: str = ""

    def read(self) -> RunRecord:
        """Read the record it left."""
        return read_run(self.folder)


def measure_command(
    command: list[str],
    *,
    output: str | Path | None = None,
    overwrite: bool = False,
    settings: Settings | None = None,
    grace_seconds: float = 5.0,
    on_live: Callable[[dict[str, Any]], None] | None = None,
) -> CommandResult:
    """Run a command unchanged and measure its whole process tree; `.read()` gives the record."""
    from memfit.measure.new_run import default_folder
    from memfit.measure.session import check_command, run_command
    from memfit.records.run import settings_for

    check_command(command)
    folder = Path(output) if output is not None else default_folder(command)
    settings = settings or settings_for(None)
    end = run_command(command, folder, settings, overwrite=overwrite, grace_seconds=grace_seconds, on_live=on_live)
    return CommandResult(folder=folder, exit_code=end.exit_code, signal=end.signal, storage_problem=end.storage_problem)


def attach_process(
    pid: int,
    *,
    output: str | Path | None = None,
    overwrite: bool = False,
    interval_seconds: float = 0.01,
    duration_seconds: float | None = None,
    on_live: Callable[[dict[str, Any]], None] | None = None,
) -> RunRecord:
    """Measure a running process until it ends, `duration_seconds` have passed, or KeyboardInterrupt lets go of it."""
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


def measure_run(
    output: str | Path | None = None,
    *,
    interval_seconds: float | None = None,
    marks: bool = True,
    ledger_every: int | None = None,
    overwrite: bool = False,
) -> MeasuredRun:
    """Measure this process: a context manager and a decorator; the finished record is in `.record`.

    Samples are taken every 10 ms, and every 100 ms beside short steps; an interval that is given is kept everywhere.
    """
    from memfit.measure.in_process import measure_this_process

    return measure_this_process(
        output, overwrite=overwrite, interval_seconds=interval_seconds, marks=marks, ledger_every=ledger_every
    )


def live_line() -> Any:
    """The line at the bottom of the terminal that follows a run."""
    from memfit.show.progress.live_line import LiveLine

    return LiveLine()


def read_run(folder: str | Path) -> RunRecord:
    """Read the run folder that `memfit measure` wrote."""
    from memfit.runfolder.reader import read_run as read

    return read(folder)


def examine_machine() -> MachineReport:
    """Try everything memfit would like to read on this machine, and say what works, what does not, and what to try."""
    import os

    import msgspec

    from memfit.measure.counters.machine import describe_environment
    from memfit.measure.doctor.probes import run_probes
    from memfit.records.doctor import MachineReport
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


def print_machine(report: MachineReport) -> None:
    """Draw a machine's report on the standard output."""
    from memfit.show.terminal.doctor import print_machine as draw

    draw(report)


def after_a_run(record: RunRecord, *, as_json: bool, quiet: bool, report: bool) -> None:
    """What a person gets after a run: page and picture in the folder, the summary (or the record as JSON) on screen.

    A full disk costs the page and the picture, not the summary: it is printed first, then the error is raised.
    """
    from memfit.errors import StorageError

    written, problem = (), None
    if report:
        try:
            written = write_report(record)
        except StorageError as error:
            problem = error
    if as_json:
        print_record(record)
    elif not quiet:
        print_summary(record, written)
    if problem is not None:
        raise problem


def view_run(record: RunRecord, *, fine: bool = False, prediction: Prediction | None = None) -> RunView:
    """What is drawn of a run, explained and with its noise; `fine` keeps enough detail to zoom into."""
    from memfit.explain.run.ledger import explain_peak
    from memfit.explain.run.noise import noise_interval
    from memfit.show.page.data import PAGE_ROWS, PAGE_STEPS
    from memfit.show.views.run import build_view

    detail = {"max_rows": PAGE_ROWS, "max_steps": PAGE_STEPS} if fine else {}
    noise = noise_interval(record)
    return build_view(record, ledgers=explain_peak(record), noise=noise, prediction=prediction, **detail)


def print_summary(record: RunRecord, written: tuple[Path, ...] = ()) -> None:
    """Write the summary of a run to the standard output, fitted to it."""
    from memfit.show.paper import write_text
    from memfit.show.terminal.run import summary_text

    view = view_run(record)
    write_text(lambda width, color: summary_text(view, width=width, color=color, written=written))


def print_record(record: RunRecord) -> None:
    """Write what is drawn of a run to the standard output, as JSON."""
    from memfit.show.as_json import to_json
    from memfit.show.paper import write_json

    write_json(to_json(view_run(record)))


def write_report(
    record: RunRecord,
    *,
    html: str | Path | None = None,
    png: str | Path | None = None,
    svg: str | Path | None = None,
    over: RunRecord | None = None,
    comparison: Comparison | None = None,
    prediction: Prediction | None = None,
    overwrite: bool = True,
) -> tuple[Path, ...]:
    """Write the page and pictures that are asked for; when none is, the page and the picture into the run folder."""
    from memfit.show.page.report import Targets, beside_the_record, write_all

    targets = Targets(html=html, png=png, svg=svg)
    if targets == Targets():
        targets = beside_the_record(record.folder)
    if over is not None and comparison is None:
        comparison = compare_runs(record, over)
    other = view_run(over, fine=True) if over is not None else None
    view = view_run(record, prediction=prediction)
    page_view = view_run(record, fine=True, prediction=prediction)
    return write_all(view, page_view, targets, other=other, comparison=comparison, overwrite=overwrite)


def compare_runs(first: RunRecord | list[RunRecord], second: RunRecord | list[RunRecord]) -> Comparison:
    """Compare two runs, or two groups of repeats, and say which differences are larger than the noise."""
    from memfit.explain.run.difference import Subject, compare_groups
    from memfit.explain.run.ledger import explain_peak

    def subjects(side: RunRecord | list[RunRecord]) -> list[Subject]:
        runs = side if isinstance(side, list) else [side]
        return [Subject(run=run, ledgers=explain_peak(run)) for run in runs]

    return compare_groups(subjects(first), subjects(second))


def print_comparison(comparison: Comparison, *, as_json: bool = False) -> None:
    """Write a comparison to the standard output."""
    from memfit.show.as_json import to_json
    from memfit.show.paper import write_json, write_text
    from memfit.show.terminal.difference import comparison_text

    if as_json:
        write_json(to_json(comparison))
    else:
        write_text(lambda width, color: comparison_text(comparison, width=width, color=color))


def export_run(
    record: RunRecord, to: str, path: str | Path | None = None, *, table: str | None = None, overwrite: bool = False
) -> list[Path]:
    """Write a run as 'csv', 'json', 'chrome-trace' or 'memory-viewer'; returns the files written."""
    from memfit.show.export.formats import export

    return export(record, to, path, table=table, overwrite=overwrite)
