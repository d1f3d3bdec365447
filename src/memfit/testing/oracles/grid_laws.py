"""Laws that every grid of `memfit compare` obeys: what a cell says in words agrees with its numbers."""

from __future__ import annotations

from memfit.compare.cells.judge_cells import LEAST_SHARE, PHASE_NAMES
from memfit.records.grid import CellFigures, Grid, GridCell


def broken_laws(grid: Grid) -> list[str]:
    """Every cell whose words and numbers disagree, with what is wrong; empty where all is well."""
    broken = [f"{cell.optimizer}, {cell.technique}: {what}" for cell in grid.cells for what in _in_cell(cell, grid)]
    places = [(cell.optimizer, cell.technique) for cell in grid.cells]
    return broken + [f"{place} is there twice" for place in set(places) if places.count(place) > 1]


def _in_cell(cell: GridCell, grid: Grid) -> list[str]:
    if cell.figures is None:
        return (
            [] if cell.state in ("contradictory", "not here", "failed") and cell.reason else ["empty, with no reason"]
        )
    if cell.state in ("contradictory", "not here"):
        return [f"{cell.state}, and yet it has figures"]
    broken = [] if cell.predicted is None else _in_moments(cell.predicted)
    base = grid.cell(cell.optimizer, "plain")
    if base is not None and base is not cell and cell.predicted is not None and base.predicted is not None:
        broken += _in_value(cell, base.predicted, cell.predicted)
    return broken


def _in_moments(figures: CellFigures) -> list[str]:
    """The moment that binds is the peak, and the next one is not above it."""
    binds, after, peak = figures.binds, figures.next_binds, figures.tensors.value
    if binds is None or peak is None:
        return []
    broken = [] if after is None or after.peak_bytes <= binds.peak_bytes else ["what binds next is higher"]
    return (
        broken if binds.peak_bytes == peak else [*broken, f"{binds.phase} binds at {binds.peak_bytes}, not {peak:.0f}"]
    )


def _in_value(cell: GridCell, base: CellFigures, mine: CellFigures) -> list[str]:
    """Saves, costs or useless as the peaks say, and the sentence names what binds."""
    if base.peak.value is None or mine.peak.value is None:
        return []
    saved = int(base.peak.value - mine.peak.value)
    moved = abs(saved) > LEAST_SHARE * base.peak.value
    value = ("saves" if saved > 0 else "costs") if moved else "useless here"
    broken = [] if cell.saved_bytes == saved else [f"saves {cell.saved_bytes}, and the peaks say {saved}"]
    broken += [] if cell.value == value else [f"{cell.value}, and the peaks say {value}"]
    if cell.why and ("peak unchanged" in cell.why) != (value == "useless here"):
        broken.append(f"says {cell.why!r}, and is {value}")
    if cell.why and mine.binds is not None and f"{PHASE_NAMES[mine.binds.phase]} binds" not in cell.why:
        broken.append(f"says {cell.why!r}, and {mine.binds.phase} binds")
    return broken
