"""How does a comparison of planners look as one CSV table: a row for each network, link, budget and planner?

An unknown number is an empty cell, never a zero.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

from memfit.records.experiment import OffloadingExperiment

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
