"""Effects on the memory of trials that are no hyperparameters: their order in time, and other programs.

Order: is there a trial from which on memory is different (a step; every place between the second and the last but one
is tried), or does it drift? The largest of all these values is compared with the largest in shuffled orders, so
looking at many places is paid for. Where there are trials enough, the hyperparameters' own part is taken out first;
where there are not, the step must also survive taking out each hyperparameter by itself.

Known limits: one step is looked for. Hyperparameters that change exactly where the step is cannot be separated from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np

from memfit.explain.study.factors import Factor, stacked
from memfit.explain.study.regression import (
    chance_of,
    deviates,
    explained_share,
    independent,
    rank_of,
    shuffled,
    slopes,
    with_intercept,
)
from memfit.explain.study.table import Table

MIN_TRIALS, MIN_SEGMENT, MOST_PLACES = 6, 2, 60
"""With more trials than places, a step is looked for at so many places, evenly spread."""
ROOMY_DF = 8
"""With at least so many degrees of freedom left, hyperparameters are taken out before the order is looked at."""
FEW_VALUES = 6
"""A number with at most so many values is taken out value by value."""
MIN_HOURS = 6.0

Encodings = list[list[Factor]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstance:
    """One thing besides the hyperparameters, and what it explains."""

    kind: Literal["step", "drift", "background", "time of day"]
    columns: np.ndarray
    p: float
    """Of this test alone; adjusted by the caller."""
    effect_bytes: tuple[float, float, float] | None
    """Middle, low, high: the height of the step, the drift from first to last, or bytes per byte of background."""
    share: float
    share_beyond: float | None
    """None where there are too few trials to take the hyperparameters out."""
    place: int = 0
    """For a step: how many trials lie before it."""
    survives: tuple[str, ...] = ()
    """For a step with few trials: the hyperparameters that, taken out one by one, leave it standing."""
    fails: tuple[str, ...] = ()


def order_effect(table: Table, encodings: Encodings) -> Circumstance | None:
    """The strongest step or drift in the order of recording; None with too few trials."""
    n = len(table)
    if n < MIN_TRIALS:
        return None
    base, is_roomy = _base(table, encodings)
    places = sorted(set(np.linspace(MIN_SEGMENT, n - MIN_SEGMENT, MOST_PLACES).astype(int).tolist()))
    candidates = {place: _step(n, place) for place in places} | {0: _drift(n)}
    usable = {key: column for key, column in candidates.items() if rank_of(np.hstack([base, column])) > base.shape[1]}
    if not usable:
        return None
    y = shuffled(table.memory_bytes, base)
    values = {key: deviates(base, column, y) for key, column in usable.items()}
    best = max(values, key=lambda key: float(values[key][0]))
    by_chance = np.max([value[1:] for value in values.values()], axis=0)
    p = chance_of(float(values[best][0]), by_chance)
    return _describe(table, encodings, usable[best], p, base if is_roomy else None, best)


def _base(table: Table, encodings: Encodings) -> tuple[np.ndarray, bool]:
    """What is taken out before looking: the hyperparameters, as flexibly as there is room for, else the mean."""
    n = len(table)
    best = np.ones((n, 1))
    for columns in _ever_more_flexible(encodings, n):
        wider = independent(np.hstack([np.ones((n, 1)), columns]))
        if n - wider.shape[1] - 1 < max(ROOMY_DF, n // 2 if best.shape[1] > 1 else 0):
            break
        best = wider
    return best, best.shape[1] > 1


def _ever_more_flexible(encodings: Encodings, n: int) -> Iterator[np.ndarray]:
    """Each hyperparameter on one scale; on all its scales, or by its values where they are few; and all pairs."""
    plain = stacked([options[0] for options in encodings], n)
    yield plain
    flexible = np.hstack([plain, *(_flexible(options) for options in encodings)])
    yield flexible
    pairs = [_products(a[0].columns, b[0].columns) for a, b in combinations(encodings, 2)]
    yield np.hstack([flexible, *pairs])


def _flexible(options: list[Factor]) -> np.ndarray:
    """A hyperparameter as a free function of its value, as far as a few columns can follow it."""
    column = options[0].columns
    if options[0].scale == "choice":
        return column
    if options[0].num_distinct <= FEW_VALUES:
        return (column == np.unique(column)[None, 1:]).astype(float)
    return np.hstack([*(option.columns for option in options), column**2])


def _products(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return (first[:, :, None] * second[:, None, :]).reshape(len(first), -1)


def _step(n: int, place: int) -> np.ndarray:
    return (np.arange(n) >= place).astype(float)[:, None]


def _drift(n: int) -> np.ndarray:
    return np.linspace(0.0, 1.0, n)[:, None]


def _describe(
    table: Table, encodings: Encodings, column: np.ndarray, p: float, base: np.ndarray | None, place: int
) -> Circumstance:
    alone = with_intercept(column)
    model = alone if base is None else np.hstack([base, column])
    weights = np.zeros(model.shape[1])
    weights[-1 if base is not None else 1] = 1.0
    y = table.memory_bytes
    survives, fails = _standing(table, encodings, column) if base is None else ((), ())
    return Circumstance(
        kind="step" if place else "drift",
        columns=column,
        p=p,
        effect_bytes=slopes(model, y).combined(weights),
        share=explained_share(alone, y),
        share_beyond=None if base is None else explained_share(model, y) - explained_share(base, y),
        place=place,
        survives=survives,
        fails=fails,
    )


def _standing(table: Table, encodings: Encodings, column: np.ndarray) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Does the step remain when one hyperparameter at a time is taken out?"""
    survives, fails = [], []
    for options in encodings:
        base = independent(with_intercept(np.hstack([option.columns for option in options])))
        has_room = len(table) - base.shape[1] > 2 and rank_of(np.hstack([base, column])) > base.shape[1]
        value = float(deviates(base, column, table.memory_bytes[:, None])[0]) if has_room else 0.0
        (survives if value > 1.96 else fails).append(options[0].name)
    return tuple(survives), tuple(fails)


