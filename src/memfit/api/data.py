"""Data sets of the built-in trainings: which there are, which are here, and fetching them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from memfit.api.shared.options import checked_options

if TYPE_CHECKING:
    from memfit.records.machine.data_status import DataStatus


class FetchProgress(Protocol):
    """Receives the progress of a fetch."""

    def say(self, sentence: str) -> None:
        """Something worth a line."""
        ...

    def progress(self, have_bytes: int, total_bytes: int | None) -> None:
        """Bytes of the current download."""
        ...


def data_set_names(names: Sequence[str]) -> tuple[str, ...]:
    """The data sets that are meant, each checked before anything is fetched; 'all' is the three of images."""
    from memfit.job.data.catalogue import IMAGE_SETS, find_data_set

    expanded = [each for name in names for each in (IMAGE_SETS if name == "all" else (name,))]
    return tuple(dict.fromkeys(find_data_set(name).name for name in expanded))


@checked_options
def fetch_data(name: str, *, origin: str | Path | None = None, progress: FetchProgress | None = None) -> Path:
    """Bring a data set into the cache, or take it from a folder or archive of the user's; returns its folder.

    >>> fetch_data("mnist")  # doctest: +SKIP
    """
    from memfit.job.data.catalogue import find_data_set
    from memfit.job.data.fetch import fetch, take_from_folder

    data_set = find_data_set(name)
    return fetch(data_set, progress) if origin is None else take_from_folder(data_set, origin, progress)


@checked_options
def list_data(*, check: bool = False) -> tuple[DataStatus, ...]:
    """Every data set, and whether it is here; with `check` every file is read.

    >>> [status.name for status in list_data()]
    ['mnist', 'fashion-mnist', 'cifar-10', 'squad']
    """
    from memfit.job.data.cache import status_of_all

    return status_of_all(check=check)
