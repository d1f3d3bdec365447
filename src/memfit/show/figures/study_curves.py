"""Intermediate results of a study: of all trials over each other, and of chosen ones by themselves.

The upper panel has every trial that reported something, coloured by how good it became, with the median over all. The
lower one has those that were asked for, or the best ones, each named at its end. Few wild values must not flatten the
rest: the scale is chosen for the middle 98 % of the values, and what lies outside is counted in the title.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import TYPE_CHECKING

import numpy as np

from memfit.errors import UsageError
from memfit.records.study import Study, TrialRecord
from memfit.show.figures.labels import plain_ticks
from memfit.show.figures.line_density import MOST_STROKED, draw_density
from memfit.show.figures.study_parallel import line_weight
from memfit.show.figures.timeline import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, SKY
from memfit.show.views.study_axes import study_title
from memfit.show.views.study_ranking import rank_trials

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure as Picture

MOST_CHOSEN = 12
NUM_BEST = 6
MOST_POINTS = 400
"""Of one curve; a longer one keeps the lowest and the highest value of every stretch."""
_COLORS = (BLUE, ORANGE, GREEN, RED, PURPLE, SKY)
_LINES = ("-", "--", ":")
_INK = "#20262e"

Curve = tuple[TrialRecord, np.ndarray]
"""A trial, and its curve as rows of (sequence, value)."""


def curves_picture(study: Study, numbers: Sequence[int] = ()) -> Picture | None:
    """The picture, or None where no trial reported an intermediate result."""
    from matplotlib.figure import Figure

    curves = [(trial, curve_of(trial)) for trial in study.trials]
    curves = [(trial, curve) for trial, curve in curves if len(curve)]
    if not curves:
        _refuse_unknown(numbers, [])
        return None
    chosen = _chosen(study, curves, numbers)
    picture = Figure(figsize=(11, 8.6), layout="constrained", dpi=100)
    picture.suptitle(f"{study_title(study)}: intermediate results", size=12)
    upper, lower = picture.add_subplot(2, 1, 1), picture.add_subplot(2, 1, 2)
    _all(upper, study, curves)
    _named(lower, chosen, "chosen trials" if numbers else "the best trials")
    lower.set_xlabel("report")
    return picture


def curve_of(trial: TrialRecord) -> np.ndarray:
    """The intermediate results that are numbers, as rows of (sequence, value); of a long curve its extremes."""
    rows = [(each.sequence, each.value) for each in trial.intermediates if each.value is not None]
    curve = np.array(rows, dtype=float).reshape(len(rows), 2)
    if len(curve) <= MOST_POINTS:
        return curve
    parts = np.array_split(np.arange(len(curve)), MOST_POINTS // 2)
    ends = [(part[curve[part, 1].argmin()], part[curve[part, 1].argmax()]) for part in parts]
    return curve[sorted({0, len(curve) - 1, *(int(index) for pair in ends for index in pair)})]


def _chosen(study: Study, curves: Sequence[Curve], numbers: Sequence[int]) -> list[Curve]:
    by_number = {trial.number: (trial, curve) for trial, curve in curves}
    _refuse_unknown(numbers, by_number)
    if numbers:
        return [by_number[number] for number in dict.fromkeys(numbers)]
    ranked = rank_trials(study, "metric").ranked or [trial for trial, _ in curves]
    return [by_number[trial.number] for trial in ranked if trial.number in by_number][:NUM_BEST] or list(
        curves[:NUM_BEST]
    )


def _refuse_unknown(numbers: Sequence[int], known: Container[int]) -> None:
    missing = [number for number in numbers if number not in known]
    if missing:
        found = ", ".join(str(number) for number in missing)
        raise UsageError("a trial that was asked for has no intermediate results", found=found)
    if len(set(numbers)) > MOST_CHOSEN:
        raise UsageError(f"at most {MOST_CHOSEN} trials can be drawn by themselves", found=str(len(set(numbers))))


def _all(panel: Axes, study: Study, curves: Sequence[Curve]) -> None:
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    _median(panel, curves)
    outside = _fit_scale(panel, [curve for _, curve in curves])
    ranked = [trial.number for trial in rank_trials(study, "metric").ranked]
    rank_of = {number: 0.9 * rank / max(1, len(ranked) - 1) for rank, number in enumerate(ranked)}
    without = [curve for trial, curve in curves if trial.number not in rank_of]
    worst_first = sorted((-rank_of[t.number], k) for k, (t, _) in enumerate(curves) if t.number in rank_of)
    alpha, width = line_weight(len(curves))
    draw = _counted if len(curves) > MOST_STROKED else _stroked
    draw(panel, without, np.zeros(len(without)), ListedColormap([GREY]), alpha, width)
    shades = np.array([-shade for shade, _ in worst_first])
    draw(panel, [curves[k][1] for _, k in worst_first], shades, colormaps["viridis"], alpha, width)
    title = f"all {len(curves):,} trials that reported: dark became best, grey has no metric"
    panel.set_title(title + outside, fontsize=10, loc="left")
    panel.legend(frameon=False, fontsize=8.5)
    panel.set_ylabel("intermediate result")


def _stroked(
    panel: Axes, curves: Sequence[np.ndarray], shades: np.ndarray, colors: Colormap, alpha: float, width: float
) -> None:
    """One line per curve; of a single report, a point."""
    from matplotlib.collections import LineCollection

    panel.add_collection(LineCollection(list(curves), colors=colors(shades), alpha=alpha, linewidths=width))
    single = np.array([len(curve) == 1 for curve in curves], dtype=bool)
    if single.any():
        points = np.array([curve[0] for curve in curves if len(curve) == 1])
        panel.scatter(points[:, 0], points[:, 1], s=9, color=colors(shades[single]), alpha=alpha)


def _counted(
    panel: Axes, curves: Sequence[np.ndarray], shades: np.ndarray, colors: Colormap, alpha: float, width: float
) -> None:
    """Very many curves as a picture of their density; of a single report, a dash."""
    if not curves:
        return
    scale = np.log if panel.get_yscale() == "log" else np.asarray
    dashed = [curve if len(curve) > 1 else curve[[0, 0]] + [[-0.15, 0], [0.15, 0]] for curve in curves]
    points = np.concatenate(dashed)
    with np.errstate(invalid="ignore", divide="ignore"):  # what has no logarithm lies outside
        shares = np.column_stack([_share(points[:, 0], panel.get_xlim()), scale(points[:, 1])])
        shares[:, 1] = _share(shares[:, 1], (float(scale(panel.get_ylim()[0])), float(scale(panel.get_ylim()[1]))))
    owner = np.repeat(np.arange(len(dashed)), [len(curve) for curve in dashed])
    is_pair = owner[1:] == owner[:-1]
    pairs = np.column_stack([shares[:-1], shares[1:]])[is_pair]
    draw_density(panel, pairs, shades[owner[1:][is_pair]], colors, inches=(10.2, 3.6), opacity=alpha)


def _share(values: np.ndarray, ends: tuple[float, float]) -> np.ndarray:
    return (values - ends[0]) / (ends[1] - ends[0])


def _median(panel: Axes, curves: Sequence[Curve]) -> None:
    """The median over the trials that were still reporting, at every report that at least three made."""
    joined = np.concatenate([curve for _, curve in curves])
    joined = joined[np.lexsort((joined[:, 1], joined[:, 0]))]
    places, starts, counts = np.unique(joined[:, 0], return_index=True, return_counts=True)
    low, high = joined[starts + (counts - 1) // 2, 1], joined[starts + counts // 2, 1]
    enough = counts >= 3
    if enough.any():
        middle = (low + high) / 2
        panel.plot(places[enough], middle[enough], color=_INK, linewidth=2.2, label="median", zorder=5)


def _named(panel: Axes, chosen: Sequence[Curve], what: str) -> None:
    for index, (trial, curve) in enumerate(chosen):
        color, line = _COLORS[index % len(_COLORS)], _LINES[index // len(_COLORS)]
        metric = "no metric" if trial.metric is None else f"metric {trial.metric:.4g}"
        ending = "" if trial.kind == "done" else f", {trial.kind}"
        panel.plot(
            curve[:, 0], curve[:, 1], color=color, linestyle=line, linewidth=1.6, marker="o",
            markersize=3.5 if len(curve) <= 50 else 0, label=f"trial {trial.number}: {metric}{ending}",
        )  # fmt: skip
    outside = _fit_scale(panel, [curve for _, curve in chosen])
    panel.set_title(f"{what}{outside}", fontsize=10, loc="left")
    panel.legend(frameon=False, fontsize=8.5, ncols=2)
    panel.set_ylabel("intermediate result")


def _fit_scale(panel: Axes, curves: Sequence[np.ndarray]) -> str:
    """Choose scale and ends for the middle 98 % of the values; says how many lie outside."""
    from matplotlib.ticker import MaxNLocator

    values = np.concatenate([curve[:, 1] for curve in curves])
    low, high = (float(q) for q in np.quantile(values, [0.01, 0.99]))
    is_wild = float(np.ptp(values)) > 4 * (high - low) > 0
    if not is_wild:
        low, high = float(values.min()), float(values.max())
    if low > 0 and high / low > 100:
        panel.set_yscale("log")
        factor = (high**0.05) / (low**0.05)
        panel.set_ylim(low / factor, high * factor)
        plain_ticks(panel.yaxis, panel.get_ylim())
    else:
        margin = 0.05 * (high - low) or max(abs(high) * 0.05, 0.5)
        panel.set_ylim(low - margin, high + margin)
    steps = np.concatenate([curve[:, 0] for curve in curves])
    panel.set_xlim(float(steps.min()) - 0.5, float(steps.max()) + 0.5)
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    panel.grid(color="#e9ecef", linewidth=0.6)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
    bottom, top = panel.get_ylim()
    outside = int(((values < bottom) | (values > top)).sum())
    return f"; {outside:,} of {len(values):,} values lie outside of the picture" if outside else ""
