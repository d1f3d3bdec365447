"""How does a comparison of planners look as one CSV table: a row for each network, link, budget and planner?

An unknown number is an empty cell, never a zero.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from memfit.errors import StorageError
from memfit.records.reproduction import EdgeTables, OffloadingExperiment
from memfit.show.as_json import to_json
from memfit.show.new_file import write_bytes
from memfit.show.terminal.reproduction import edge_text

HEADS = (
    "network", "device", "link_bytes_per_second", "budget_bytes", "plain_peak_bytes", "planner", "fits", "peak_bytes",
    "seconds", "time_over_plain", "examples_per_second", "stall_seconds", "moved_bytes", "reason",
)  # fmt: skip


def experiment_csv(experiment: OffloadingExperiment) -> str:
    """The whole table."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADS)
    writer.writerows(_rows(experiment))
    return text.getvalue()


def _rows(experiment: OffloadingExperiment) -> Iterator[list[Any]]:
    for panel in experiment.panels:
        network = experiment.network(panel.network)
        for cell in panel.cells:
            for found in cell.candidates:
                seconds = found.seconds
                yield [
                    network.name, experiment.device, panel.link.out_bytes_per_second, cell.budget_bytes,
                    network.plain_peak_bytes, found.solver, int(found.fits), found.peak_bytes, seconds,
                    None if seconds is None else seconds / network.plain_seconds,
                    None if seconds is None else network.num_examples / seconds,
                    None if seconds is None else found.stall_seconds,
                    None if seconds is None else found.moved_bytes, found.reason,
                ]  # fmt: skip


# Which files does an experiment leave in its folder? The record as JSON, and its tables as CSV or Markdown.

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
