"""The design of a study: its distinct points, the repeats of each, and the hyperparameters as columns over both.

Pairs of trials that differ in one hyperparameter only, or in none, and their difference in memory.

Such twins are the cleanest evidence a study holds, unless something else happened between them. Among trials that are
alike in everything but one hyperparameter, the two furthest apart in memory are taken. One pass per hyperparameter.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from memfit.explain.study.statistics.factors import Factor, encode
from memfit.explain.study.statistics.inference import Rows, rows_of_trials
from memfit.explain.study.statistics.regression import independent
from memfit.explain.study.table import Table

Encodings = list[list[Factor]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """Hyperparameters of all trials as numbers; a point is one set of hyperparameters, with all trials that had it."""

    trials: Rows
    points: Rows
    encodings: Encodings
    """Over trials: for each hyperparameter that varied its possible scales, the likelier first."""
    point_encodings: Encodings
    """Over points."""
    whole_lists: Encodings
    """Over points; a list of widths is one choice, not a number of layers and one of units."""
    constant: tuple[str, ...]
    """Hyperparameters that did not vary."""
    crowded: dict[str, int]
    """Choices of too many options to be in a model, and how many."""

    @property
    def num_trials(self) -> int:
        return len(self.trials.root_counts)

    @property
    def num_points(self) -> int:
        return len(self.points.root_counts)

    @property
    def second_scales(self) -> dict[str, Factor]:
        """Over points, by name: the other scale of a number that has two."""
        return {options[0].name: options[1] for options in self.point_encodings if len(options) > 1}


def design_of(table: Table) -> Design:
    """The design of a table of trials."""
    keys = [repr(sorted((name, repr(value)) for name, value in row.items())) for row in table.values]
    places: dict[str, int] = {}
    point_of = np.array([places.setdefault(key, len(places)) for key in keys], dtype=int)
    whole = encode(table.values, table.absent_elsewhere)
    trials = rows_of_trials(len(table))
    if len(places) == len(table):
        return Design(
            trials=trials, points=trials, encodings=whole.encodings, point_encodings=whole.encodings, whole_lists=[],
            constant=whole.constant, crowded=whole.crowded,
        )  # fmt: skip
    firsts = np.unique(point_of, return_index=True)[1]
    counts = np.bincount(point_of, minlength=len(places))
    values = tuple(table.values[place] for place in firsts)
    return Design(
        trials=trials,
        points=Rows(point_of, np.sqrt(counts)),
        encodings=whole.encodings,
        point_encodings=encode(values, table.absent_elsewhere).encodings,
        whole_lists=encode(values, table.absent_elsewhere, split_lists=False).encodings,
        constant=whole.constant,
        crowded=whole.crowded,
    )


def beside_points(design: Design, covariates: np.ndarray) -> np.ndarray:
    """An intercept and the covariates over points, without what is the same at all of them: a step between two runs
    through all points, for example."""
    return independent(np.hstack([np.ones((design.num_points, 1)), design.points.means(covariates)]))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialTwins:
    """Two trials that differ in one hyperparameter only."""

    first: int
    """Its row in the table; the earlier of the two."""
    second: int
    name: str
    values: tuple[Any, Any]
    change_bytes: float


def twins_of(table: Table) -> list[TrialTwins]:
    """Pairs that differ in exactly one hyperparameter, the largest change of memory first."""
    names = dict.fromkeys(name for row in table.values for name in row)
    pairs = [pair for name in names for pair in _twins_in(table, name)]
    return sorted(pairs, key=lambda pair: -abs(pair.change_bytes))


def _twins_in(table: Table, name: str) -> Iterable[TrialTwins]:
    """One pair from every group that is alike in everything but this hyperparameter."""
    having = [place for place, row in enumerate(table.values) if name in row]
    for group in _grouped(table, having, without=name):
        low = min(group, key=lambda place: table.memory_bytes[place])
        high = max(group, key=lambda place: table.memory_bytes[place])
        first, second = sorted((low, high))
        values = table.values[first][name], table.values[second][name]
        if repr(values[0]) != repr(values[1]):
            change = float(table.memory_bytes[second] - table.memory_bytes[first])
            yield TrialTwins(first=first, second=second, name=name, values=values, change_bytes=change)


def _grouped(table: Table, places: Iterable[int], *, without: str | None = None) -> list[list[int]]:
    """Trials that are alike, in groups of two or more."""
    groups: dict[str, list[int]] = {}
    for place in places:
        row = table.values[place]
        key = repr(sorted((name, repr(value)) for name, value in row.items() if name != without))
        groups.setdefault(key, []).append(place)
    return [group for group in groups.values() if len(group) > 1]


def repeats_spread(table: Table) -> tuple[float, int] | None:
    """The standard deviation between trials with the same hyperparameters, and how many degrees of freedom it has."""
    groups = [table.memory_bytes[group] for group in _grouped(table, range(len(table)))]
    if not groups:
        return None
    df = sum(len(group) - 1 for group in groups)
    return float(np.sqrt(sum(((group - group.mean()) ** 2).sum() for group in groups) / df)), df
