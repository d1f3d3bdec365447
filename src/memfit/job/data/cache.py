"""Cache folder of fetched data sets, and which of them are complete."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from memfit.errors import StorageError
from memfit.job.data.catalogue import DATA_SETS, DataFile, DataSet
from memfit.records.machine.data_status import DataStatus
from memfit.regular_file import open_regular

_CHUNK_BYTES = 1 << 20


def data_folder() -> Path:
    """MEMFIT_DATA, else below XDG_CACHE_HOME, else below ~/.cache."""
    chosen = os.environ.get("MEMFIT_DATA")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "memfit" / "data"


def folder_of(data_set: DataSet) -> Path:
    """Where the files of this data set are, or would be."""
    return data_folder() / data_set.name


def is_cached(data_set: DataSet) -> bool:
    """Whether every file is there in its full size; files get their name only after their md5 was right."""
    return not missing_files(data_set)


def missing_files(data_set: DataSet) -> list[DataFile]:
    """The files that are not there, or not in their full size."""
    return [file for file in data_set.files if _size_of(folder_of(data_set) / file.name) != file.num_bytes]


def damaged_files(data_set: DataSet) -> list[DataFile]:
    """The files whose content is not what it should be; reads them all."""
    folder = folder_of(data_set)
    return [file for file in data_set.files if not has_content(folder / file.name, file)]


def has_content(path: Path, file: DataFile) -> bool:
    """Whether this path holds that content."""
    return _size_of(path) == file.num_bytes and md5_of(path) == file.md5


def md5_of(path: Path) -> str:
    """The md5 of a file, as hexadecimal digits."""
    digest = hashlib.md5(usedforsecurity=False)
    with open_regular(path) as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _size_of(path: Path) -> int | None:
    try:
        return path.stat().st_size if path.is_file() else None
    except OSError:
        return None


@contextlib.contextmanager
def locked(data_set: DataSet, on_waiting: Callable[[], None] = lambda: None) -> Iterator[Path]:
    """Hold the data set's folder for this process alone; another memfit that fetches it is waited for."""
    folder = folder_of(data_set)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = open(folder / ".lock", "w")  # noqa: SIM115 - closed below, after the lock
    except OSError as error:
        hint = "set MEMFIT_DATA to a folder that can be written"
        raise StorageError(f"{folder} cannot be written", found=str(error), hint=hint) from None
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_waiting()
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield folder


# Which data sets are on this machine, and in which state?


def status_of_all(*, check: bool = False) -> tuple[DataStatus, ...]:
    """Every data set; with `check` every file is read and its md5 compared."""
    return tuple(status_of(data_set, check=check) for data_set in DATA_SETS.values())


def status_of(data_set: DataSet, *, check: bool = False) -> DataStatus:
    """One data set."""
    missing = missing_files(data_set)
    if missing:
        state = "not here" if len(missing) == len(data_set.files) else "incomplete"
    else:
        state = "damaged" if check and damaged_files(data_set) else "here"
    return DataStatus(
        name=data_set.name,
        title=data_set.title,
        state=state,
        num_bytes=data_set.num_bytes,
        folder=str(folder_of(data_set)),
        sources=tuple(source.title for source in data_set.sources),
    )