def background_effect(table: Table, encodings: Encodings) -> Circumstance | str:
    """What other programs' memory explains; or why that is unknown."""
    background = table.background_bytes
    if np.isnan(background).all():
        return "what other programs held was not recorded"
    if np.isnan(background).any():
        return f"what other programs held is missing in {int(np.isnan(background).sum())} trials"
    if np.ptp(background) < 1 or len(table) < MIN_TRIALS:
        return "what other programs held did not vary" if len(table) >= MIN_TRIALS else "there are too few trials"
    return _covariate(table, encodings, "background", (background - background.mean())[:, None])


def time_of_day_effect(table: Table, encodings: Encodings) -> Circumstance | str:
    """What the hour of the day explains, as one wave of 24 hours; or why that is unknown."""
    if np.isnan(table.hours).any():
        return "when the trials were recorded is not known"
    if len(table) < MIN_TRIALS or np.ptp(table.times_hours) < MIN_HOURS:
        return f"the trials span {np.ptp(table.times_hours):.1f} hours; {MIN_HOURS:.0f} or more are needed"
    angle = table.hours * (2 * np.pi / 24)
    wave = np.column_stack([np.sin(angle), np.cos(angle)])
    return _covariate(table, encodings, "time of day", wave - wave.mean(axis=0))


def _covariate(
    table: Table, encodings: Encodings, kind: Literal["background", "time of day"], columns: np.ndarray
) -> Circumstance | str:
    base, is_roomy = _base(table, encodings)
    model = np.hstack([base, columns])
    if rank_of(model) < model.shape[1] or len(table) - model.shape[1] < 2:
        return "it cannot be separated from the hyperparameters: they moved together, or there are too few trials"
    y = shuffled(table.memory_bytes, base)
    value = deviates(base, columns, y)
    weights = np.zeros(model.shape[1])
    weights[-1] = 1.0
    is_slope = kind == "background"
    return Circumstance(
        kind=kind,
        columns=columns,
        p=chance_of(float(value[0]), value[1:]),
        effect_bytes=slopes(model, table.memory_bytes).combined(weights) if is_slope else None,
        share=explained_share(with_intercept(columns), table.memory_bytes),
        share_beyond=explained_share(model, table.memory_bytes) - explained_share(base, table.memory_bytes)
        if is_roomy
        else None,
    )
