"""Table of a study: one number of memory per trial, and the columns in which the trials differ.

A trial that ran out of memory has no number: its true size lies above what was read. It is left out and counted,
because leaving out the largest makes every effect look smaller.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np

from memfit.records.figure import Figure
from memfit.records.study import Study, TrialRecord, flatten_parameters
from memfit.records.study_findings import SYSTEM_MEMORY

COMPLETE = ("done", "stopped early")
"""Outcomes after which the number of a trial counts: memory does not change after the second step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Trials in the order they were run; unknown numbers are NaN."""

    title: str
    quantity: str
    is_system_wide: bool
    """Whether the number holds other programs too."""
    labels: tuple[int, ...]
    """The number of each trial, as in its study everywhere else."""
    memory_bytes: np.ndarray
    values: tuple[dict[str, Any], ...]
    """Hyperparameters of each trial, one value per path."""
    background_bytes: np.ndarray
    hours: np.ndarray
    """Time of day when it began, 0 to 24."""
    times_hours: np.ndarray
    """When it began, on one clock."""
    num_parameters: np.ndarray
    num_activations: np.ndarray
    """Per example."""
    unsure_bytes: np.ndarray = field(default_factory=lambda: np.empty(0))
    """For each trial how wide the range is in which its peak lies; empty where no range is known."""
    left_out: Counter[str] = field(default_factory=Counter)
    absent_elsewhere: frozenset[str] = frozenset()
    """In a table of several studies: hyperparameters that some of the studies do not have."""

    def __len__(self) -> int:
        return len(self.labels)


def table_of(study: Study, quantity: str | None = None) -> Table:
    """The table of a study; `quantity` is 'peak' or 'average', by default the one that most trials have."""
    finished = [trial for trial in study.trials if trial.is_finished]
    chosen = quantity or _best_quantity(finished)
    ordered = sorted(finished, key=_order)
    rows = [trial for trial in ordered if trial.kind in COMPLETE and getattr(trial, chosen).value is not None]
    left_out = Counter(trial.kind if trial.kind not in COMPLETE else "not measured" for trial in ordered)
    for trial in rows:
        left_out[trial.kind if trial.kind not in COMPLETE else "not measured"] -= 1
    figures = [getattr(trial, chosen) for trial in rows]
    clocks = [_clock(trial.started_at) for trial in rows]
    is_system_wide = any(SYSTEM_MEMORY in figure.method for figure in figures)
    return Table(
        title=study.settings.name or study.study_id,
        quantity=_wording(chosen, is_system_wide),
        is_system_wide=is_system_wide,
        labels=tuple(trial.number for trial in rows),
        memory_bytes=_numbers(figures),
        values=tuple(flatten_parameters(trial.parameters) for trial in rows),
        background_bytes=_numbers([trial.background for trial in rows]),
        hours=np.array([hour for hour, _ in clocks], dtype=float),
        times_hours=np.array([absolute for _, absolute in clocks], dtype=float),
        num_parameters=_others(rows, "num_parameters"),
        num_activations=_others(rows, "num_activations"),
        unsure_bytes=np.array([_width_bytes(figure) for figure in figures]) if chosen == "peak" else np.empty(0),
        left_out=+left_out + Counter({"running": len(study.trials) - len(finished)}),
    )


def _best_quantity(trials: Sequence[TrialRecord]) -> str:
    known = {name: sum(getattr(t, name).value is not None for t in trials) for name in ("peak", "average")}
    return "average" if known["average"] > known["peak"] else "peak"


def _wording(quantity: str, is_system_wide: bool) -> str:
    return f"average {SYSTEM_MEMORY}" if is_system_wide else f"{quantity} memory of the job"


def _order(trial: TrialRecord) -> tuple[float, int]:
    return (_clock(trial.started_at)[1], trial.number) if trial.started_at else (math.inf, trial.number)


def _clock(started_at: str) -> tuple[float, float]:
    """Hour of the day and hours on one clock; NaN when it is not known."""
    try:
        moment = datetime.fromisoformat(started_at)
    except ValueError:
        return math.nan, math.nan
    return moment.hour + moment.minute / 60 + moment.second / 3600, moment.timestamp() / 3600


def _numbers(figures: Sequence[Figure]) -> np.ndarray:
    return np.array([math.nan if figure.value is None else figure.value for figure in figures], dtype=float)


def _width_bytes(figure: Figure) -> float:
    return 0.0 if figure.low is None or figure.high is None else float(figure.high - figure.low)


def _others(trials: Sequence[TrialRecord], name: str) -> np.ndarray:
    values = [trial.others.get(name) for trial in trials]
    is_number = [isinstance(value, (int, float)) and not isinstance(value, bool) for value in values]
    return np.array([v if ok else math.nan for v, ok in zip(values, is_number, strict=True)], dtype=float)
