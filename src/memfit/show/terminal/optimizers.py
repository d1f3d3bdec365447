"""Bytes per parameter of optimizers in the terminal."""

from __future__ import annotations

from rich.console import Group
from rich.text import Text

from memfit.records.optimizer_bytes import OptimizerTable
from memfit.show.text_output import render, table
from memfit.show.views.optimizer_rows import OptimizerFigures, OptimizerLine, optimizer_lines

UNKNOWN = "-"


def optimizers_text(found: OptimizerTable, *, width: int = 100, color: bool = False) -> str:
    """One line for each optimizer, by what it adds to the peak; why something is missing below."""
    lines = optimizer_lines(found)
    made = table("optimizer", ">state", ">of the model", ">of the largest", ">first", ">later", ">GPU, later", ">off")
    for line in lines:
        made.add_row(line.optimizer, *_cells(line.cpu), _per_parameter(line.gpu.added if line.gpu else None), off(line))
    notes = [Text(f"{line.optimizer}: {note}", style="dim") for line in lines for note in line.notes]
    notes += [Text(f"{name}: {reason}", style="dim") for name, reason in found.left_out.items()]
    head = Text(
        "Bytes per parameter: kept, temporaries of the step (per parameter of the model, and of its largest tensor), "
        f"added to the peak. torch {found.torch_version}; " + ", ".join(found.packages)
    )
    return render(Group(head, Text(""), made, Text(""), *notes), max(width, 100), color)


def _cells(figures: OptimizerFigures | None) -> list[str]:
    if figures is None:
        return [UNKNOWN] * 5
    shown = (figures.state, figures.model_temporaries, figures.largest_temporaries, figures.first_added, figures.added)
    return [_per_parameter(value) for value in shown]


def _per_parameter(value: float | None) -> str:
    """Two digits behind the point; a few counters are not worth a third."""
    return UNKNOWN if value is None else f"{value + 0.0:.2f}".replace("-0.00", "0.00")


def off(line: OptimizerLine) -> str:
    """Predicted against measured, in bytes."""
    if line.difference_bytes is None:
        return UNKNOWN
    return "equal" if line.difference_bytes == 0 else f"{line.difference_bytes:+,} B"
