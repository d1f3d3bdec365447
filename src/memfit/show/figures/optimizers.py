"""Figures of `memfit reproduce optimizers`: two epochs, the base above every technique; mixed precision by batch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from memfit.records.grid import Grid, GridCell
from memfit.records.reproduction import MeasuredEpochs, OptimizerResult
from memfit.show.figures.grid import draw_grid_figures
from memfit.show.figures.reproduction import SETTINGS, save_both
from memfit.show.figures.timeline import BLUE, GREEN, GREY, ORANGE, RED, require_matplotlib
from memfit.units import MIB, format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture

ROWS = ("adam", "sgd")
Points = tuple[np.ndarray, np.ndarray]


def draw_optimizers(found: OptimizerResult, folder: str | Path) -> tuple[Path, ...]:
    """The figures of the grid, the timelines of two epochs, and mixed precision over batch sizes."""
    matplotlib = require_matplotlib()
    paths = list(draw_grid_figures(found.grid, folder))
    with matplotlib.rc_context(SETTINGS):
        if found.epochs is not None:
            paths += save_both(_predicted_epochs(found.grid, found.epochs), Path(folder), "two_epochs_predicted")
        if found.epochs is not None and found.measured is not None and _has_measured(found.measured):
            paths += save_both(_measured_epochs(found.measured, found.epochs), Path(folder), "two_epochs_measured")
        if found.precision:
            paths += save_both(_precision(found), Path(folder), "mixed_precision")
    return tuple(paths)


# ---- two epochs ------------------------------------------------------------------------------------------------------


def repeated_steps(cell: GridCell, epochs: MeasuredEpochs) -> Points:
    """Epochs, and bytes, of a predicted cell: its first step, then its last one again and again."""
    figures = cell.predicted
    if figures is None or not figures.curve or len(figures.step_begins) < 2 or not cell.examples_ratio:
        return np.zeros(0), np.zeros(0)
    position = np.array([point.position for point in figures.curve])
    sizes = np.array([point.num_bytes for point in figures.curve])
    steps_per_epoch = epochs.epoch_steps / cell.examples_ratio
    bounds = [*figures.step_begins, 1.0]
    num_traced, num_steps = len(figures.step_begins), round(epochs.num_epochs * steps_per_epoch)
    x, y = [], []
    for step in range(num_steps):
        traced = min(step, num_traced - 1)
        low, high = bounds[traced], bounds[traced + 1]
        inside = (position >= low) & (position < high)
        x.append((step + (position[inside] - low) / (high - low)) / steps_per_epoch)
        y.append(sizes[inside])
    return np.concatenate(x), np.concatenate(y)


def measured_epochs(cell: GridCell, epochs: MeasuredEpochs) -> Points:
    """Epochs, and bytes of the process, of a measured cell; an epoch takes as long as its steps took."""
    figures = cell.measured
    if figures is None or not figures.over_time or not figures.step_begins or not cell.examples_ratio:
        return np.zeros(0), np.zeros(0)
    seconds = np.array([point.position for point in figures.over_time])
    begins = np.array([*figures.step_begins, max(seconds[-1], figures.step_begins[-1])])
    steps = np.interp(seconds, begins, np.arange(len(begins)))
    return steps * cell.examples_ratio / epochs.epoch_steps, np.array([p.num_bytes for p in figures.over_time])


def _predicted_epochs(grid: Grid, epochs: MeasuredEpochs) -> Picture:
    batch = grid.settings.get("batch_size", "?")
    title = (
        f"DistilBERT over two epochs of {epochs.epoch_steps} steps, batch {batch}, length "
        f"{grid.settings.get('length', '?')}, on {grid.device}: live tensors, predicted"
    )
    curves = {(cell.optimizer, cell.technique): repeated_steps(cell, epochs) for cell in grid.cells}
    note = "the first two steps are traced; the second one is drawn for all later ones"
    return _timelines(curves, grid.techniques, title, note)


def _has_measured(grid: Grid) -> bool:
    return any(cell.measured is not None and cell.measured.over_time for cell in grid.cells)


def _measured_epochs(grid: Grid, epochs: MeasuredEpochs) -> Picture:
    title = (
        f"DistilBERT with {epochs.layers} layers over two epochs of {epochs.epoch_steps * epochs.batch_size} questions"
        f", batch {epochs.batch_size}, length {epochs.length}: this process, measured"
    )
    curves = {(cell.optimizer, cell.technique): measured_epochs(cell, epochs) for cell in grid.cells}
    return _timelines(curves, grid.techniques, title, f"{epochs.data}; bytes of the whole process, sampled")


def _timelines(curves: dict[tuple[str, str], Points], techniques: Sequence[str], title: str, note: str) -> Picture:
    """The base on top, every technique below it, Adam beside SGD; the base's peak is a line in each panel."""
    from matplotlib.figure import Figure

    drawn = [name for name in techniques if any(len(curves.get((row, name), ((), ()))[0]) for row in ROWS)]
    picture = Figure(figsize=(11, 1.55 * len(drawn) + 1.4), dpi=110, facecolor="white", layout="constrained")
    places = picture.subplots(len(drawn), len(ROWS), squeeze=False, sharey=True, sharex=True)
    for row, technique in zip(places, drawn, strict=True):
        for place, optimizer in zip(row, ROWS, strict=True):
            base, mine = (curves.get((optimizer, name)) for name in ("plain", technique))
            _panel(place, f"{optimizer}, {technique}", base, mine, ORANGE if technique != "plain" else BLUE)
        row[0].set_ylabel("MiB", size=9)
    for place in places[-1]:
        place.set_xlabel(f"epochs ({note})" if len(note) < 60 else "epochs", size=9)
        place.set_xlim(0, 2)
        place.set_xticks([0, 0.5, 1, 1.5, 2])
    picture.suptitle(title, size=11.5)
    return picture


