"""Figures of a study: memory against each hyperparameter, parallel coordinates of the best trials.

Trials that ran out of memory, failed or were stopped are drawn too, in grey: what vanishes from a picture misleads. A
parameter that does not exist at a point (another branch was chosen) stands on a tick of its own, 'not set'.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from memfit.errors import MissingExtra
from memfit.records.study import Study, TrialRecord
from memfit.show.figures.timeline import BLUE, GREY, ORANGE, RED, SKY
from memfit.show.new_file import whole_file
from memfit.show.terminal.study import best_first
from memfit.show.wording import cut
from memfit.units import GIB, MIB

NOT_SET = "not set"
TOP_SHARES = (1.0, 0.2, 0.01)
"""Parallel coordinates are drawn of the best 100 %, 20 % and 1 %."""
_MOST_TICKS = 12
_LOG_SPAN = 50
_PAPER = {"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 0.5}
_BAD_COLORS = {"out of memory": RED, "over the limit": RED, "failed": GREY, "stopped early": ORANGE}


def draw_study(study: Study, folder: str | Path) -> tuple[Path, ...]:
    """Write memory.png and parallel.png; returns those that there was something to draw for."""
    folder = Path(folder)
    drawn = [_draw_memory(study, folder / "memory.png"), _draw_parallel(study, folder / "parallel.png")]
    return tuple(path for path in drawn if path is not None)


def _figure_class() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        hint = 'pip install "memfit[plot]"'
        raise MissingExtra("a picture needs matplotlib", found="it is not installed", hint=hint) from None
    return Figure


class ParallelAxis:
    """One hyperparameter as places on a line: numbers as they are, everything else by its rank."""

    def __init__(self, name: str, values: Sequence[Any]) -> None:
        self.name = name
        known = [value for value in values if value is not None]
        self.is_number = bool(known) and all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in known)
        self.options = [] if self.is_number else sorted({str(value) for value in known})
        self.has_gaps = len(known) < len(values)
        low, high = (min(known), max(known)) if self.is_number else (0, max(0, len(self.options) - 1))
        self.is_log = self.is_number and low > 0 and high / low >= _LOG_SPAN
        self.low, self.high = self._bent(low), self._bent(high)

    def _bent(self, value: float) -> float:
        return math.log10(value) if self.is_log else float(value)

    def place(self, value: Any) -> float:
        """Between 0 and 1; what is not set stands below."""
        if value is None:
            return -0.12
        number = self._bent(value) if self.is_number else float(self.options.index(str(value)))
        return 0.5 if self.high == self.low else (number - self.low) / (self.high - self.low)

    def ticks(self) -> list[tuple[float, str]]:
        """Places with their words."""
        if self.is_number:
            values = np.linspace(self.low, self.high, 5) if self.high > self.low else [self.low]
            words = [(10**value if self.is_log else value) for value in values]
            found = [(self.place(word), f"{word:.3g}") for word in words]
        else:
            every = max(1, math.ceil(len(self.options) / _MOST_TICKS))
            found = [(self.place(option), cut(option, 18)) for option in self.options[::every]]
        return found + ([(-0.12, NOT_SET)] if self.has_gaps else [])


def axes_of(trials: Sequence[TrialRecord]) -> list[ParallelAxis]:
    """One axis per hyperparameter that occurs, in the order of the space."""
    names = dict.fromkeys(name for trial in trials for name in trial.flat_parameters)
    return [ParallelAxis(name, [trial.flat_parameters.get(name) for trial in trials]) for name in names]


# ---- memory against each hyperparameter ------------------------------------------------------------------------------


def _draw_memory(study: Study, path: Path) -> Path | None:
    trials = [trial for trial in study.trials if trial.peak.value is not None and trial.is_finished]
    axes = axes_of(trials)
    if not axes or not trials:
        return None
    picture, panels = _panels(len(axes), study.settings.name or study.study_id)
    unit_bytes, unit = (GIB, "GiB") if max(t.peak.value or 0 for t in trials) >= GIB else (MIB, "MiB")
    for axis, panel in zip(axes, panels, strict=False):
        _scatter(panel, axis, trials, unit_bytes)
        panel.set_ylabel(f"peak, {unit}")
    limit_bytes = study.settings.memory.limit_bytes
    for panel in panels[: len(axes)]:
        if limit_bytes is not None:
            panel.axhline(limit_bytes / unit_bytes, color=RED, linewidth=1, linestyle="--")
    return _save(picture, path)


def _panels(count: int, title: str) -> tuple[Any, list[Any]]:
    num_columns = min(3, count)
    num_rows = math.ceil(count / num_columns)
    picture = _figure_class()(figsize=(4.2 * num_columns, 3.2 * num_rows + 0.4), layout="constrained", dpi=100)
    panels = [picture.add_subplot(num_rows, num_columns, index + 1) for index in range(count)]
    picture.suptitle(title)
    return picture, panels


def _scatter(panel: Any, axis: ParallelAxis, trials: Sequence[TrialRecord], unit_bytes: int) -> None:
    for kind in dict.fromkeys(trial.kind for trial in trials):
        chosen = [trial for trial in trials if trial.kind == kind]
        places = [axis.place(trial.flat_parameters.get(axis.name)) for trial in chosen]
        sizes = [(trial.peak.value or 0) / unit_bytes for trial in chosen]
        color, marker = (BLUE, "o") if kind == "done" else (_BAD_COLORS.get(kind, GREY), "x")
        panel.scatter(places, sizes, s=18, color=color, marker=marker, alpha=0.75, label=kind)
    ticks = axis.ticks()
    panel.set_xticks([place for place, _ in ticks], [word for _, word in ticks])
    if not axis.is_number:
        panel.tick_params(axis="x", labelrotation=60, labelsize=7)
    panel.set_xlabel(axis.name + (" (log)" if axis.is_log else ""))
    if len({trial.kind for trial in trials}) > 1:
        panel.legend(fontsize=7)


# ---- parallel coordinates --------------------------------------------------------------------------------------------


def top_share(trials: Sequence[TrialRecord], share: float) -> list[TrialRecord]:
    """The best part of trials that stand best first: at least one, rounded up."""
    return list(trials[: max(1, math.ceil(len(trials) * share))])


def _draw_parallel(study: Study, path: Path) -> Path | None:
    ranked = best_first(study.trials, study.settings)
    others = [trial for trial in study.trials if trial.is_finished and trial not in ranked and trial.was_run]
    if len(ranked) < 2:
        return None
    axes = axes_of([*ranked, *others])
    ends = [
        ParallelAxis("peak, MiB", [(trial.peak.value or 0) / MIB for trial in ranked]),
        ParallelAxis("metric", [trial.metric for trial in ranked]),
    ]
    picture = _figure_class()(figsize=(12, 10.5), layout="constrained", dpi=100)
    for row, share in enumerate(TOP_SHARES):
        chosen = top_share(ranked, share)
        panel = picture.add_subplot(len(TOP_SHARES), 1, row + 1)
        if share == 1.0:
            _lines(panel, axes, [None, None], others, GREY)
        _lines(panel, axes, ends, chosen, BLUE if share < 1 else SKY)
        _decorate(panel, [*axes, *ends], f"best {share:.0%}: {len(chosen)} of {len(ranked)} trials")
    return _save(picture, path)


def _lines(
    panel: Any, axes: list[ParallelAxis], ends: Sequence[ParallelAxis | None], trials: Sequence[TrialRecord], color: str
) -> None:
    for trial in trials:
        values = trial.flat_parameters
        places = [axis.place(values.get(axis.name)) for axis in axes]
        measured_values = ((trial.peak.value or 0) / MIB, trial.metric)
        for end, value in zip(ends, measured_values, strict=True):
            if end is not None:
                places.append(end.place(value))
        panel.plot(range(len(places)), places, color=color, alpha=0.6 if color != GREY else 0.3, linewidth=1)


def _decorate(panel: Any, axes: Sequence[ParallelAxis], title: str) -> None:
    panel.set_title(title, fontsize=10, loc="left")
    panel.set_xticks(range(len(axes)), [axis.name + (" (log)" if axis.is_log else "") for axis in axes])
    panel.set_yticks([])
    panel.set_xlim(-0.3, len(axes) - 0.7)
    panel.set_ylim(-0.2 if any(axis.has_gaps for axis in axes) else -0.06, 1.06)
    for index, axis in enumerate(axes):
        panel.axvline(index, color="#8a929c", linewidth=0.8)
        for place, word in axis.ticks():
            panel.text(index + 0.02, place, word, fontsize=7, color="#20262e", va="center", bbox=_PAPER)


def _save(picture: Any, path: Path) -> Path:
    with whole_file(path) as stream:
        picture.savefig(stream, format="png")
    return path
