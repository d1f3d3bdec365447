"""Figures of a grid: peaks stacked by category, time against memory with the Pareto front, timelines, summary bars.

Colours are from the Okabe-Ito set. What was predicted is drawn filled or as a line, what was measured beside or over it
as a dark mark or a dashed line, so that the two are distinct without colour as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from memfit.records.grid import CellFigures, Grid, GridCell
from memfit.show.figures.reproduction import SETTINGS, save_both
from memfit.show.figures.timeline import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, SKY, require_matplotlib
from memfit.units import MIB

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture

CATEGORY_COLORS = {
    "parameter": BLUE, "gradient": ORANGE, "optimizer state": GREEN, "activation": RED, "temporary": PURPLE,
    "input": SKY, "buffer": GREY, "workspace": "#8a929c",
}  # fmt: skip
TECHNIQUE_COLORS = (BLUE, ORANGE, GREEN, RED, PURPLE, SKY, GREY)
MARKERS = "os^Dv<>pP*X"
_INK = "#20262e"
MOST_ROWS = 24
MOST_TIMELINES = 6


def draw_grid_figures(grid: Grid, folder: str | Path) -> tuple[Path, ...]:
    """Write every figure that the grid has data for, as PNG and SVG."""
    matplotlib = require_matplotlib()
    drawn = {
        "peaks": _peaks(grid),
        "time_memory": _time_memory(grid),
        "timelines": _timelines(grid),
        "summary": _summary(grid),
    }
    paths: list[Path] = []
    with matplotlib.rc_context(SETTINGS):
        for name, draw in drawn.items():
            if draw is not None:
                paths += save_both(draw(), Path(folder), name)
    return tuple(paths)


def _new(
    width: float, height: float, rows: int = 1, columns: int = 1, *, sharex: bool = False, sharey: bool = False
) -> tuple[Picture, list[list[Axes]]]:
    from matplotlib.figure import Figure

    picture = Figure(figsize=(width, height), dpi=110, facecolor="white", layout="constrained")
    return picture, picture.subplots(rows, columns, squeeze=False, sharex=sharex, sharey=sharey).tolist()


def _clean(place: Axes, axis: Literal["x", "y", "both"]) -> None:
    place.grid(axis=axis, color="#e3e6ea", linewidth=0.6)
    place.set_axisbelow(True)
    place.spines[["top", "right"]].set_visible(False)


def _title(grid: Grid, what: str) -> str:
    settings = " ".join(f"{name}={value}" for name, value in grid.settings.items())
    return f"{what}: {grid.target} {settings}".strip() + f" on {grid.device}"


def _known(grid: Grid) -> list[GridCell]:
    return [cell for cell in grid.cells if cell.figures is not None]


# ---- peaks by category -----------------------------------------------------------------------------------------------


def _peaks(grid: Grid) -> Callable[[], Picture] | None:
    """A panel per technique, a bar per optimizer, stacked by what is alive at the peak."""
    if not any(cell.predicted is not None and cell.predicted.at_peak for cell in grid.cells):
        return None
    return lambda: _peaks_picture(grid)


def _peaks_picture(grid: Grid) -> Picture:
    techniques = [t for t in grid.techniques if any(c.technique == t and c.predicted for c in grid.cells)]
    columns = min(3, len(techniques))
    rows = -(-len(techniques) // columns)
    height = 0.26 * min(MOST_ROWS, len(grid.optimizers)) + 0.9
    picture, places = _new(4.3 * columns + 1.2, height * rows + 0.9, rows, columns, sharex=True, sharey=True)
    flat = [place for row in places for place in row]
    for place, technique in zip(flat, techniques, strict=False):
        _stacked_bars(place, grid, technique)
    for place in flat[len(techniques) :]:
        place.set_visible(False)
    for place in flat[-columns:]:
        place.set_xlabel("MiB at the peak")
    handles, labels = _legend_of(flat)
    picture.legend(handles, labels, loc="outside lower center", ncols=min(8, len(labels)), frameon=False, fontsize=9)
    picture.suptitle(_title(grid, "What the peak is made of"), size=12)
    return picture


def _stacked_bars(place: Axes, grid: Grid, technique: str) -> None:
    names = grid.optimizers[:MOST_ROWS]
    for row, optimizer in enumerate(names):
        cell = grid.cell(optimizer, technique)
        if cell is None or cell.predicted is None:
            place.text(0, row, f" {'-' if cell is None else cell.state}", va="center", size=8, color="#8a929c")
            continue
        left = 0.0
        for share in sorted(cell.predicted.at_peak, key=lambda share: list(CATEGORY_COLORS).index(share.name)):
            size = share.num_bytes / MIB
            color = CATEGORY_COLORS[share.name]
            place.barh(row, size, left=left, color=color, height=0.72, label=share.name, linewidth=0)
            left += size
        if cell.measured is not None and cell.measured.tensors.value is not None:
            place.plot(cell.measured.tensors.value / MIB, row, marker="|", markersize=11, color=_INK, label="measured")
    place.set_yticks(range(len(names)), names, size=8.5)
    place.set_ylim(len(names) - 0.4, -0.6)
    place.set_title(technique, size=10, loc="left")
    _clean(place, "x")


def _legend_of(places: Sequence[Axes]) -> tuple[list[Artist], list[str]]:
    found: dict[str, Artist] = {}
    for place in places:
        for handle, label in zip(*place.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    order = [name for name in (*CATEGORY_COLORS, "measured") if name in found]
    order += [name for name in found if name not in order]
    return [found[name] for name in order], order


# ---- time against memory ---------------------------------------------------------------------------------------------


def _time_memory(grid: Grid) -> Callable[[], Picture] | None:
    points = [cell for cell in _known(grid) if _point(cell) is not None]
    return (lambda: _time_memory_picture(grid, points)) if len(points) > 1 else None


def _point(cell: GridCell) -> tuple[float, float] | None:
    figures = cell.figures
    seconds = cell.seconds_of_examples
    if figures is None or seconds is None or figures.needed_bytes is None:
        return None
    return figures.needed_bytes / MIB, seconds


def pareto(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points that no other one beats in both, from the least memory on."""
    front: list[tuple[float, float]] = []
    for memory, seconds in sorted(set(points)):
        if not front or seconds < front[-1][1]:
            front.append((memory, seconds))
    return front


