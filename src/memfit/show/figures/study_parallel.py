"""Parallel coordinates of a study: the best 100, 20, 5 and 1 % of its trials, coloured by metric or by peak memory.

Lines are one collection per panel, worst first, so that the best lie on top; where they are too many for that to leave
anything of the others to be seen, they are counted in every pixel (`line_density`). Lines through the same option are
spread over a small band around its tick. The axes of hyperparameters span the search space in every panel; those of
metric and memory, and the colours, span the trials of the panel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from memfit.records.study import Study, TrialRecord
from memfit.show.figures.labels import fitted, text_inches, with_rim, wrapped
from memfit.show.figures.line_density import MOST_STROKED, draw_density
from memfit.show.figures.timeline import GREY
from memfit.show.views.study_axes import (
    GAP_PLACE,
    PlacedTrials,
    StudyAxis,
    axis_over,
    distinct_words,
    placed_trials,
    study_title,
)
from memfit.show.views.study_ranking import RankedBy, RankedTrials, number_of, rank_trials, top_groups
from memfit.units import MIB

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Colormap, ListedColormap
    from matplotlib.figure import Figure as Picture

_INK = "#20262e"
_NO_NUMBER = "none"
_NAME_POINTS, _TICK_POINTS = 9.0, 7.5
_LEAST_GAP, _MOST_GAP, _MOST_WIDTH = 1.35, 1.9, 40.0
"""Inches from one axis to the next, and of a whole picture."""
_PANEL_HEIGHT = 3.35


def parallel_picture(study: Study, by: RankedBy, placed: PlacedTrials | None = None) -> Picture | None:
    """The picture, or None where fewer than two trials can be ranked; `placed` saves working out the places again."""
    from matplotlib.figure import Figure

    found = rank_trials(study, by)
    if len(found.ranked) < 2:
        return None
    placed = placed or placed_trials(study)
    groups = top_groups(found.ranked)
    width = max(11.0, axis_gap(placed.axes) * (len(placed.axes) + 2))
    picture = Figure(figsize=(width, _PANEL_HEIGHT * len(groups) + 0.6), layout="constrained", dpi=100)
    what = "metric" if by == "metric" else "peak memory, least first"
    picture.suptitle(f"{study_title(study)}: trials ranked and coloured by {what}", size=12)
    for row, (title, chosen) in enumerate(groups):
        panel = picture.add_subplot(len(groups), 1, row + 1)
        _panel(panel, placed, found, chosen, found.others if row == 0 else (), title)
    return picture


def _spread(axis: StudyAxis, places: np.ndarray) -> np.ndarray:
    """Places of lines in the order of their rank; on an axis of few values, spread around the tick."""
    num_places = axis.num_places
    if num_places is None:
        return places
    band = min(0.3 / max(1, num_places - 1), 0.1) * min(1.0, len(places) / 50)
    offsets = (np.arange(len(places)) / max(1, len(places) - 1) - 0.5) * band
    return np.where(places == GAP_PLACE, places + offsets / 4, places + offsets)


def axis_gap(axes: Sequence[StudyAxis]) -> float:
    """Inches between two axes: as the words of their ticks need, within what a picture can have."""
    words = [word for axis in axes for _, word in axis.ticks()]
    needed = max((text_inches(word, _TICK_POINTS) for word in words), default=0.0) + 0.15
    return min(max(needed, _LEAST_GAP), _MOST_GAP, _MOST_WIDTH / (len(axes) + 2))


def _panel(
    panel: Axes, placed: PlacedTrials, found: RankedTrials, chosen: Sequence[TrialRecord],
    others: Sequence[TrialRecord], title: str,
) -> None:  # fmt: skip
    ends = _ends([*chosen, *others], found)
    if others:
        what = "metric" if found.by == "metric" else "peak"
        title += f"; in grey {len(others):,} that did not come to their end, or have no {what}"
    _decorate(panel, [*placed.axes, *(axis for axis, _ in ends)], title)
    _lines(panel, _rows(placed, ends, others), None, found)
    numbers = np.array([number_of(trial, found.by) for trial in chosen], dtype=float)
    _lines(panel, _rows(placed, ends, chosen), numbers, found)


def _ends(trials: Sequence[TrialRecord], found: RankedTrials) -> list[tuple[StudyAxis, dict[int, float]]]:
    """The axes of memory and metric with the place of every trial; the one that is ranked by comes last."""
    values = {
        "peak, MiB": [None if trial.peak.value is None else trial.peak.value / MIB for trial in trials],
        "metric": [trial.metric for trial in trials],
    }
    names = list(values) if found.by == "metric" else list(values)[::-1]
    ends = []
    for name in names:
        axis = replace(axis_over(name, values[name]), gap_word=_NO_NUMBER, is_whole=False)
        places = axis.places(values[name]).tolist()
        ends.append((axis, {trial.number: place for trial, place in zip(trials, places, strict=True)}))
    return ends


def _rows(
    placed: PlacedTrials, ends: Sequence[tuple[StudyAxis, dict[int, float]]], trials: Sequence[TrialRecord]
) -> np.ndarray:
    """Places of trials on every axis, a row each."""
    own = placed.rows(trials)
    spread = [_spread(axis, own[:, column]) for column, axis in enumerate(placed.axes)]
    results = [np.array([places[trial.number] for trial in trials], dtype=float) for _, places in ends]
    return np.column_stack([*spread, *results])


def _lines(panel: Axes, rows: np.ndarray, numbers: np.ndarray | None, found: RankedTrials) -> None:
    """One line per row, the last row first; grey without numbers, otherwise coloured by them."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize

    if not len(rows):
        return
    if numbers is None:
        _strokes(panel, rows, np.zeros(len(rows)), ListedColormap([GREY]), most_opaque=0.35, zorder=0.9)
        return
    low, high = _color_ends(numbers, found)
    if high <= low:  # all alike, and so all as good as the best
        low, high = (low - 1, low) if found.best_is_high else (low, low + 1)
    colors = ScalarMappable(Normalize(low, high, clip=True), _colors(found.best_is_high))
    _strokes(panel, rows, np.asarray(colors.norm(numbers)), colors.cmap)
    if np.ptp(numbers) > 0:
        _color_bar(panel, colors, (low, high), numbers, found)


