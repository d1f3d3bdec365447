"""Files of a reproduced result: the record as JSON, and its tables as CSV or Markdown.

An unknown number is an empty cell, never a zero.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from memfit.errors import StorageError
from memfit.records.reproduction import (
    EdgeTables,
    HyperparameterTrials,
    OffloadingExperiment,
    OptimizerResult,
    PipeliningResult,
)
from memfit.show.as_json import to_json
from memfit.show.export.compare_files import grid_csv
from memfit.show.new_file import write_bytes
from memfit.show.terminal.reproduction import edge_text

HEADS = (
    "network", "device", "link_bytes_per_second", "budget_bytes", "plain_peak_bytes", "planner", "fits", "peak_bytes",
    "seconds", "time_over_plain", "examples_per_second", "stall_seconds", "moved_bytes", "reason",
)  # fmt: skip


def offloading_csv(experiment: OffloadingExperiment) -> str:
    """A row for each network, link, budget and planner."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADS)
    writer.writerows(_rows(experiment))
    return text.getvalue()


def _rows(experiment: OffloadingExperiment) -> Iterator[list[object]]:
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


TRIAL_HEADS = (
    "data", "row", "lr", "epochs", "batch_size", "hidden", "published_bytes", "system_bytes", "peak_bytes",
    "peak_low_bytes", "peak_high_bytes", "average_bytes", "background_bytes", "num_done", "num_trials",
)  # fmt: skip


def trials_csv(found: HyperparameterTrials) -> str:
    """A row for each point, published beside measured."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(TRIAL_HEADS)
    for rerun in found.reruns:
        for row in rerun.rows:
            point = [row.parameters.get(name) for name in ("lr", "epochs", "batch_size", "hidden")]
            figures = [row.published.value, row.system.value, row.peak.value]
            rest = [row.peak.low, row.peak.high, row.average.value, row.background.value]
            writer.writerow([rerun.data, row.row, *point, *figures, *rest, row.num_done, row.num_trials])
    return text.getvalue()


def write_tables(
    found: OffloadingExperiment | EdgeTables | HyperparameterTrials | OptimizerResult | PipeliningResult,
    folder: str | Path,
) -> tuple[Path, ...]:
    """Write the record and its tables; makes the folder where it is missing."""
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{folder} cannot be made", found=str(error), hint="choose another folder") from None
    if isinstance(found, EdgeTables):
        name, table = "edge", ("md", edge_text(found))
    elif isinstance(found, OptimizerResult):
        name, table = "optimizers", ("csv", grid_csv(found.grid))
    elif isinstance(found, PipeliningResult):
        name, table = "pipelining", ("csv", pipelining_csv(found))
    elif isinstance(found, HyperparameterTrials):
        name, table = "hyperparameters", ("csv", trials_csv(found))
    else:
        name, table = "offloading", ("csv", offloading_csv(found))
    return (
        write_bytes(folder / f"{name}.json", to_json(found)),
        write_bytes(folder / f"{name}.{table[0]}", table[1].encode()),
    )


def pipelining_csv(found: PipeliningResult) -> str:
    """A row per chain, number of ranks and memory; an empty cell where a cut does not fit or was not asked for."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    heads = ("exact_seconds", "blind_seconds", "rule_seconds", "shared_seconds")
    writer.writerow(["chain", "num_ranks", "memory_bytes", *heads])
    for row in (*found.comparisons, *found.shared):
        cells = ["" if getattr(row, head) is None else getattr(row, head) for head in heads]
        writer.writerow([row.chain, row.num_ranks, row.memory_bytes, *cells])
    return text.getvalue()
