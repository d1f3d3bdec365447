"""memfit export: a run, study, prediction or grid in a format other tools read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from memfit import api
from memfit.commands.shared.options import force_option, output_option, to_option
from memfit.commands.shared.output import say_written

if TYPE_CHECKING:
    from memfit.show.export.formats import Format

TABLES = ("samples", "tree", "steps", "processes", "system", "gpu", "energy")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("record", type=click.Path(path_type=Path))
@output_option("Where to [default: here, named after the record].")
@force_option
@to_option(required=True)
@click.option("--table", type=click.Choice(TABLES), help="Of csv, this table alone, as one file.")
@click.option(
    "--curve",
    "trials",
    type=int,
    multiple=True,
    metavar="N",
    help="Of figures, draw this trial by itself; repeatable.",
)
@click.option("--beside", type=click.Path(path_type=Path), help="Of chrome-trace, add to this trace of torch.profiler.")
def command(
    record: Path,
    to: Format,
    output: str | None,
    table: str | None,
    trials: tuple[int, ...],
    beside: Path | None,
    force: bool,
) -> None:
    """Write a RECORD (a folder of a run, study or grid, or a record in JSON) for other programs.

    \b
    csv            run: a folder with samples, tree, steps and more; study: a row per trial; grid: a row per cell
    json           the whole record
    chrome-trace   run: memory as counters, steps and phases as slices; for Perfetto or chrome://tracing
    perfetto       run: the same in Perfetto's own format, with units
    memory-viewer  run: the tensors of a traced step (needs `memfit measure --ledger`)
    tensorboard    run: curves; study: curves and hyperparameters of every trial, into its own folder
    openmetrics    text for Prometheus; printed unless -o is given
    figures        study: parallel coordinates, intermediate results, memory against everything, as PNG

    \b
    Examples:
      memfit export runs/train-1 --to csv --table steps -o steps.csv
      memfit export runs/train-1 --to perfetto -o train.pftrace
      memfit export memfit-studies/mlp --to tensorboard
      memfit export memfit-studies/mlp --to figures --curve 3 --curve 17 -o figures
    """
    found = api.read_record(record)
    if to == "openmetrics" and output is None:
        if table or trials or beside:
            raise click.UsageError("openmetrics has no tables, no curves and nothing beside it")
        click.echo(api.metrics_text(found), nl=False)
        return
    say_written(api.export_record(found, to, output, table=table, trials=trials, beside=beside, overwrite=force), to)