def _panel(place: Axes, name: str, base: Points | None, mine: Points | None, color: str) -> None:
    """One timeline; the title says its peak, and how far that is from the base's."""
    place.set_title(name, size=9.5, loc="left")
    if mine is not None and len(mine[0]):
        x, y = mine[0], mine[1] / MIB
        place.fill_between(x, y, step="post", color=color, alpha=0.22, linewidth=0)
        place.plot(x, y, color=color, linewidth=1.0, drawstyle="steps-post")
        place.set_title(f"{name}: {_peak_text(mine, base)}", size=9.5, loc="left")
    if base is not None and len(base[0]):
        place.axhline(base[1].max() / MIB, color=RED, linestyle="--", linewidth=0.9)
    place.axvline(1, color=GREY, linewidth=0.8)
    place.set_ylim(bottom=0)
    place.grid(axis="y", color="#e3e6ea", linewidth=0.6)
    place.spines[["top", "right"]].set_visible(False)


def _peak_text(mine: Points, base: Points | None) -> str:
    peak = float(mine[1].max())
    if base is None or base is mine or not len(base[0]):
        return f"peak {format_bytes(peak)}"
    less = float(base[1].max()) - peak
    return f"peak {format_bytes(peak)}, {format_bytes(abs(less))} {'less' if less >= 0 else 'more'}"


# ---- mixed precision -------------------------------------------------------------------------------------------------


def _precision(found: OptimizerResult) -> Picture:
    """Peaks with and without mixed precision over batch sizes, and below it the difference, which changes its sign."""
    from matplotlib.figure import Figure

    picture = Figure(figsize=(7.4, 5.6), dpi=110, facecolor="white", layout="constrained")
    above, below = picture.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    sizes = [point.batch_size for point in found.precision]
    at = range(len(sizes))
    plain = np.array([point.plain_bytes for point in found.precision]) / MIB
    mixed = np.array([point.mixed_bytes for point in found.precision]) / MIB
    above.plot(at, plain, color=GREEN, marker="o", label="float32")
    above.plot(at, mixed, color=RED, marker="s", linestyle="--", label="mixed precision (float16)")
    above.set_ylim(bottom=0)
    above.set_ylabel("peak, MiB (allocated)")
    where = f"SGD, length {found.grid.settings.get('length', '?')}, {found.grid.device}, predicted"
    above.set_title(f"Mixed precision over batch sizes: {where}", size=11, loc="left")
    above.legend(frameon=False)
    _differences(below, 100 * (mixed - plain) / plain)
    below.set_xticks(at, [str(size) for size in sizes])
    below.set_xlabel("batch size")
    for place in (above, below):
        place.grid(axis="y", color="#e3e6ea", linewidth=0.6)
        place.set_axisbelow(True)
        place.spines[["top", "right"]].set_visible(False)
    return picture


def _differences(below: Axes, percent: np.ndarray) -> None:
    """A bar per batch size that says how much more or less mixed precision takes."""
    below.bar(range(len(percent)), percent, color=[RED if value > 0 else GREEN for value in percent])
    below.axhline(0, color="#20262e", linewidth=0.8)
    for place, value in enumerate(percent):
        below.annotate(
            f"{value:+.1f} %", (place, value), xytext=(0, 3 if value >= 0 else -3), textcoords="offset points",
            ha="center", va="bottom" if value >= 0 else "top", size=8.5,
        )  # fmt: skip
    below.margins(y=0.25)
    below.set_ylabel("mixed precision takes, %")
