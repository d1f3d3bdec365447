"""memfit report: the page of a folder of records as one file."""

from __future__ import annotations

from pathlib import Path

import click

from memfit import api
from memfit.commands.shared.options import force_option, output_option


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("folder", type=click.Path(path_type=Path))
@output_option("Where the page goes [default: report.html].", "report.html")
@force_option
@click.option("--open", "open_page", is_flag=True, help="Open the page in a browser.")
def command(folder: Path, output: str, force: bool, open_page: bool) -> None:
    """Write what `memfit serve` shows of FOLDER as one file that works offline.

    FOLDER is a run, a study, a file with a prediction, plan, grid or snapshot, or a folder with several of them.

    \b
    Examples:
      memfit report memfit-runs/train-1 -o page.html
      memfit report memfit-studies/mlp -o study.html --open
    """
    path = api.report_folder(folder, output, overwrite=force)
    click.echo(f"wrote {path}")
    if open_page:
        click.launch(str(path.resolve()))
