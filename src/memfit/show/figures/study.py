"""Figures of a study: memory against hyperparameters, parallel coordinates, intermediate results, memory and size.

Trials that ran out of memory, failed or were stopped are drawn too, in grey or with crosses: what vanishes from a
picture misleads. A hyperparameter that does not exist at a point (another branch was chosen) stands on a tick of its
own, 'not set'.

Memory of trials against the number of parameters of their networks, with the law of the study drawn in.

The law has a second term, activations times batch: its line is drawn at the smallest, the median and the largest value
of that term, and trials are coloured by it, so that a point can be held against the line it belongs to.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from memfit.records.study import Study, TrialRecord
from memfit.records.study_findings import MemoryLaw
from memfit.show.figures.labels import number_words, plain_ticks, text_inches, wrapped
from memfit.show.figures.reproduction import SETTINGS, require_matplotlib
from memfit.show.figures.study_curves import curves_picture
from memfit.show.figures.study_parallel import parallel_picture
from memfit.show.figures.timeline import BLUE, GREY, ORANGE, RED
from memfit.show.new_file import whole_file
from memfit.show.views.study_axes import GAP_PLACE, PlacedTrials, StudyAxis, placed_trials, study_title
from memfit.units import GIB, MIB, format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture

_PANEL_INCHES = 3.7
MOST_PANELS = 60
"""Of one picture; further hyperparameters are named in its title."""
_BAD_MARKS = {
    "out of memory": (RED, "x"), "over the limit": (RED, "^"), "failed": (GREY, "x"), "stopped early": (ORANGE, "x"),
    "out of time": (GREY, "+"), "rejected by prediction": (RED, "1"), "cancelled": (GREY, "1"),
}  # fmt: skip
"""Colour and mark of trials that did not come to their end, no two alike."""


def draw_study(
    study: Study, folder: str | Path, *, law: MemoryLaw | str = "", trials: Sequence[int] = ()
) -> tuple[Path, ...]:
    """Write the figures that there is something to draw for.

    `law` is drawn into memory against parameters, or the reason why there is none is written there; `trials` are the
    numbers of those whose intermediate results are drawn by themselves (the best ones).
    """
    folder = Path(folder)
    with require_matplotlib().rc_context({**SETTINGS, "text.parse_math": False}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a name in another script is drawn as boxes
        placed = placed_trials(study)
        pictures = {
            "memory.png": _memory_picture(study, placed),
            "parallel.png": parallel_picture(study, "metric", placed),
            "parallel_memory.png": parallel_picture(study, "memory", placed),
            "intermediate.png": curves_picture(study, trials),
            "size.png": size_picture(study, law),
        }
        folder.mkdir(exist_ok=True)
        return tuple(_save(picture, folder / name) for name, picture in pictures.items() if picture is not None)


def _save(picture: Picture, path: Path) -> Path:
    """Laid out and drawn once each: `savefig` draws a picture that has a layout a second time, unseen."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(picture)
    layout = picture.get_layout_engine()
    if layout is not None:
        layout.execute(picture)
        picture.set_layout_engine("none")
    with whole_file(path) as stream:
        canvas.print_png(stream, pil_kwargs={"compress_level": 3})
    return path


# ---- memory against each hyperparameter ------------------------------------------------------------------------------


def _memory_picture(study: Study, placed: PlacedTrials) -> Picture | None:
    trials = [trial for trial in study.trials if trial.peak.value is not None and trial.is_finished]
    axes, rows = placed.axes, placed.rows(trials)
    if not axes or not trials:
        return None
    picture, panels = _panels(study, axes, len(trials))
    unit_bytes, unit = (GIB, "GiB") if max(t.peak.value or 0 for t in trials) >= GIB else (MIB, "MiB")
    sizes = np.array([(trial.peak.value or 0) / unit_bytes for trial in trials])
    limit_bytes = study.settings.memory.limit_bytes
    limit = None if limit_bytes is None else limit_bytes / unit_bytes
    if limit_bytes is not None and limit is not None and limit > 1.25 * sizes.max():
        picture.suptitle(f"{picture.get_suptitle()}, all far below the limit of {format_bytes(limit_bytes)}", size=12)
    for index, (axis, panel) in enumerate(zip(axes, panels, strict=False)):
        _scatter(panel, axis, trials, rows[:, index], sizes)
        panel.set_ylabel(f"peak, {unit}" if index % min(3, len(axes)) == 0 else "")
        if limit is not None and limit <= 1.25 * sizes.max():
            panel.axhline(limit, color=RED, linewidth=1, linestyle="--", label="limit")
        if index == 0:
            _legend(picture, panel)
    return picture


