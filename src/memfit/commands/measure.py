"""memfit measure: run a command and measure its memory exactly."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from functools import partial
from typing import TYPE_CHECKING

import click

from memfit.commands.shared.options import (
    BYTES,
    SECONDS,
    complete_files,
    force_option,
    json_option,
    ledger_option,
    no_report_option,
    output_option,
    quiet_option,
    stable_option,
)
from memfit.commands.shared.output import write_record
from memfit.errors import NoOutput, StorageError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from memfit.api import ExplainedRun
    from memfit.records.run import RunRecord

EPILOG = """\b
Examples:
  memfit measure -- python train.py --batch-size 64
  memfit measure --limit 8GiB --ledger -o runs/first -- python train.py
  memfit measure --stable --interval 1ms -- ./my-program

The exit code is the command's own; 3 when --limit ended it.
"""


@click.command(epilog=EPILOG, context_settings={"ignore_unknown_options": False})
@output_option("Run folder to write [default: memfit-runs/NAME-DATE].")
@force_option
@click.option(
    "--interval", type=SECONDS, help="Time between samples, 1ms to 1h [default: 10ms; 100ms beside marked steps]."
)
@ledger_option
@click.option("--ledger-every", type=click.IntRange(min=1), metavar="K", help="The same, tracing every K-th step.")
@click.option("--limit", type=BYTES, help="End the job when its whole tree takes more than this; exit code 3.")
@click.option("--grace", type=SECONDS, default="5s", show_default=True, help="Time between SIGTERM and SIGKILL then.")
@stable_option
@click.option(
    "--assume-watts", type=click.FloatRange(min=0, min_open=True), help="Power to assume for an energy estimate."
)
@click.option("--no-marks", is_flag=True, help="Put nothing into Python jobs: no steps, no phases, no counter reset.")
@no_report_option
@quiet_option
@json_option
@click.argument("command", nargs=-1, type=click.UNPROCESSED, shell_complete=complete_files)
def command(
    output: str | None, force: bool, interval: float | None, ledger: bool, ledger_every: int | None, limit: int | None,
    grace: float, stable: bool, assume_watts: float | None, no_marks: bool, no_report: bool, quiet: bool, as_json: bool,
    command: tuple[str, ...],
) -> None:  # fmt: skip
    """Run COMMAND unchanged and measure the memory of its whole process tree."""
    from memfit import api
    from memfit.records.run import settings_for
    from memfit.show.progress.live_line import LiveLine

    if (ledger or ledger_every) and no_marks:
        raise UsageError("--ledger needs the marks that --no-marks switches off", hint="leave one of them out")
    settings = settings_for(
        None if interval is None else checked_interval(interval),
        marks=not no_marks,
        ledger_every=ledger_every or (50 if ledger else None),
        limit_bytes=limit,
        stable=stable,
        assume_watts=assume_watts,
    )
    line = LiveLine()
    show_live = line.enabled and not (quiet or as_json)
    try:
        result = api.measure_command(
            list(command),
            output=output,
            overwrite=force,
            settings=settings,
            grace_seconds=grace,
            on_live=line.update if show_live else None,
        )
    finally:
        line.close()
    if result.storage_problem:
        what = f"the run folder could not be written to the end ({result.storage_problem})"
        click.echo(f"memfit: {what}; the job was not disturbed", err=True)
    over_limit = False
    try:
        record = result.read()
        over_limit = record.outcome.kind == "over the limit"
        after_a_run(record, as_json=as_json, quiet=quiet, report=not no_report)
    except NoOutput as error:
        click.echo(f"memfit: {error}", err=True)
    except StorageError as error:  # a full disk: the summary stands above, and the record is as whole as it can be
        click.echo(f"memfit: the page was not written: {error}", err=True)
    except Exception as error:  # whatever goes wrong with a picture, the job's own exit code must pass through
        click.echo(f"memfit: the job has ended, but its record in {result.folder} cannot be shown: {error}", err=True)
    leave_like_the_job(result.exit_code, result.signal, over_limit=over_limit)


def after_a_run(record: RunRecord, *, as_json: bool, quiet: bool, report: bool) -> None:
    """What a person gets after a run: page and picture in the folder, the summary (or the record as JSON) on screen.

    A full disk costs the page and the picture, not the summary: it is printed first, then the error is raised.
    """
    from memfit import api

    if not report and quiet and not as_json:
        return
    run = api.explain_run(record)
    written, problem = (), None
    if report:
        try:
            written = api.write_report(run)
        except StorageError as error:
            problem = error
    if as_json or not quiet:
        print_run(run, as_json=as_json, written=written)
    if problem is not None:
        raise problem


def print_run(run: RunRecord | ExplainedRun, *, as_json: bool, written: tuple[Path, ...] = ()) -> None:
    """The summary of a run, or what is drawn of it as JSON."""
    from memfit import api
    from memfit.show.terminal.run import summary_text

    view = api.view_run(run)
    write_record(view, partial(summary_text, view, written=written), as_json=as_json)


def checked_interval(seconds: float) -> float:
    """An interval a computer can keep: 1 ms to 1 h."""
    if not 0.001 <= seconds <= 3600:
        raise UsageError("the interval must lie between 1ms and 1h", found=f"{seconds:g} s", hint="--interval 10ms")
    return seconds


def leave_like_the_job(exit_code: int | None, number: int | None, *, over_limit: bool) -> None:
    """End as the job ended: its exit code, or the signal that ended it."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed before memfit began, or on a full disk
            stream.flush()
    if over_limit:
        sys.exit(3)
    if number is not None:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    sys.exit(exit_code if exit_code is not None else 1)
