"""Where do data sets come from, and which are here?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memfit.records.data_status import DataStatus


def data_set_names(names: Sequence[str]) -> tuple[str, ...]:
    """The data sets that are meant, each checked before anything is fetched; 'all' is the three of images."""
    from memfit.job.data.catalogue import IMAGE_SETS, find_data_set

    expanded = [each for name in names for each in (IMAGE_SETS if name == "all" else (name,))]
    return tuple(dict.fromkeys(find_data_set(name).name for name in expanded))


def fetch_data(name: str, *, origin: str | Path | None = None, quiet: bool = True) -> Path:
    """Bring a data set into the cache, or take it from a folder or archive of the user's; returns its folder."""
    from memfit.job.data.catalogue import find_data_set
    from memfit.job.data.fetch import fetch, take_from_folder
    from memfit.show.terminal.data import FetchLine

    data_set = find_data_set(name)
    line = FetchLine(data_set.name, quiet=quiet)
    try:
        return fetch(data_set, line) if origin is None else take_from_folder(data_set, origin, line)
    finally:
        line.clear()


def list_data(*, check: bool = False) -> tuple[DataStatus, ...]:
    """Every data set, and whether it is here; with `check` every file is read."""
    from memfit.job.data.cache import status_of_all

    return status_of_all(check=check)


def print_data_sets(statuses: tuple[DataStatus, ...], *, as_json: bool = False) -> None:
    """Write the list of data sets to the standard output."""
    from memfit.show.as_json import to_json
    from memfit.show.paper import write_json, write_text
    from memfit.show.terminal.data import data_text

    if as_json:
        write_json(to_json(statuses))
    else:
        write_text(lambda width, color: data_text(statuses, width=width, color=color))
