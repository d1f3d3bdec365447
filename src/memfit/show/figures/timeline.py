"""Figure of the timeline of a run (PNG or SVG).

Colours are from the Okabe-Ito set, which stays distinct for colour-blind readers; every role also differs in line
style or shape.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Literal

import numpy as np

from memfit.errors import MissingExtra
from memfit.show.new_file import whole_file
from memfit.show.views.curves import Curve
from memfit.show.views.run import RunView, highest_drawn_bytes
from memfit.show.wording import bounds_text, cut, figure_text, steps_text
from memfit.units import GIB, KIB, MIB, format_bytes, format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture

BLUE, SKY, ORANGE, GREEN, RED, PURPLE, GREY = (
    "#0072B2", "#56B4E9", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#5b6570",
)  # fmt: skip
PHASE_COLORS = {"data": "#9aa3ad", "forward": SKY, "backward": ORANGE, "update": GREEN}
PROCESS_COLORS = (GREEN, PURPLE, ORANGE, SKY, RED, GREY)
SPAN_COLORS = (PURPLE, GREY, RED)
MAX_BANDED_STEPS = 60
MAX_PROCESS_LINES = 6
_INK = "#20262e"


def draw_timeline(
    view: RunView, path: str | Path, *, kind: Literal["png", "svg"] = "png", width_px: int = 1200, height_px: int = 600
) -> Path:
    """Write the picture as PNG or SVG."""
    matplotlib = require_matplotlib()
    settings = {
        "font.size": 11, "font.family": "DejaVu Sans", "axes.edgecolor": "#8a929c", "text.color": _INK,
        "axes.labelcolor": _INK, "xtick.color": _INK, "ytick.color": _INK, "svg.hashsalt": "memfit",
        "svg.fonttype": "path",
    }  # fmt: skip
    with matplotlib.rc_context(settings):
        picture = _draw(view, width_px, height_px)
        path = Path(path)
        with whole_file(path) as stream:
            picture.savefig(stream, format=kind, metadata={"Date": None} if kind == "svg" else None)
    return path


def require_matplotlib() -> ModuleType:
    """The module, or how to get it."""
    try:
        import matplotlib
    except ImportError:
        raise MissingExtra(
            "a picture needs matplotlib", found="it is not installed", hint='pip install "memfit[plot]"'
        ) from None
    return matplotlib


def _draw(view: RunView, width_px: int, height_px: int) -> Picture:
    from matplotlib.figure import Figure

    picture = Figure(figsize=(width_px / 100, height_px / 100), dpi=100, facecolor="white", layout="constrained")
    background = [curve for curve in view.curves if curve.role in ("used", "background")]
    if background:
        upper, lower = picture.subplots(2, 1, sharex=True, height_ratios=[3.6, 1])
        _draw_background(lower, background)
        bottom = lower
    else:
        upper = bottom = picture.subplots(1, 1)
    _draw_job(upper, view)
    end_seconds = max(view.headline.duration.value or 0.0, 1e-3)
    upper.set_xlim(0, end_seconds)
    _time_axis(bottom, end_seconds)
    _title(upper, view)
    _legend(picture, upper, bottom)
    return picture


def _legend(picture: Picture, upper: Axes, lower: Axes) -> None:
    """One legend below everything, so that it never hides a curve."""
    handles, labels = upper.get_legend_handles_labels()
    if lower is not upper:
        more_handles, more_labels = lower.get_legend_handles_labels()
        handles, labels = handles + more_handles, labels + more_labels
    if handles:
        picture.legend(
            handles, labels, loc="outside lower center", ncols=min(len(labels), 5), fontsize=9.5, frameon=False,
            handlelength=1.6, columnspacing=1.6,
        )  # fmt: skip


def _title(axes: Axes, view: RunView) -> None:
    headline = view.headline
    peak = figure_text(headline.peak)
    bounds = bounds_text(headline.peak)
    second = f"peak {peak}" + (f" ({bounds})" if bounds else "")
    second += f"  ·  {headline.outcome.kind} after {format_seconds(headline.duration.value or 0)}"
    if view.steps.num_steps:
        second += f"  ·  {view.steps.words} steps" if view.steps.num_ranks < 2 else f"  ·  steps: {view.steps.words}"
    axes.set_title(_plain(cut(headline.title, 96)), loc="left", fontsize=14, fontweight="bold", pad=24)
    axes.text(0, 1.025, _plain(second), transform=axes.transAxes, fontsize=11, color=GREY)


def _plain(text: str) -> str:
    """Keep matplotlib from reading a user's dollar signs as formulas, and from drawing what is no letter."""
    return "".join(letter if letter.isprintable() else " " for letter in text).replace("$", r"\$")