def _time_memory_picture(grid: Grid, cells: list[GridCell]) -> Picture:
    picture, places = _new(8.4, 5.4)
    place = places[0][0]
    for index, technique in enumerate(grid.techniques):
        own = [point for cell in cells if cell.technique == technique and (point := _point(cell)) is not None]
        if own:
            color, marker = TECHNIQUE_COLORS[index % len(TECHNIQUE_COLORS)], MARKERS[index % len(MARKERS)]
            place.scatter(*zip(*own, strict=True), s=34, color=color, marker=marker, label=technique, zorder=3)
    front = pareto([point for cell in cells if (point := _point(cell)) is not None])
    place.plot(*zip(*front, strict=True), color=_INK, linewidth=1.0, linestyle="--", zorder=2, label="Pareto front")
    for cell in cells:
        point = _point(cell)
        if point in front:
            text = cell.optimizer if cell.technique == "plain" else f"{cell.optimizer}, {cell.technique}"
            below = front.index(point) % 2  # neighbours on the front lie close together
            place.annotate(text, point, xytext=(5, -13 if below else 5), textcoords="offset points", size=8)
    if grid.budget is not None:
        place.axvline(grid.budget.budget_bytes / MIB, color=RED, linewidth=1.0, label="budget")
    source = "measured" if all(cell.measured for cell in cells) else "predicted"
    place.set_xlabel("MiB of the whole card or process (upper bound where only a range is known)")
    place.set_ylabel(f"seconds for the examples of a plain step ({source})")
    place.set_title(_title(grid, "Time against memory"), size=11, loc="left")
    place.legend(frameon=False, fontsize=8.5)
    _clean(place, "both")
    return picture


