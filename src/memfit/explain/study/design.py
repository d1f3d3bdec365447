"""The design of a study: its distinct points, the repeats of each, and the hyperparameters as columns over both."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memfit.explain.study.factors import Factor, factors_of
from memfit.explain.study.inference import Rows, rows_of_trials
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
    constant: tuple[str, ...]
    """Hyperparameters that did not vary."""

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
    encodings, constant = factors_of(table.values, table.absent_elsewhere)
    trials = rows_of_trials(len(table))
    if len(places) == len(table):
        return Design(
            trials=trials, points=trials, encodings=encodings, point_encodings=encodings, constant=tuple(constant)
        )
    firsts = np.unique(point_of, return_index=True)[1]
    counts = np.bincount(point_of, minlength=len(places))
    return Design(
        trials=trials,
        points=Rows(point_of, np.sqrt(counts)),
        encodings=encodings,
        point_encodings=factors_of(tuple(table.values[place] for place in firsts), table.absent_elsewhere)[0],
        constant=tuple(constant),
    )