def _strokes(
    panel: Axes, rows: np.ndarray, shades: np.ndarray, colors: Colormap, most_opaque: float = 1.0, zorder: float = 1.0
) -> None:
    """The lines, worst first; very many as a picture of their density."""
    from matplotlib.collections import LineCollection

    alpha, width = line_weight(len(rows))
    across = np.broadcast_to(np.arange(rows.shape[1], dtype=float), rows.shape)
    points = np.stack([across, rows], axis=2)
    if len(rows) <= MOST_STROKED:
        segments: Any = points[::-1]
        lines = LineCollection(segments, colors=colors(shades[::-1]), alpha=min(alpha, most_opaque), linewidths=width)
        lines.set_zorder(zorder)
        panel.add_collection(lines, autolim=False)
        return
    low, high = (np.array(ends) for ends in zip(panel.get_xlim(), panel.get_ylim(), strict=True))
    shares = (points - low) / (high - low)
    pairs = np.concatenate([shares[:, :-1], shares[:, 1:]], axis=2).reshape(-1, 4)
    draw_density(
        panel, pairs, np.repeat(shades, rows.shape[1] - 1), colors, opacity=min(alpha, most_opaque),
        inches=(_inches_wide(panel), _PANEL_HEIGHT), zorder=zorder,
    )  # fmt: skip


def _inches_wide(panel: Axes) -> float:
    """Of the picture; the panel has about nine tenths of it."""
    return panel.get_figure(root=True).get_figwidth()  # pyright: ignore[reportOptionalMemberAccess]


def line_weight(count: int) -> tuple[float, float]:
    """Opacity and width that leave so many lines readable."""
    return (0.9, 1.6) if count <= 30 else (0.65, 1.1) if count <= 300 else (0.35, 0.7) if count <= 3000 else (0.16, 0.5)


def _color_ends(numbers: np.ndarray, found: RankedTrials) -> tuple[float, float]:
    """From the best to where 95 % of the trials are: one outlier would make all others one colour."""
    outer = float(np.quantile(numbers, 0.05 if found.best_is_high else 0.95))
    return (outer, float(numbers.max())) if found.best_is_high else (float(numbers.min()), outer)


def _colors(best_is_high: bool) -> ListedColormap:
    """Dark is best, whichever way; the light end of the map is left out, it is not seen on white."""
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    shades = colormaps["viridis"](np.linspace(0.0, 0.9, 256))
    return ListedColormap(shades[::-1] if best_is_high else shades)


def _color_bar(
    panel: Axes, colors: ScalarMappable, ends: tuple[float, float], numbers: np.ndarray, found: RankedTrials
) -> None:
    scale = 1.0 if found.by == "metric" else 1 / MIB
    outside = bool((numbers < ends[0]).any() or (numbers > ends[1]).any())
    extend = "neither" if not outside else "min" if found.best_is_high else "max"
    bar = panel.figure.colorbar(colors, ax=panel, pad=0.015, fraction=0.022, extend=extend)
    ticks: list[float] = np.linspace(*ends, 4).tolist()
    bar.set_ticks(ticks, labels=distinct_words([float(tick * scale) for tick in ticks]))
    bar.ax.tick_params(labelsize=7.5)
    bar.set_label("metric" if found.by == "metric" else "peak, MiB", size=8)


def _decorate(panel: Axes, axes: Sequence[StudyAxis], title: str) -> None:
    from matplotlib.collections import LineCollection

    gap = 0.88 * _inches_wide(panel) / len(axes)
    names = [wrapped(axis.title, 0.93 * gap, _NAME_POINTS) for axis in axes]
    panel.set_title(title, fontsize=10, loc="left")
    panel.set_xticks(range(len(axes)), names, size=_NAME_POINTS)
    panel.set_yticks([])
    panel.set_xlim(-0.15, len(axes) - 0.55)
    panel.set_ylim(-0.19 if any(axis.has_gaps for axis in axes) else -0.07, 1.07)
    panel.spines[["top", "right", "left", "bottom"]].set_visible(False)
    panel.tick_params(length=0)
    marks = []
    for index, axis in enumerate(axes):
        ticks = axis.ticks()
        marks += [[(index, -0.19 if axis.has_gaps else -0.05), (index, 1.05)]]
        marks += [[(index - 0.012, place), (index + 0.012, place)] for place, _ in ticks]
        for place, word in ticks:
            if word:
                shown = fitted(word, 0.93 * gap, _TICK_POINTS)
                text = panel.text(index + 0.03, place, shown, fontsize=_TICK_POINTS, va="center", zorder=4)
                with_rim(text).set_in_layout(False)
    panel.add_collection(LineCollection(marks, colors=_INK, linewidths=0.9, zorder=3), autolim=False)
