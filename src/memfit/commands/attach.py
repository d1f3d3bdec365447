"""memfit attach: measure a program that is already running."""

from __future__ import annotations

import click

from memfit.commands.measure import after_a_run, checked_interval
from memfit.commands.shared.options import (
    SECONDS,
    force_option,
    json_option,
    no_report_option,
    output_option,
    quiet_option,
)
from memfit.errors import NoOutput, StorageError

EPILOG = """\b
Example:
  memfit attach 4711            until the program ends, or Ctrl-C detaches from it
  memfit attach 4711 --for 30s
"""


@click.command(epilog=EPILOG)
@output_option("Run folder to write [default: memfit-runs/NAME-DATE].")
@force_option
@click.option("--interval", type=SECONDS, default="10ms", show_default=True, help="Time between samples, 1ms to 1h.")
@click.option("--for", "duration", type=SECONDS, help="Detach after this time.")
@no_report_option
@quiet_option
@json_option
@click.argument("pid", type=click.IntRange(min=1))
def command(
    output: str | None,
    force: bool,
    interval: float,
    duration: float | None,
    no_report: bool,
    quiet: bool,
    as_json: bool,
    pid: int,
) -> None:
    """Measure the running process PID and its children until it ends or Ctrl-C detaches from it."""
    from memfit import api
    from memfit.show.progress.live_line import LiveLine

    line = LiveLine()
    show_live = line.enabled and not (quiet or as_json)
    try:
        record = api.attach_process(
            pid, output=output, overwrite=force, interval_seconds=checked_interval(interval), duration_seconds=duration,
            on_live=line.update if show_live else None,
        )  # fmt: skip
    finally:
        line.close()
    try:
        after_a_run(record, as_json=as_json, quiet=quiet, report=not no_report)
    except NoOutput as error:
        click.echo(f"memfit: {error}", err=True)
    except StorageError as error:
        click.echo(f"memfit: the page was not written: {error}", err=True)
