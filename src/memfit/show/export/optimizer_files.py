"""The table of optimizers as Markdown and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from memfit.records.optimizer_bytes import OptimizerTable
from memfit.show.views.optimizer_rows import OptimizerFigures, OptimizerLine, optimizer_lines

FIELDS = ("state", "tall_state", "model_temporaries", "largest_temporaries", "first_added", "added")
HEADS = ("state", "state, tall", "step, of the model", "step, of the largest", "first step", "later steps")


def optimizers_csv(table: OptimizerTable) -> str:
    """One row for each optimizer and device; an unknown figure is an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = [f"{name}_bytes_per_parameter" for name in FIELDS]
    writer.writerow(["optimizer", "package", "device", "source", *names, "predicted_minus_measured_bytes", "notes"])
    for line in optimizer_lines(table):
        for device, figures in (("cpu", line.cpu), ("cuda", line.gpu)):
            if figures is not None:
                values = ["" if (v := getattr(figures, name)) is None else f"{v:.6g}" for name in FIELDS]
                off = line.difference_bytes if device == "cpu" and line.difference_bytes is not None else ""
                writer.writerow(
                    [line.optimizer, line.package, device, figures.source, *values, off, "; ".join(line.notes)]
                )
    return text.getvalue()


def optimizers_markdown(table: OptimizerTable, packages: Sequence[str] = ()) -> str:
    """One table per package, each sorted by what an optimizer adds to the peak."""
    lines = optimizer_lines(table)
    found = dict.fromkeys(packages or [line.package for line in lines])
    parts = [_section(package, [line for line in lines if line.package == package]) for package in found]
    return "\n\n".join(part for part in parts if part)


def _section(package: str, lines: Sequence[OptimizerLine]) -> str:
    shown = [line for line in lines if line.cpu or line.gpu]
    if not shown:
        return ""
    heads = ["optimizer", *HEADS, "off", *(f"GPU: {HEADS[k]}" for k in (0, 2, 3, 5))]
    rows = [f"## {package}", "", "| " + " | ".join(heads) + " |", "|---" + "|--:" * (len(heads) - 1) + "|"]
    return "\n".join(rows + [_row(line) for line in shown])


def _row(line: OptimizerLine) -> str:
    name = line.optimizer.removeprefix(line.package.partition(" ")[0] + ".").removeprefix("optim.")
    cells = [f"`{name}`", *_cells(line.cpu, FIELDS), _off(line)]
    cells += _cells(line.gpu, ("state", "model_temporaries", "largest_temporaries", "added"))
    return "| " + " | ".join(cells) + " |"


def _cells(figures: OptimizerFigures | None, names: Sequence[str]) -> list[str]:
    return ["-" if figures is None else per_parameter(getattr(figures, name)) for name in names]


def per_parameter(value: float | None) -> str:
    """Two digits; what a few counters or scalars take is 0."""
    return "-" if value is None else f"{value:.2f}".rstrip("0").rstrip(".").replace("-0", "0", value > -0.005)


def _off(line: OptimizerLine) -> str:
    if line.difference_bytes is None:
        return "-"
    return "equal" if line.difference_bytes == 0 else f"{line.difference_bytes:+,}"
