"""memfit export: this run, in a format other tools read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from memfit import api
from memfit.commands.options import force_option, output_option, to_option

TABLES = ("samples", "tree", "steps", "processes", "system", "gpu", "energy")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("run", type=click.Path(path_type=Path))
@output_option("Where to [default: here, named after the run].")
@force_option
@to_option(required=True)
@click.option("--table", type=click.Choice(TABLES), help="Of csv, this table alone, as one file.")
def command(run: Path, to: Any, output: str | None, table: str | None, force: bool) -> None:
    """Write a run as CSV, JSON, a chrome trace or a snapshot for PyTorch's memory viewer; a study as CSV or JSON.

    \b
    csv            a folder with samples, tree, steps, processes, system, gpu and energy
    json           the whole record
    chrome-trace   memory as counters, steps and phases as slices; for Perfetto or chrome://tracing
    memory-viewer  the tensors of a traced step (needs `memfit measure --ledger`)

    \b
    Examples:
      memfit export runs/train-1 --to csv -o tables
      memfit export runs/train-1 --to csv --table steps -o steps.csv
      memfit export runs/train-1 --to chrome-trace -o train.trace.json
    """
    if api.is_study(run):
        if table is not None:
            raise click.UsageError("a study is one table; --table is for runs")
        click.echo(f"wrote {api.export_study(api.read_study(run), to, output, overwrite=force)}")
        return
    for path in api.export_run(api.read_run(run), to, output, table=table, overwrite=force):
        click.echo(f"wrote {path}")
