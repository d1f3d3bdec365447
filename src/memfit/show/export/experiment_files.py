"""Which files does an experiment leave in its folder? The record as JSON, and its tables as CSV or Markdown."""

from __future__ import annotations

from pathlib import Path

from memfit.errors import StorageError
from memfit.records.edge import EdgeTables
from memfit.records.experiment import OffloadingExperiment
from memfit.show.as_json import to_json
from memfit.show.export.experiment_csv import experiment_csv
from memfit.show.new_file import write_bytes
from memfit.show.terminal.edge import edge_text


def write_tables(found: OffloadingExperiment | EdgeTables, folder: str | Path) -> tuple[Path, ...]:
    """Write the record and its tables; makes the folder where it is missing."""
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{folder} cannot be made", found=str(error), hint="choose another folder") from None
    if isinstance(found, EdgeTables):
        name, table = "edge", ("md", edge_text(found))
    else:
        name, table = "offloading", ("csv", experiment_csv(found))
    return (
        write_bytes(folder / f"{name}.json", to_json(found)),
        write_bytes(folder / f"{name}.{table[0]}", table[1].encode()),
    )
