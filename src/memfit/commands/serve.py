"""memfit serve: a page over a folder of records, in the browser."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import click

from memfit import api


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("folder", type=click.Path(path_type=Path), default=".")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="Listen here [default: a free one]."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Listen on this address.")
@click.option(
    "--token-file", type=click.Path(path_type=Path), metavar="FILE",
    help="Keep the token in this file: the same at every start, made if it is not there.",
)  # fmt: skip
@click.option("--open", "open_page", is_flag=True, help="Open the page in a browser.")
def command(folder: Path, port: int, host: str, token_file: Path | None, open_page: bool) -> None:
    """Show the runs, studies, predictions, plans, pipelines, grids and snapshots below FOLDER in a browser.

    The page is served on this machine only, to whoever has the address that is printed: it carries a token. A snapshot
    can also be dropped on the page. The numbers of all records are at /metrics, for Prometheus.

    \b
    Examples:
      memfit serve
      memfit serve memfit-studies/mlp --open
      memfit serve snapshot.pickle --port 8017
      memfit serve memfit-runs --port 8017 --token-file token.txt
    """

    def ready(url: str) -> None:
        click.echo(f"{url}\nPress Ctrl-C to end.")
        sys.stdout.flush()
        if open_page:
            click.launch(url)

    api.serve_folder(folder, host=host, port=port, token_file=token_file, on_ready=ready)
    _end_now()


def _end_now() -> None:
    """Ctrl-C ends the server also while it explains a study: Python would wait minutes for a thread it cannot stop."""
    if any(not each.daemon for each in threading.enumerate() if each is not threading.main_thread()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
