"""Files of a grid: the record as JSON, a row per cell as CSV, the table of peaks as text and Markdown.

An unknown number is an empty cell, never a zero.

The table of optimizers as Markdown and as CSV.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

from memfit.errors import StorageError
from memfit.records.figure import Figure
from memfit.records.grid import CellFigures, Grid, GridCell
from memfit.records.optimizer_bytes import OptimizerTable
from memfit.show.as_json import to_json
from memfit.show.new_file import write_bytes
from memfit.show.terminal.grid import grid_text
from memfit.show.views.optimizer_rows import OptimizerFigures, OptimizerLine, optimizer_lines
from memfit.units import format_bytes

FIGURES = (
    "tensors", "peak", "needed", "first_step", "steady", "average", "host", "step_time", "epoch_time", "energy",
)  # fmt: skip
TEXT_WIDTH = 120


def write_tables(grid: Grid, folder: Path) -> tuple[Path, ...]:
    """Write the record and its tables; what is there already is replaced by the newer state of the same grid."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{folder} cannot be made", found=str(error), hint="another -o") from None
    contents = {
        "grid.json": to_json(grid),
        "grid.csv": grid_csv(grid).encode(),
        "grid.md": grid_markdown(grid).encode(),
        "grid.txt": grid_text(grid, width=TEXT_WIDTH).encode(),
    }
    return tuple(write_bytes(folder / name, content) for name, content in contents.items())


def grid_csv(grid: Grid) -> str:
    """A row per cell, predicted beside measured."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["optimizer", "technique", "state", *_heads(), "difference_bytes", "saved_bytes", "time_ratio"])
    writer.writerows(_row(cell) for cell in grid.cells)
    return text.getvalue()


def _heads() -> Iterator[str]:
    for source in ("predicted", "measured"):
        for name in FIGURES:
            unit = "" if name.endswith("_time") else "_joules" if name == "energy" else "_bytes"
            yield f"{source}_{name.removesuffix('_time')}{unit or '_seconds'}"
        yield f"{source}_binds"


def _row(cell: GridCell) -> list[object]:
    return [
        cell.optimizer, cell.technique, cell.state, *_values(cell.predicted), *_values(cell.measured),
        cell.difference_bytes, cell.saved_bytes, cell.time_ratio,
    ]  # fmt: skip


def _values(figures: CellFigures | None) -> Iterator[object]:
    for name in FIGURES:
        figure: Figure | None = None if figures is None else getattr(figures, name)
        yield None if figure is None else figure.value
    yield "" if figures is None or figures.binds is None else figures.binds.phase


def grid_markdown(grid: Grid) -> str:
    """The table of peaks, and below it why cells have none."""
    lines = [f"| optimizer | {' | '.join(grid.techniques)} |", f"|---|{'---:|' * len(grid.techniques)}"]
    for optimizer in grid.optimizers:
        cells = [grid.cell(optimizer, technique) for technique in grid.techniques]
        lines.append(f"| {optimizer} | {' | '.join(_text(cell) for cell in cells)} |")
    reasons = dict.fromkeys(f"- {cell.technique}: {cell.reason}" for cell in grid.cells if cell.reason)
    return "\n".join([*lines, "", *reasons, ""])


def _text(cell: GridCell | None) -> str:
    figures = None if cell is None else cell.predicted or cell.measured
    if cell is None or figures is None or figures.peak.value is None:
        return "-" if cell is None else cell.state
    return format_bytes(figures.peak.value)


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
    return "\n".join(rows + [_optimizer_row(line) for line in shown])


def _optimizer_row(line: OptimizerLine) -> str:
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