# ---- timelines -------------------------------------------------------------------------------------------------------


def _timelines(grid: Grid) -> Callable[[], Picture] | None:
    cells = [cell for cell in _timeline_cells(grid) if any(figures.curve for figures in _figures(cell))]
    return (lambda: _timelines_picture(grid, cells)) if cells else None


def _timeline_cells(grid: Grid) -> list[GridCell]:
    """The techniques of the base row."""
    found = [grid.cell(grid.base[0], technique) for technique in grid.techniques]
    if grid.techniques == ("recorded",):
        found = list(grid.cells)
    return [cell for cell in found if cell is not None and cell.figures is not None][:MOST_TIMELINES]


def _figures(cell: GridCell) -> list[CellFigures]:
    return [figures for figures in (cell.predicted, cell.measured) if figures is not None]


def _timelines_picture(grid: Grid, cells: list[GridCell]) -> Picture:
    picture, places = _new(9.0, 1.5 * len(cells) + 0.9, len(cells), 1, sharey=True)
    for (place,), cell in zip(places, cells, strict=True):
        for figures, color, line, label in (
            (cell.predicted, BLUE, "-", "predicted, two steps"),
            (cell.measured, ORANGE, "--", "measured (torch's own record, or the process of a recorded run)"),
        ):
            if figures is not None and figures.curve:
                last = max(point.position for point in figures.curve) or 1.0
                x = [point.position / last for point in figures.curve]
                y = [point.num_bytes / MIB for point in figures.curve]
                place.plot(x, y, color=color, linestyle=line, linewidth=1.2, drawstyle="steps-post", label=label)
        place.set_title(f"{cell.optimizer}, {cell.technique}", size=9.5, loc="left")
        place.set_ylabel("MiB", size=9)
        place.set_ylim(bottom=0)
        _clean(place, "y")
    places[-1][0].set_xlabel("from the first step to the last (each curve over its own length)", size=9)
    handles, labels = _legend_of([place for (place,) in places])
    picture.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    picture.suptitle(_title(grid, "Memory over the steps"), size=12)
    return picture


# ---- summary ---------------------------------------------------------------------------------------------------------


def _summary(grid: Grid) -> Callable[[], Picture] | None:
    return (lambda: _summary_picture(grid)) if _known(grid) else None


def _summary_picture(grid: Grid) -> Picture:
    """The peak of every optimizer, a bar per technique beside each other."""
    names = grid.optimizers[:MOST_ROWS]
    picture, places = _new(max(7.0, 0.28 * len(names) * len(grid.techniques) + 2), 4.6)
    place = places[0][0]
    width = 0.84 / len(grid.techniques)
    for column, technique in enumerate(grid.techniques):
        color = TECHNIQUE_COLORS[column % len(TECHNIQUE_COLORS)]
        for row, optimizer in enumerate(names):
            cell = grid.cell(optimizer, technique)
            figures = None if cell is None else cell.predicted or cell.measured
            if figures is not None and figures.peak.value is not None:
                at = row + (column + 0.5) * width - 0.42
                place.bar(at, figures.peak.value / MIB, width * 0.94, color=color, label=technique, linewidth=0)
    place.set_xticks(range(len(names)), names, rotation=35, ha="right", size=9)
    place.set_ylabel(f"peak, MiB ({grid.level})")
    place.set_title(_title(grid, "Peak memory"), size=11, loc="left")
    handles, labels = _legend_of([place])
    place.legend(handles, labels, frameon=False, fontsize=8.5, ncols=min(6, len(labels)))
    place.set_ylim(top=place.get_ylim()[1] * 1.12)
    _clean(place, "y")
    return picture