def _panels(study: Study, axes: Sequence[StudyAxis], num_trials: int) -> tuple[Picture, list[Axes]]:
    from matplotlib.figure import Figure

    shown = axes[:MOST_PANELS]
    num_columns = min(3, len(shown))
    num_rows = math.ceil(len(shown) / num_columns)
    size = (max(6.4, 4.4 * num_columns), 3.3 * num_rows + 0.9)
    picture = Figure(figsize=size, layout="constrained", dpi=100)
    title = f"{study_title(study)}: peak memory of {num_trials:,} trials"
    if len(axes) > len(shown):
        title += "\nnot drawn: " + ", ".join(axis.title for axis in axes[MOST_PANELS:])
    picture.suptitle(title, size=12)
    first = None
    panels = []
    for index in range(len(shown)):
        panels.append(picture.add_subplot(num_rows, num_columns, index + 1, sharey=first))
        first = panels[0]
    return picture, panels


def _scatter(
    panel: Axes, axis: StudyAxis, trials: Sequence[TrialRecord], places: np.ndarray, sizes: np.ndarray
) -> None:
    spread = places + _jitter(len(places), axis)
    kinds = np.array([trial.kind for trial in trials])
    for kind in dict.fromkeys(["done", *kinds.tolist()]):
        keep = kinds == kind
        color, marker = (BLUE, "o") if kind == "done" else _BAD_MARKS.get(kind, (GREY, "x"))
        shade = min(0.8, max(0.12, 25 / math.sqrt(max(1, keep.sum())) * 0.35))
        size = 4.5 if len(trials) < 1000 else 2.5
        panel.plot(
            spread[keep], sizes[keep], linestyle="none", marker=marker, markersize=size, color=color, alpha=shade,
            markeredgewidth=0 if marker == "o" else 0.9, label=kind if keep.any() else None,
        )  # fmt: skip
    done = kinds == "done"
    if axis.num_places is not None and done.sum() > axis.num_places:
        _medians(panel, axis, places[done], sizes[done])
    _name_axis(panel, axis)


def _jitter(count: int, axis: StudyAxis) -> np.ndarray:
    """Sideways places around the ticks of few values, the same whenever it is drawn; none on a range."""
    if axis.num_places is None:
        return np.zeros(count)
    return (np.modf(np.arange(count) * 0.618033988749895)[0] - 0.5) * 2 * _half_width(axis)


def _half_width(axis: StudyAxis) -> float:
    return min(0.2 / max(1, (axis.num_places or 1) - 1), 0.045 if axis.has_gaps else 0.07)  # apart from 'not set'


def _medians(panel: Axes, axis: StudyAxis, places: np.ndarray, sizes: np.ndarray) -> None:
    """A dark line at the median of every value that three trials have."""
    width = 1.25 * _half_width(axis)
    found, counts = np.unique(places, return_counts=True)
    for place in found[counts >= 3].tolist():
        middle = float(np.median(sizes[places == place]))
        panel.plot([place - width, place + width], [middle, middle], color="#20262e", linewidth=1.6, zorder=5)


def _name_axis(panel: Axes, axis: StudyAxis) -> None:
    ticks = [
        (place, axis.gap_word.replace(" ", "\n") if place == GAP_PLACE else word) for place, word in axis.ticks(20)
    ]
    panel.set_xticks([place for place, _ in ticks], [word for _, word in ticks])
    low = (GAP_PLACE if axis.has_gaps else 0) - 0.1
    if _overlap(ticks, _PANEL_INCHES / (1.1 - low)):
        panel.tick_params(axis="x", labelrotation=60, labelsize=7.5)
        for label in panel.get_xticklabels():  # the end of a word stands at its tick
            label.set(horizontalalignment="right", rotation_mode="anchor")
    panel.set_xlim(low, 1.1)
    panel.set_xlabel(wrapped(axis.title, _PANEL_INCHES, 10))
    panel.grid(color="#e9ecef", linewidth=0.6)
    panel.spines[["top", "right"]].set_visible(False)


def _overlap(ticks: Sequence[tuple[float, str]], inches: float) -> bool:
    """Whether words that stand at their ticks, so many inches for the way from 0 to 1, would touch each other."""
    spans = sorted(
        (place * inches, max(text_inches(line, 10) for line in word.split("\n")) / 2) for place, word in ticks
    )
    return any(left + half + 0.06 > right - other for (left, half), (right, other) in pairwise(spans))


def _legend(picture: Picture, panel: Axes) -> None:
    handles, labels = panel.get_legend_handles_labels()
    if len(labels) > 1:
        legend = picture.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
        for handle in filter(None, legend.legend_handles):
            handle.set_alpha(1)


BATCH_NAMES = ("batch_size", "batch", "batchsize")
_INK = "#20262e"


