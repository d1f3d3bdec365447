"""Curves of reproduced results: throughput of planners against memory, and the time of a step against its memory.

Where a planner has no plan, its curve has a gap. Colours are from the Okabe-Ito set; planners of one colour differ in
line style and marker, and what was published before is drawn thin.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from memfit.records.figure import Figure as MeasuredFigure
from memfit.records.reproduction import (
    EdgeTables,
    HyperparameterTrials,
    Network,
    OffloadingExperiment,
    Panel,
    Price,
    Rerun,
)
from memfit.show.figures.timeline import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, SKY, require_matplotlib
from memfit.show.new_file import write_bytes
from memfit.show.terminal.reproduction import find_candidate
from memfit.units import GIB, MIB, format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture

STYLES: dict[str, tuple[str, str, float, str]] = {
    "combined": (BLUE, "-", 2.6, "combined: both, searched"),
    "POFO": (BLUE, ":", 1.4, "POFO: both, fluid"),
    "nested": (GREEN, "-", 2.2, "nested: best recomputing"),
    "equal segments": (GREEN, "--", 1.1, "equal segments"),
    "revolve": (GREEN, ":", 1.4, "revolve"),
    "offload": (RED, "-", 2.2, "offload: moves, searched"),
    "offload prefix": (RED, "--", 1.2, "prefix heuristic"),
    "offload fluid": (RED, ":", 1.4, "fluid heuristic"),
    "AutoSwap": (ORANGE, "-", 1.1, "AutoSwap"),
    "TFLMS": (ORANGE, "--", 1.1, "TFLMS"),
    "SuperNeurons": (PURPLE, "-", 1.1, "SuperNeurons"),
    "vDNN conv": (SKY, "--", 1.1, "vDNN conv"),
    "vDNN++": (SKY, "-", 1.1, "vDNN++"),
    "vDNN all": (GREY, "--", 1.1, "vDNN all"),
    "offload all": (GREY, "-", 1.1, "offload all"),
}
"""Planner: colour, line, width, words of the legend; those not named here are in the tables only."""
MARKERS = "os^Dv<>pP*Xhd8H"
_INK = "#20262e"
SETTINGS = {
    "font.size": 10, "font.family": "DejaVu Sans", "axes.edgecolor": "#8a929c", "text.color": _INK,
    "axes.labelcolor": _INK, "xtick.color": _INK, "ytick.color": _INK, "svg.hashsalt": "memfit", "svg.fonttype": "path",
}  # fmt: skip


def draw_offloading(experiment: OffloadingExperiment, folder: str | Path, name: str = "offloading") -> tuple[Path, ...]:
    """Write the curves as PNG and SVG; returns both paths."""
    matplotlib = require_matplotlib()
    with matplotlib.rc_context(SETTINGS):
        return save_both(_offloading_picture(experiment), Path(folder), name)


def save_both(picture: Picture, folder: Path, name: str) -> tuple[Path, ...]:
    """One picture as PNG and SVG, the same bytes whenever it is drawn."""
    import io

    paths = []
    for kind, metadata in (("png", None), ("svg", {"Date": None})):
        image = io.BytesIO()
        picture.savefig(image, format=kind, metadata=metadata)
        paths.append(write_bytes(folder / f"{name}.{kind}", image.getvalue()))
    return tuple(paths)


def _offloading_picture(experiment: OffloadingExperiment) -> Picture:
    from matplotlib.figure import Figure

    rows = experiment.networks
    columns = list(dict.fromkeys(panel.link.out_bytes_per_second for panel in experiment.panels))
    size = (3.9 * len(columns) + 0.6, 2.6 * len(rows) + 1.9)
    picture = Figure(figsize=size, dpi=110, facecolor="white", layout="constrained")
    panels = picture.subplots(len(rows), len(columns), squeeze=False, sharey="row", sharex="row")
    for panel in experiment.panels:
        row = [network.name for network in rows].index(panel.network)
        place = panels[row][columns.index(panel.link.out_bytes_per_second)]
        _planner_curves(place, panel, rows[row], first=place is panels[row][0], last=row == len(rows) - 1)
    for row, network in enumerate(rows):
        own = [panel for panel in experiment.panels if panel.network == network.name]
        panels[row][0].set_ylim(_lowest(own, network), 1.03 * network.num_examples / network.plain_seconds)
    _legend(picture, panels[0][0])
    picture.suptitle(f"Throughput against memory, {experiment.device} (predicted times, simulated transfers)", size=12)
    return picture


def _planner_curves(place: Axes, panel: Panel, network: Network, *, first: bool, last: bool) -> None:
    memory = [cell.budget_bytes / GIB for cell in panel.cells]
    for index, (planner, (color, line, width, words)) in enumerate(STYLES.items()):
        place.plot(
            memory, _throughputs(panel, planner, network), color=color, linestyle=line, linewidth=width, label=words,
            marker=MARKERS[index], markersize=3.2, zorder=width,
        )  # fmt: skip
    place.axhline(network.num_examples / network.plain_seconds, color=_INK, linewidth=0.7, linestyle=(0, (1, 3)))
    place.set_title(f"{network.name}, link {panel.link.out_bytes_per_second / 1e9:g} GB/s", size=10, loc="left")
    place.grid(color="#e3e6ea", linewidth=0.6)
    place.spines[["top", "right"]].set_visible(False)
    if first:
        place.set_ylabel("examples per second")
    if last:
        place.set_xlabel("memory, GiB")


def _lowest(panels: Sequence[Panel], network: Network) -> float:
    """Where the axis begins: at zero, or below the lowest curve where all of them lie high up."""
    plain = network.num_examples / network.plain_seconds
    drawn = [value for panel in panels for name in STYLES for value in _throughputs(panel, name, network)]
    lowest = min((value for value in drawn if not math.isnan(value)), default=0.0)
    return 0.0 if lowest < plain / 2 else 0.9 * lowest


def _throughputs(panel: Panel, planner: str, network: Network) -> Sequence[float]:
    found = [find_candidate(cell, planner) for cell in panel.cells]
    return [math.nan if c is None or c.seconds is None else network.num_examples / c.seconds for c in found]


def _legend(picture: Picture, place: Axes) -> None:
    handles, words = place.get_legend_handles_labels()
    picture.legend(handles, words, loc="outside lower center", ncols=5, frameon=False, fontsize=9)


# ---- edge ------------------------------------------------------------------------------------------------------------

CURVES: tuple[tuple[str, str, str, str, str], ...] = (
    ("nested", BLUE, "-", "o", "optimal nested plan"),
    ("sequential", GREEN, "--", "s", "sequential (equal segments)"),
    ("revolve", RED, ":", "^", "Revolve"),
    ("linear_revolve", ORANGE, "-.", "D", "Revolve, published formula (equal layers)"),
    ("linear_sequential", GREY, "-.", "v", "sequential, published formula (equal layers)"),
)
HIGHEST = 2.0
"""Slower than this is drawn as leaving the picture."""


def draw_hyperparameters(
    found: HyperparameterTrials, folder: str | Path, name: str = "hyperparameters"
) -> tuple[Path, ...]:
    """Published memory beside the re-run, trial by trial, one row of panels for each table; or nothing to draw."""
    reruns = [rerun for rerun in found.reruns if any(row.published.value is not None for row in rerun.rows)]
    if not reruns:
        return ()
    matplotlib = require_matplotlib()
    with matplotlib.rc_context(SETTINGS):
        return save_both(_hyperparameters_picture(reruns), Path(folder), name)


def _hyperparameters_picture(reruns: Sequence[Rerun]) -> Picture:
    from matplotlib.figure import Figure

    picture = Figure(figsize=(11.0, 3.0 * len(reruns)), dpi=110, facecolor="white", layout="constrained")
    panels = picture.subplots(len(reruns), 2, squeeze=False)
    for (left, right), rerun in zip(panels, reruns, strict=True):
        numbers = [row.row for row in rerun.rows]
        _trial_points(
            left, numbers, [row.published for row in rerun.rows], GREY, f"{rerun.data}, published: system memory"
        )
        _trial_points(right, numbers, [row.peak for row in rerun.rows], BLUE, f"{rerun.data}, here: peak of the job")
    for panel in panels[-1]:
        panel.set_xlabel("trial, by its row in the published table")
    picture.suptitle("The published trials, and the same networks here", size=12)
    return picture


def _trial_points(
    panel: Axes, numbers: Sequence[int], figures: Sequence[MeasuredFigure], color: str, title: str
) -> None:
    """One point for each trial, with the spread of its replicates as a line."""
    known = [(number, each) for number, each in zip(numbers, figures, strict=True) if each.value is not None]
    heights = [(each.value or 0.0) / MIB for _, each in known]
    panel.set_title(title, size=10, loc="left")
    panel.set_ylabel("MiB")
    panel.set_xticks(numbers)
    panel.grid(axis="y", color="#e3e6ea", linewidth=0.6)
    panel.spines[["top", "right"]].set_visible(False)
    if not heights:
        panel.text(0.5, 0.5, "not measured", transform=panel.transAxes, ha="center")
        return
    panel.plot([number for number, _ in known], heights, "o", color=color, markersize=7, zorder=2)
    for number, each in known:
        if each.low is not None and each.high is not None:
            panel.plot([number, number], [each.low / MIB, each.high / MIB], color=_INK, linewidth=1.2, zorder=3)
    room = (max(heights) - min(heights)) or 1.0
    panel.set_ylim(max(0.0, min(heights) - 0.15 * room), max(heights) + 0.15 * room)


def draw_edge(tables: EdgeTables, folder: str | Path, name: str = "edge") -> tuple[Path, ...]:
    """Write the curves as PNG and SVG; returns both paths, or none where there is nothing to draw."""
    if not tables.curves:
        return ()
    matplotlib = require_matplotlib()
    with matplotlib.rc_context(SETTINGS):
        return save_both(_edge_picture(tables), Path(folder), name)


def _edge_picture(tables: EdgeTables) -> Picture:
    from matplotlib.figure import Figure

    networks = list(dict.fromkeys(price.network for price in tables.curves))
    picture = Figure(figsize=(max(11.0, 4.2 * len(networks)), 4.4), dpi=110, facecolor="white", layout="constrained")
    panels = picture.subplots(1, len(networks), squeeze=False, sharey=True)[0]
    for panel, network in zip(panels, networks, strict=True):
        _price_curves(panel, [price for price in tables.curves if price.network == network], tables.budget_bytes)
    panels[0].set_ylabel("time of a step over the plain step")
    handles, words = panels[0].get_legend_handles_labels()
    picture.legend(handles, words, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    picture.suptitle("What it costs to train in less memory (computed from shapes)", size=12)
    return picture


def _price_curves(panel: Axes, prices: Sequence[Price], budget_bytes: int) -> None:
    memory = [price.budget_bytes / GIB for price in prices]
    for field, color, line, marker, words in CURVES:
        values = [getattr(price, field) for price in prices]
        heights = [float("nan") if value is None else value for value in values]
        panel.plot(
            memory, heights, color=color, linestyle=line, marker=marker, markersize=3.5, linewidth=1.8, label=words
        )
    if min(memory) < budget_bytes / GIB < max(memory):
        panel.axvline(budget_bytes / GIB, color="#20262e", linewidth=0.8, linestyle=(0, (1, 3)))
        panel.text(budget_bytes / GIB, HIGHEST, f" {format_bytes(budget_bytes)}", size=8, va="top")
    first = prices[0]
    title = f"{first.network}, {first.image_size}x{first.image_size}, batch {first.batch_size}"
    panel.set_title(title, size=10, loc="left")
    panel.set_xlabel("memory, GiB")
    panel.set_ylim(0.97, HIGHEST)
    panel.grid(color="#e3e6ea", linewidth=0.6)
    panel.spines[["top", "right"]].set_visible(False)
