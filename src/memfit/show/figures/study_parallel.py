"""Parallel coordinates of a study: the best 100, 20, 5 and 1 % of its trials, coloured by metric or by peak memory.

Lines are one collection per panel, worst first, so that the best lie on top; where they are too many for that to leave
anything of the others to be seen, in a mixed order. Lines through the same option are spread over a small band around
its tick. The axes of hyperparameters span the
search space in every panel; those of metric and memory, and the colours, span the trials of the panel.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from memfit.records.study import Study, TrialRecord
from memfit.show.figures.timeline import GREY
from memfit.show.views.study_axes import (
    GAP_PLACE,
    StudyAxis,
    axes_of,
    axis_over,
    distinct_words,
    point_of,
    study_title,
)
from memfit.show.views.study_ranking import RankedBy, RankedTrials, number_of, rank_trials, top_groups
from memfit.units import MIB

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import LineCollection
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure as Picture

_INK = "#20262e"
_PAPER = {"facecolor": "white", "alpha": 0.78, "edgecolor": "none", "pad": 0.6}
_NO_NUMBER = "none"
_MOST_SORTED = 2500
MOST_LINES = 20_000
"""Of one panel; above it every k-th line of the ranking is drawn, and the title says so."""


def parallel_picture(study: Study, by: RankedBy) -> Picture | None:
    """The picture, or None where fewer than two trials can be ranked."""
    from matplotlib.figure import Figure

    found = rank_trials(study, by)
    if len(found.ranked) < 2:
        return None
    every = [*found.ranked, *found.others]
    points = {trial.number: point_of(trial) for trial in every}
    axes = axes_of([points[trial.number] for trial in every], study.settings.space)
    groups = top_groups(found.ranked)
    width = min(40.0, max(11.0, 1.35 * (len(axes) + 2)))
    picture = Figure(figsize=(width, 3.35 * len(groups) + 0.6), layout="constrained", dpi=100)
    what = "metric" if by == "metric" else "peak memory, least first"
    picture.suptitle(f"{study_title(study)}: trials ranked and coloured by {what}", size=12)
    places = {axis.name: axis.places([points[trial.number].get(axis.name) for trial in every]) for axis in axes}
    row_of = {trial.number: row for row, trial in enumerate(every)}
    base = np.column_stack([places[axis.name] for axis in axes]) if axes else np.zeros((len(every), 0))
    for row, (title, chosen) in enumerate(groups):
        panel = picture.add_subplot(len(groups), 1, row + 1)
        others = found.others if row == 0 else ()
        _panel(panel, axes, base, row_of, found, chosen, others, title)
    return picture


def _spread(axis: StudyAxis, places: np.ndarray) -> np.ndarray:
    """Places of lines in the order of their rank; on an axis of few values, spread around the tick."""
    num_places = axis.num_places
    if num_places is None:
        return places
    band = min(0.3 / max(1, num_places - 1), 0.1) * min(1.0, len(places) / 50)
    offsets = (np.arange(len(places)) / max(1, len(places) - 1) - 0.5) * band
    return np.where(places == GAP_PLACE, places + offsets / 4, places + offsets)


def _panel(
    panel: Axes, axes: Sequence[StudyAxis], base: np.ndarray, row_of: dict[int, int], found: RankedTrials,
    chosen: Sequence[TrialRecord], others: Sequence[TrialRecord], title: str,
) -> None:  # fmt: skip
    ends = _ends([*chosen, *others], found)
    if others:
        what = "metric" if found.by == "metric" else "peak"
        title += f"; in grey {len(others):,} that did not come to their end, or have no {what}"
    _lines(panel, _rows(axes, base, row_of, ends, others), None, found)
    shown = _thinned(chosen)
    if len(shown) < len(chosen):
        title += f"; {len(shown):,} of them drawn"
    numbers = np.array([number_of(trial, found.by) for trial in shown], dtype=float)
    _lines(panel, _rows(axes, base, row_of, ends, shown), numbers, found)
    _decorate(panel, [*axes, *(axis for axis, _ in ends)], title)


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


def _thinned(trials: Sequence[TrialRecord]) -> Sequence[TrialRecord]:
    return trials[:: -(-len(trials) // MOST_LINES)] if len(trials) > MOST_LINES else trials


def _rows(
    axes: Sequence[StudyAxis], base: np.ndarray, row_of: dict[int, int],
    ends: Sequence[tuple[StudyAxis, dict[int, float]]], trials: Sequence[TrialRecord],
) -> np.ndarray:  # fmt: skip
    """Places of trials on every axis, a row each."""
    own = base[[row_of[trial.number] for trial in trials]]
    spread = [_spread(axis, own[:, column]) for column, axis in enumerate(axes)]
    results = [np.array([places[trial.number] for trial in trials], dtype=float) for _, places in ends]
    return np.column_stack([*spread, *results])


def _lines(panel: Axes, rows: np.ndarray, numbers: np.ndarray | None, found: RankedTrials) -> None:
    """One line per row, the last row first; grey without numbers, otherwise coloured by them."""
    from matplotlib.collections import LineCollection

    if not len(rows):
        return
    across = np.broadcast_to(np.arange(rows.shape[1], dtype=float), rows.shape)
    order = _drawing_order(len(rows))
    segments: Any = np.stack([across, rows], axis=2)[order]
    alpha, width = line_weight(len(rows))
    if numbers is None:
        panel.add_collection(LineCollection(segments, colors=GREY, alpha=min(0.35, alpha), linewidths=width))
        return
    low, high = _color_ends(numbers, found)
    lines = LineCollection(segments, cmap=_colors(found.best_is_high), alpha=alpha, linewidths=width)
    lines.set_array(numbers[order])
    lines.set_clim(low, high if high > low else low + 1)
    panel.add_collection(lines)
    if high > low:
        _color_bar(panel, lines, (low, high), numbers, found)


def _drawing_order(count: int) -> np.ndarray:
    """The last rank first; of very many, a mixed order that is the same whenever it is drawn."""
    ranks = np.arange(count)
    return ranks[::-1] if count <= _MOST_SORTED else np.argsort(np.modf(ranks * 0.618033988749895)[0], kind="stable")


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
    panel: Axes, lines: LineCollection, ends: tuple[float, float], numbers: np.ndarray, found: RankedTrials
) -> None:
    from matplotlib.cm import ScalarMappable

    solid = ScalarMappable(norm=lines.norm, cmap=lines.cmap)
    scale = 1.0 if found.by == "metric" else 1 / MIB
    outside = bool((numbers < ends[0]).any() or (numbers > ends[1]).any())
    extend = "neither" if not outside else "min" if found.best_is_high else "max"
    bar = panel.figure.colorbar(solid, ax=panel, pad=0.015, fraction=0.022, extend=extend)
    ticks: list[float] = np.linspace(*ends, 4).tolist()
    bar.set_ticks(ticks, labels=distinct_words([float(tick * scale) for tick in ticks]))
    bar.ax.tick_params(labelsize=7.5)
    bar.set_label("metric" if found.by == "metric" else "peak, MiB", size=8)


def _decorate(panel: Axes, axes: Sequence[StudyAxis], title: str) -> None:
    from matplotlib.collections import LineCollection

    panel.set_title(title, fontsize=10, loc="left")
    panel.set_xticks(range(len(axes)), [folded(axis.title) for axis in axes], size=9)
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
                text = panel.text(index + 0.03, place, word, fontsize=7.5, va="center", bbox=_PAPER, zorder=4)
                text.set_in_layout(False)
    panel.add_collection(LineCollection(marks, colors=_INK, linewidths=0.9, zorder=3), autolim=False)


def folded(name: str, letters: int = 15) -> str:
    """A long name on several lines, broken behind its separators."""
    lines = [""]
    for piece in re.split(r"(?<=[/_ .-])", name):
        if lines[-1] and len(lines[-1]) + len(piece) > letters:
            lines.append("")
        lines[-1] += piece
    return "\n".join(lines)
