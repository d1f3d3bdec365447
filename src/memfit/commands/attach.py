"""memfit attach: measure a program that is already running."""

from __future__ import annotations

import click

from memfit.commands.measure import checked_interval
from memfit.commands.options import SECONDS, json_option
from memfit.errors import NoOutput, StorageError

EPILOG = """\b
Example:
  memfit attach 4711            until the program ends, or Ctrl-C lets go of it
  memfit attach 4711 --for 30s
"""


@click.command(epilog=EPILOG)
@click.option("-o", "--output", type=click.Path(), help="Run folder to write. Default: memfit-runs/NAME-DATE.")
@click.option("-f", "--force", is_flag=True, help="Overwrite an old run in that folder.")
@click.option("--interval", type=SECONDS, default="10ms", show_default=True, help="Time between samples, 1ms to 1h.")
@click.option("--for", "duration", type=SECONDS, help="Let go after this time.")
@click.option("--no-report", is_flag=True, help="Write no picture and no page after the run.")
@click.option("-q", "--quiet", is_flag=True, help="No live line and no summary.")
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
    """Measure the running process PID and its children until it ends or Ctrl-C lets go of it."""
    from memfit import api

    line = api.live_line()
    show_live = line.enabled and not (quiet or as_json)
    try:
        record = api.attach_process(
            pid, output=output, overwrite=force, interval_seconds=checked_interval(interval), duration_seconds=duration,
            on_live=line.update if show_live else None,
        )  # fmt: skip
    finally:
        line.close()
    try:
        api.after_a_run(record, as_json=as_json, quiet=quiet, report=not no_report)
    except NoOutput as error:
        click.echo(f"memfit: {error}", err=True)
    except StorageError as error:
        click.echo(f"memfit: the page was not written: {error}", err=True)
