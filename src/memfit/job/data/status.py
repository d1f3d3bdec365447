"""Which data sets are on this machine, and in which state?"""

from __future__ import annotations

from memfit.job.data.cache import damaged_files, folder_of, missing_files
from memfit.job.data.catalogue import DATA_SETS, DataSet
from memfit.records.data_status import DataStatus


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
