"""Figures of `memfit reproduce optimizers`: base above technique over two steps, and the summary bars."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from memfit.records.grid import Grid
from memfit.records.reproduction import OptimizerResult
from memfit.show.figures.grid import draw_grid_figures
from memfit.show.figures.reproduction import SETTINGS, save_both
from memfit.show.figures.timeline import BLUE, GREEN, ORANGE, RED, require_matplotlib
from memfit.units import MIB

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture

ROWS = ("adam", "sgd")


def draw_optimizers(found: OptimizerResult, folder: str | Path) -> tuple[Path, ...]:
    """The figures of the grid, the timelines with and without each technique, and mixed precision over batch sizes."""
    matplotlib = require_matplotlib()
    paths = list(draw_grid_figures(found.grid, folder))
    with matplotlib.rc_context(SETTINGS):
        paths += save_both(_base_and_technique(found.grid), Path(folder), "base_and_technique")
        if found.precision:
            paths += save_both(_precision(found), Path(folder), "mixed_precision")
    return tuple(paths)


def _base_and_technique(grid: Grid) -> Picture:
    """A row per technique, Adam beside SGD; the plain steps lie below the technique's."""
    from matplotlib.figure import Figure

    techniques = [name for name in grid.techniques if name != "plain"]
    picture = Figure(figsize=(10, 1.9 * len(techniques) + 0.8), dpi=110, facecolor="white", layout="constrained")
    places = picture.subplots(len(techniques), len(ROWS), squeeze=False, sharey=True, sharex=True)
    for row, technique in zip(places, techniques, strict=True):
        for place, optimizer in zip(row, ROWS, strict=True):
            _curve(place, grid, optimizer, "plain", BLUE, "-", "without")
            _curve(place, grid, optimizer, technique, ORANGE, "--", "with the technique")
            place.set_title(f"{optimizer}, {technique}", size=9.5, loc="left")
            place.set_ylim(bottom=0)
            place.grid(axis="y", color="#e3e6ea", linewidth=0.6)
            place.spines[["top", "right"]].set_visible(False)
        row[0].set_ylabel("MiB", size=9)
    for place in places[-1]:
        place.set_xlabel("first step, then the second, which all later steps repeat", size=9)
    handles, labels = places[0][0].get_legend_handles_labels()
    picture.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    picture.suptitle(f"Tensors over two steps on {grid.device}, predicted", size=12)
    return picture


def _curve(place: Axes, grid: Grid, optimizer: str, technique: str, color: str, line: str, label: str) -> None:
    cell = grid.cell(optimizer, technique)
    if cell is None or cell.predicted is None:
        return
    x = [point.position for point in cell.predicted.curve]
    y = [point.num_bytes / MIB for point in cell.predicted.curve]
    place.plot(x, y, color=color, linestyle=line, linewidth=1.2, drawstyle="steps-post", label=label)


def _precision(found: OptimizerResult) -> Picture:
    """Peaks with and without mixed precision over batch sizes."""
    from matplotlib.figure import Figure

    picture = Figure(figsize=(7, 4.2), dpi=110, facecolor="white", layout="constrained")
    place = picture.subplots()
    sizes = [point.batch_size for point in found.precision]
    place.plot(sizes, [p.plain_bytes / MIB for p in found.precision], color=GREEN, marker="o", label="float32")
    mixed = [point.mixed_bytes / MIB for point in found.precision]
    place.plot(sizes, mixed, color=RED, marker="s", linestyle="--", label="mixed precision (float16)")
    place.set_xscale("log", base=2)
    place.set_xticks(sizes, [str(size) for size in sizes])
    place.set_xlabel("batch size")
    place.set_ylabel("peak, MiB (allocated, predicted)")
    place.set_title(f"Mixed precision over batch sizes, SGD on {found.grid.device}", size=11, loc="left")
    place.legend(frameon=False)
    place.grid(color="#e3e6ea", linewidth=0.6)
    place.spines[["top", "right"]].set_visible(False)
    return picture
