"""Document of a grid of optimizers and techniques."""

from __future__ import annotations

from memfit.records.grid import CellFigures, Grid, GridCell
from memfit.show.as_json import plain
from memfit.show.page.documents.document import Body, Document
from memfit.show.terminal.grid import budget_lines, cell_text, grid_title, reason_lines, technique_lines


def grid_document(grid: Grid) -> Document:
    """The table of peaks with what binds each cell, and the budget's answer."""
    body: Body = {
        "optimizers": list(grid.optimizers),
        "techniques": list(grid.techniques),
        "cells": [
            [_cell(grid.cell(optimizer, technique)) for technique in grid.techniques] for optimizer in grid.optimizers
        ],
        "technique_lines": list(technique_lines(grid)),
        "budget_lines": [] if grid.budget is None else list(budget_lines(grid.budget, grid)),
        "reason_lines": list(reason_lines(grid)),
        "notes": list(grid.notes),
    }
    return Document(kind="grid", title=grid_title(grid), body=body)


def _cell(cell: GridCell | None) -> Body | None:
    if cell is None:
        return None
    shown = cell.predicted or cell.measured  # what `cell_text` shows
    return {
        "text": cell_text(cell),
        "value": cell.value,
        "why": cell.why or cell.reason,
        "code": list(cell.code),
        "saved_bytes": cell.saved_bytes,
        "peak_bytes": None if shown is None else shown.peak.value,
        "at_peak": [] if shown is None else plain(shown.at_peak),
        "predicted_bytes": None if cell.predicted is None else cell.predicted.tensors.value,
        "measured": None if cell.measured is None else _measured(cell.measured),
        "not_measured": cell.not_measured,
    }


def _measured(figures: CellFigures) -> Body:
    return {
        "tensor_bytes": figures.tensors.value,
        "needed_bytes": figures.needed.value,
        "step_seconds": figures.step_time.value,
    }