# ---- the job ---------------------------------------------------------------------------------------------------------


def _draw_job(axes: Axes, view: RunView) -> None:
    top = highest_drawn_bytes(view) * 1.16
    banded = _draw_bands(axes, view)
    for curve in view.curves:
        if curve.role == "tree":
            _draw_tree(axes, curve, filled=not banded)
        elif curve.role == "upper bound":
            level = curve.levels[-1]
            axes.plot(
                level.time_seconds, level.high, color=GREY, linewidth=1, linestyle=(0, (1, 1.5)), label=curve.name
            )
            top = max(top, float(level.high.max()) * 1.06)
        elif curve.role == "imports":
            level = curve.levels[-1]
            axes.fill_between(
                level.time_seconds, 0, level.high, color="#c3cad1", alpha=0.9, linewidth=0, label=curve.name, zorder=2
            )
        elif curve.role == "predicted":
            level = curve.levels[-1]
            axes.plot(level.time_seconds, level.high, color=GREEN, linewidth=1.2, linestyle="--", label=curve.name)
    _draw_spans(axes, view)
    _draw_processes(axes, view)
    _draw_steps(axes, view)
    top = _draw_limit(axes, view, top)
    axes.set_ylim(0, top)
    _bytes_axis(axes, top)
    _draw_peak(axes, view, top)
    axes.grid(axis="y", color="#e3e7eb", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_limit(axes: Axes, view: RunView, top: float) -> float:
    """A line where it is near; words where drawing it would flatten the curve. Returns the room that is needed."""
    limit_bytes = view.headline.limit_bytes
    if limit_bytes is None:
        return top
    words = f"limit {format_bytes(limit_bytes)}"
    if limit_bytes > 1.7 * top:
        above = f"{words}, above this picture"
        axes.text(0.995, 1.025, above, transform=axes.transAxes, ha="right", fontsize=11, color=RED)
        return top
    axes.axhline(limit_bytes, color=RED, linewidth=1.4, linestyle="--", label=words)
    return max(top, limit_bytes * 1.06)


def _draw_tree(axes: Axes, curve: Curve, *, filled: bool) -> None:
    level = curve.levels[-1]
    if filled:
        axes.fill_between(level.time_seconds, 0, level.high, color=BLUE, alpha=0.10, linewidth=0)
    label = f"{curve.name}, sampled"
    if level.samples_per_row > 1:
        span = f"{curve.name}, lowest to highest of every {level.samples_per_row} samples"
        axes.fill_between(level.time_seconds, level.low, level.high, color=BLUE, alpha=0.35, linewidth=0, label=span)
        label = "_"
    axes.plot(level.time_seconds, level.high, color=BLUE, linewidth=1.4, label=label, zorder=3)


def _draw_bands(axes: Axes, view: RunView) -> bool:
    """Shade the phases of steps that tell them, while there are few enough to tell apart; says whether it did."""
    steps = view.steps
    if not 0 < steps.num_steps <= MAX_BANDED_STEPS:
        return False
    columns = [
        steps.begin_seconds,
        steps.forward_seconds,
        steps.backward_seconds,
        steps.update_seconds,
        steps.end_seconds,
    ]
    edges = np.column_stack(columns)
    named: set[str] = set()
    for row in edges[~(np.isnan(edges[:, 1:4]).all(axis=1) & np.isnan(steps.data_peak_bytes))]:
        for number, phase in enumerate(PHASE_COLORS):
            later = row[number + 1 :][~np.isnan(row[number + 1 :])]
            if np.isnan(row[number]) or not len(later):
                continue
            label = None if phase in named else phase
            named.add(phase)
            axes.axvspan(row[number], later[0], color=PHASE_COLORS[phase], alpha=0.18, linewidth=0, label=label)
    return True


def _draw_spans(axes: Axes, view: RunView) -> None:
    """A strip along the top where the job was in no step: evaluation, and phases the program named."""
    names = list(dict.fromkeys(span.name for span in view.spans))
    for span in view.spans:
        number = names.index(span.name)
        label = None if any(s.name == span.name for s in view.spans[: view.spans.index(span)]) else _plain(span.name)
        axes.axvspan(
            span.begin_seconds,
            span.end_seconds,
            ymin=0.965,
            color=SPAN_COLORS[number % len(SPAN_COLORS)],
            alpha=0.55,
            linewidth=0,
            label=label,
        )


def _draw_processes(axes: Axes, view: RunView) -> None:
    curves = sorted((c for c in view.curves if c.role == "process"), key=lambda c: -float(c.levels[-1].high.max()))
    for number, curve in enumerate(curves[:MAX_PROCESS_LINES]):
        level = curve.levels[-1]
        color = PROCESS_COLORS[number % len(PROCESS_COLORS)]
        axes.plot(
            level.time_seconds, level.high, color=color, linewidth=0.9, alpha=0.85, label=_plain(cut(curve.name, 34))
        )


def _draw_steps(axes: Axes, view: RunView) -> None:
    """The exact peak of every step, as a dot at the phase that reached it."""
    steps = view.steps
    known = ~np.isnan(steps.peak_bytes)
    if not known.any() or len(view.processes) > 1:
        return
    at = np.where(np.isnan(steps.backward_seconds), steps.end_seconds, steps.backward_seconds)
    size = 16 if len(steps.step) <= 150 else 4
    each, several = ("step", "steps") if steps.largest_group == 1 else ("group of steps", "groups of steps")
    label = (
        f"exact peak of each {each}"
        if steps.steps_per_row == 1
        else f"highest exact peak of every {steps.steps_per_row} {several}"
    )
    axes.scatter(
        at[known], steps.peak_bytes[known], s=size, color=RED, marker="o", linewidths=0, zorder=4,
        label=label,
    )  # fmt: skip


def _draw_peak(axes: Axes, view: RunView, top: float) -> None:
    headline = view.headline
    if headline.peak.value is None or headline.peak_seconds is None:
        return
    where = [steps_text(headline.peak_first_step, headline.peak_step)] if headline.peak_step is not None else []
    where += [headline.peak_phase] if headline.peak_phase else []
    words = f"peak {format_bytes(headline.peak.value)}" + (f", {', '.join(where)}" if where else "")
    share = headline.peak_seconds / max(headline.duration.value or 1e-9, 1e-9)
    side = "left" if share < 0.12 else ("right" if share > 0.88 else "center")
    axes.annotate(
        words, xy=(headline.peak_seconds, headline.peak.value),
        xytext=(headline.peak_seconds, headline.peak.value + 0.065 * top), ha=side, va="bottom", fontsize=10.5,
        fontweight="bold", color=_INK, zorder=6,
        bbox={"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": "#c5ccd3", "alpha": 0.95},
        arrowprops={"arrowstyle": "-|>", "color": _INK, "linewidth": 1.1, "shrinkA": 0, "shrinkB": 2},
    )  # fmt: skip


# ---- the machine and the axes ----------------------------------------------------------------------------------------


def _draw_background(axes: Axes, curves: list[Curve]) -> None:
    top = 1.0
    for curve in curves:
        level = curve.levels[-1]
        color, style = (GREY, "-") if curve.role == "background" else (PURPLE, "--")
        label = "background, without this job" if curve.role == "background" else "system used"
        axes.plot(level.time_seconds, level.high, color=color, linewidth=1.1, linestyle=style, label=label)
        top = max(top, float(level.high.max()))
    axes.set_ylim(0, top * 1.35)
    _bytes_axis(axes, top * 1.35, num_ticks=3)
    axes.set_ylabel("machine", fontsize=10)
    axes.grid(axis="y", color="#e3e7eb", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)


def binary_ticks(top_bytes: float, num_ticks: int = 6) -> list[int]:
    """Round tick values in powers of two times 1 (of KiB, MiB or GiB), at most `num_ticks` above zero."""
    step = 1
    while step * num_ticks < top_bytes:
        step *= 2
    return list(range(0, int(top_bytes) + 1, step))


def tick_text(num_bytes: float) -> str:
    """A tick label without needless digits: '128 MiB', '1.5 GiB'."""
    for unit, factor in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if num_bytes >= factor:
            return f"{num_bytes / factor:g} {unit}"
    return f"{num_bytes:g}" + (" B" if num_bytes else "")


def _bytes_axis(axes: Axes, top_bytes: float, num_ticks: int = 6) -> None:
    ticks = binary_ticks(top_bytes, num_ticks)
    axes.set_yticks(ticks, [tick_text(tick) for tick in ticks])


def _time_axis(axes: Axes, end_seconds: float) -> None:
    unit, factor = ("s", 1.0) if end_seconds < 180 else (("min", 60.0) if end_seconds < 10_800 else ("h", 3600.0))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / factor:g}")
    if factor > 1:
        wanted = end_seconds / factor / 10
        nice = next((n for n in (0.5, 1, 2, 5, 10, 15, 30, 60) if n >= wanted), 120)
        axes.set_xticks(np.arange(0, end_seconds + 1e-9, nice * factor))
    axes.set_xlabel(f"time since the run began ({unit})", fontsize=10)
