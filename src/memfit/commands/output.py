"""Standard output of every verb: a record as JSON, or as text fitted to the terminal, pipe or file it goes to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from memfit.show.paper import Compose


def write_record(record: Any, compose: Compose, *, as_json: bool = False, stream: TextIO | None = None) -> None:
    """The record itself as JSON, or the text that `compose` makes of it for a width and with colour or without."""
    from memfit.show.as_json import to_json
    from memfit.show.paper import write_json, write_text

    if as_json:
        write_json(to_json(record))
    else:
        write_text(compose, stream)
