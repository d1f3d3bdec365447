"""Standard output of every verb: a record as JSON, or as text fitted to the terminal, pipe or file it goes to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from memfit.show.text_output import Compose


def write_record(record: object, compose: Compose, *, as_json: bool = False, stream: TextIO | None = None) -> None:
    """The record itself as JSON, or the text that `compose` makes of it for a width and with colour or without."""
    from memfit.show.as_json import to_json
    from memfit.show.text_output import write_json, write_text

    if as_json:
        write_json(to_json(record))
    else:
        write_text(compose, stream)


def say_written(paths: Sequence[Path], to: str) -> None:
    """What an export wrote; the event files of a study's trials are counted."""
    import click

    if to == "tensorboard":
        more = f" and {len(paths) - 1} more" if paths[1:] else ""
        click.echo(f"wrote {paths[0]}{more}\ntensorboard --logdir {paths[0].parent}")
        return
    for path in paths:
        click.echo(f"wrote {path}")
