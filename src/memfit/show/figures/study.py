"""Figures of a study: memory against hyperparameters, parallel coordinates, intermediate results, memory and size.

Trials that ran out of memory, failed or were stopped are drawn too, in grey or with crosses: what vanishes from a
picture misleads. A hyperparameter that does not exist at a point (another branch was chosen) stands on a tick of its
own, 'not set'.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from memfit.records.memory_law import MemoryLaw
from memfit.records.study import Study, TrialRecord
from memfit.show.figures.reproduction import SETTINGS, require_matplotlib
from memfit.show.figures.study_curves import curves_picture
from memfit.show.figures.study_parallel import parallel_picture
from memfit.show.figures.study_size import size_picture
from memfit.show.figures.timeline import BLUE, GREY, ORANGE, RED
from memfit.show.new_file import whole_file
from memfit.show.views.study_axes import GAP_PLACE, StudyAxis, axes_of, point_of, study_title
from memfit.units import GIB, MIB, format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture

MOST_PANELS = 60
"""Of one picture; further hyperparameters are named in its title."""
_BAD_COLORS = {"out of memory": RED, "over the limit": RED, "failed": GREY, "stopped early": ORANGE}


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
        pictures = {
            "memory.png": _memory_picture(study),
            "parallel.png": parallel_picture(study, "metric"),
            "parallel_memory.png": parallel_picture(study, "memory"),
            "intermediate.png": curves_picture(study, trials),
            "size.png": size_picture(study, law),
        }
        folder.mkdir(exist_ok=True)
        return tuple(_save(picture, folder / name) for name, picture in pictures.items() if picture is not None)


def _save(picture: Picture, path: Path) -> Path:
    with whole_file(path) as stream:
        picture.savefig(stream, format="png")
    return path


# ---- memory against each hyperparameter ------------------------------------------------------------------------------


def _memory_picture(study: Study) -> Picture | None:
    trials = [trial for trial in study.trials if trial.peak.value is not None and trial.is_finished]
    points = [point_of(trial) for trial in trials]
    axes = axes_of(points, study.settings.space)
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
        places = axis.places([point.get(axis.name) for point in points])
        _scatter(panel, axis, trials, places, sizes)
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
        color, marker = (BLUE, "o") if kind == "done" else (_BAD_COLORS.get(kind, GREY), "x")
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
    return min(0.2 / max(1, (axis.num_places or 1) - 1), 0.07)


def _medians(panel: Axes, axis: StudyAxis, places: np.ndarray, sizes: np.ndarray) -> None:
    """A dark line at the median of every value that three trials have."""
    width = 1.25 * _half_width(axis)
    found, counts = np.unique(places, return_counts=True)
    for place in found[counts >= 3].tolist():
        middle = float(np.median(sizes[places == place]))
        panel.plot([place - width, place + width], [middle, middle], color="#20262e", linewidth=1.6, zorder=5)


def _name_axis(panel: Axes, axis: StudyAxis) -> None:
    ticks = axis.ticks(most=20)
    panel.set_xticks([place for place, _ in ticks], [word for _, word in ticks])
    longest = max((len(word) for _, word in ticks), default=0)
    if longest * len(ticks) > 42:
        panel.tick_params(axis="x", labelrotation=60, labelsize=7.5)
    panel.set_xlim((GAP_PLACE if axis.has_gaps else 0) - 0.1, 1.1)
    panel.set_xlabel(axis.title)
    panel.grid(color="#e9ecef", linewidth=0.6)
    panel.spines[["top", "right"]].set_visible(False)


def _legend(picture: Picture, panel: Axes) -> None:
    handles, labels = panel.get_legend_handles_labels()
    if len(labels) > 1:
        legend = picture.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
        for handle in filter(None, legend.legend_handles):
            handle.set_alpha(1)