def size_picture(study: Study, law: MemoryLaw | str = "") -> Picture | None:
    """The picture, or None where fewer than two trials reported a number of parameters."""
    from matplotlib.figure import Figure

    trials = [trial for trial in study.trials if trial.kind == "done" and trial.peak.value is not None]
    sized = [trial for trial in trials if _count(trial, "num_parameters") is not None]
    counts = np.array([_count(trial, "num_parameters") for trial in sized], dtype=float)
    if len(sized) < 2 or np.ptp(counts) == 0:
        return None
    sizes = np.array([trial.peak.value for trial in sized], dtype=float)
    activations = np.array([_batch_activations(trial) for trial in sized], dtype=float)
    unit_bytes, unit = (GIB, "GiB") if sizes.max() >= GIB else (MIB, "MiB")
    picture = Figure(figsize=(9, 5.6), layout="constrained", dpi=110)
    panel = picture.add_subplot()
    is_log = counts.min() > 0 and counts.max() / counts.min() >= 50
    panel.set_xscale("log" if is_log else "linear")
    _points(panel, counts, sizes / unit_bytes, activations)
    note = _law_lines(panel, law, counts, activations, unit_bytes, is_log)
    left_out = len(trials) - len(sized)
    title = f"{study_title(study)}: memory against size of the network, {len(sized):,} trials"
    title += f" ({left_out:,} did not report their size)" if left_out else ""
    panel.set_title("\n".join(part for part in (title, note) if part), fontsize=10.5, loc="left")
    panel.set_xlabel("parameters of the network" + (" (log)" if is_log else ""))
    panel.set_ylabel(f"peak, {unit}")
    plain_ticks(panel.xaxis, (float(counts.min()), float(counts.max())))
    panel.grid(color="#e9ecef", linewidth=0.6)
    panel.spines[["top", "right"]].set_visible(False)
    return picture


def _count(trial: TrialRecord, name: str) -> float | None:
    value = trial.others.get(name)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _batch_activations(trial: TrialRecord) -> float:
    """Activations of one example times the examples of a batch; NaN where either is not known."""
    values = [trial.parameters.get(name) for name in BATCH_NAMES]
    batch = next((v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)), math.nan)
    each = _count(trial, "num_activations")
    return math.nan if each is None else each * batch


def _points(panel: Axes, counts: np.ndarray, sizes: np.ndarray, activations: np.ndarray) -> None:
    from matplotlib.ticker import FuncFormatter

    known = ~np.isnan(activations)
    alpha = 0.85 if len(counts) < 300 else 0.5 if len(counts) < 3000 else 0.25
    mark = 22 if len(counts) < 1000 else 8
    if not known.all():
        panel.scatter(counts[~known], sizes[~known], s=mark, color="#8a929c", alpha=alpha, linewidths=0)
    if known.any():
        drawn = panel.scatter(
            counts[known], sizes[known], c=activations[known], s=mark, alpha=alpha, cmap="viridis", linewidths=0
        )
        if np.ptp(activations[known]) > 0:
            bar = panel.figure.colorbar(drawn, ax=panel, pad=0.015)
            bar.set_label("activations of a batch")
            bar.formatter = FuncFormatter(number_words)
            bar.update_ticks()
            if bar.solids is not None:
                bar.solids.set_alpha(1)


def _law_lines(
    panel: Axes, law: MemoryLaw | str, counts: np.ndarray, activations: np.ndarray, unit_bytes: int, is_log: bool
) -> str:
    """Draw the law; returns it in words, or why there is none."""
    if isinstance(law, str):
        return f"no law is drawn: {law}" if law else ""
    ends = (counts.min(), counts.max())
    across = np.geomspace(*ends, 100) if is_log else np.linspace(*ends, 100)
    known = activations[~np.isnan(activations)]
    has_second = law.bytes_per_activation is not None and len(known) > 0
    terms = [("law", 0.0, "-")]
    if has_second:
        middle = float(np.median(known))
        terms = [("least activations", float(known.min()), ":"), ("median activations", middle, "-")]
        terms.append(("most activations", float(known.max()), "--"))
    for word, second, line in terms:
        values = [law.bytes_of(count, second) / unit_bytes for count in across.tolist()]
        label = word if word == "law" else f"law at {word}"
        panel.plot(across, values, color=ORANGE, linestyle=line, linewidth=1.8, label=label, zorder=5)
    panel.legend(frameon=False, fontsize=8.5)
    return "law: " + law_words(law)


def law_words(law: MemoryLaw) -> str:
    """'371.6 MiB + 15.8 bytes per parameter'."""
    parts = [format_bytes(law.base_bytes)]
    if law.bytes_per_parameter is not None:
        parts.append(f"{law.bytes_per_parameter:.3g} bytes per parameter")
    if law.bytes_per_activation is not None:
        parts.append(f"{law.bytes_per_activation:.3g} bytes per activation of a batch")
    return " + ".join(parts)
