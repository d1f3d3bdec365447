"""Questions on what moved the memory of trials besides hyperparameters: their order in time, other programs, the hour.

Order: is there a trial from which on memory is different (a step; every place between the second and the last but one
is tried), or does it drift? All places are one question, so looking at many is paid for. Where there are trials enough,
the hyperparameters' own part is taken out first; where there are not, the step must also survive taking out each
hyperparameter by itself.

Known limits: one step is looked for. Hyperparameters that change exactly where the step is cannot be separated from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

import numpy as np

from memfit.explain.study.statistics.design import Design, Encodings
from memfit.explain.study.statistics.factors import Factor, stacked
from memfit.explain.study.statistics.inference import Base, Estimand, Estimate, Key, answer, rows_of_trials
from memfit.explain.study.statistics.regression import adds_columns, explained_share, independent, with_intercept
from memfit.explain.study.table import Table

MIN_TRIALS, MIN_SEGMENT, MOST_PLACES = 6, 2, 60
"""With more trials than places, a step is looked for at so many places, evenly spread."""
ROOMY_DF = 8
"""With at least so many degrees of freedom left, hyperparameters are taken out before the order is looked at."""
FEW_VALUES = 6
"""A number with at most so many values is taken out value by value."""
MIN_HOURS = 24.0
"""Within one day, the hour is the order of recording."""
ORDER: Key = ("order of recording",)
OTHERS: Key = ("other programs",)
HOUR: Key = ("time of day",)

Kind = Literal["step", "drift", "background", "time of day"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstance:
    """One thing besides the hyperparameters: how it is asked about, and, when it was answered, what it explains."""

    key: Key
    questions: tuple[Estimand, ...]
    candidates: tuple[np.ndarray, ...]
    """The columns of each question."""
    places: tuple[int, ...] = ()
    """For the order: how many trials lie before each step; 0 for a drift."""
    is_roomy: bool
    """Whether the hyperparameters were taken out."""
    # Known once it was answered:
    kind: Kind
    columns: np.ndarray
    share: float = 0.0
    share_beyond: float | None = None
    """None where there are too few trials to take the hyperparameters out."""
    place: int = 0
    """For a step: how many trials lie before it."""
    survives: tuple[str, ...] = ()
    """For a step with few trials: the hyperparameters that, taken out one by one, leave it standing."""
    fails: tuple[str, ...] = ()


def circumstances_of(table: Table, design: Design) -> tuple[list[Circumstance], dict[str, str]]:
    """What else may have moved memory; and what of it is unknown, with the reason."""
    base, is_roomy = _base(design)
    asked = {
        "order of recording": _order(table, base, is_roomy),
        "other programs": _background(table, base, is_roomy),
        "time of day": _hour(table, base, is_roomy),
    }
    known = [each for each in asked.values() if isinstance(each, Circumstance)]
    return known, {topic: why for topic, why in asked.items() if isinstance(why, str)}


def _base(design: Design) -> tuple[Base, bool]:
    """What is taken out before looking: the hyperparameters, as flexibly as there is room for, else the mean."""
    n = design.num_trials
    best = np.ones((n, 1))
    for columns in _ever_more_flexible(design):
        wider = independent(np.hstack([np.ones((n, 1)), columns]))
        if n - wider.shape[1] - 1 < max(ROOMY_DF, n // 2 if best.shape[1] > 1 else 0):
            break
        best = wider
    return Base(best, design.trials), best.shape[1] > 1


def _ever_more_flexible(design: Design) -> Iterator[np.ndarray]:
    """Each hyperparameter on one scale; on all its scales, or by its values where they are few; all pairs; each point
    by itself."""
    encodings, n = design.encodings, design.num_trials
    plain = stacked([options[0] for options in encodings], n)
    yield plain
    flexible = np.hstack([plain, *(_flexible(options) for options in encodings)])
    yield flexible
    pairs = [_products(a[0].columns, b[0].columns) for a, b in combinations(encodings, 2)]
    wide = sum(pair.shape[1] for pair in pairs) <= n // 2
    yield np.hstack([flexible, *(pairs if wide else ())])
    if design.num_points <= n // 2:
        yield (design.points.point_of[:, None] == np.arange(1, design.num_points)).astype(float)


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


def _order(table: Table, base: Base, is_roomy: bool) -> Circumstance | str:
    """All steps and the drift that can be separated from the hyperparameters."""
    n = len(table)
    if n < MIN_TRIALS:
        return "there are too few trials"
    places = sorted(set(np.linspace(MIN_SEGMENT, n - MIN_SEGMENT, MOST_PLACES).astype(int).tolist()))
    candidates = {0: _drift(n)} | {place: _step(n, place) for place in places}
    usable = {place: column for place, column in candidates.items() if _can_be_asked(column, base)}
    if not usable:
        return "it cannot be separated from the hyperparameters: they moved together, or there are too few trials"
    return _asked(ORDER, "step", base, is_roomy, tuple(usable.values()), tuple(usable))


def _step(n: int, place: int) -> np.ndarray:
    return (np.arange(n) >= place).astype(float)[:, None]


def _drift(n: int) -> np.ndarray:
    return np.linspace(0.0, 1.0, n)[:, None]


def _can_be_asked(columns: np.ndarray, base: Base) -> bool:
    """Whether something of the columns is left beside the base, and enough trials to judge it."""
    left = columns - base.basis @ (base.basis.T @ columns)
    is_separate = bool(np.all((left**2).sum(axis=0) > 0.02 * ((columns - columns.mean(axis=0)) ** 2).sum(axis=0)))
    return (
        is_separate and len(base) - base.columns.shape[1] - columns.shape[1] >= 2 and adds_columns(base.basis, columns)
    )


def _background(table: Table, base: Base, is_roomy: bool) -> Circumstance | str:
    """What other programs' memory explains; or why that is unknown."""
    background = table.background_bytes
    if np.isnan(background).all():
        return "what other programs held was not recorded"
    if np.isnan(background).any():
        return f"what other programs held is missing in {int(np.isnan(background).sum())} trials"
    if np.ptp(background) < 1 or len(table) < MIN_TRIALS:
        return "what other programs held did not vary" if len(table) >= MIN_TRIALS else "there are too few trials"
    return _covariate(OTHERS, "background", base, is_roomy, (background - background.mean())[:, None])


def _hour(table: Table, base: Base, is_roomy: bool) -> Circumstance | str:
    """What the hour of the day explains, as one wave of 24 hours; or why that is unknown."""
    if np.isnan(table.hours).any():
        return "when the trials were recorded is not known"
    if len(table) < MIN_TRIALS or np.ptp(table.times_hours) < MIN_HOURS:
        needed = f"{MIN_HOURS:.0f} or more are needed to tell it from the order of recording"
        return f"the trials span {np.ptp(table.times_hours):.1f} hours; {needed}"
    angle = table.hours * (2 * np.pi / 24)
    wave = np.column_stack([np.sin(angle), np.cos(angle)])
    return _covariate(HOUR, "time of day", base, is_roomy, wave - wave.mean(axis=0))


def beyond_order(asked: list[Circumstance], recorded: Circumstance) -> tuple[list[Circumstance], dict[str, str]]:
    """The same questions, the time of day beyond a step or drift that was found; and why, where it cannot be asked."""
    again, unknown = list[Circumstance](), dict[str, str]()
    for each in asked:
        if each.key != HOUR:
            again.append(each)
            continue
        base = each.questions[0].base
        wider = Base(np.hstack([base.columns, recorded.columns]), base.rows)
        if _can_be_asked(each.columns, wider):
            again.append(_asked(HOUR, "time of day", wider, each.is_roomy, (each.columns,), ()))
        else:
            unknown["time of day"] = "it cannot be separated from the order of recording"
    return again, unknown


def _covariate(key: Key, kind: Kind, base: Base, is_roomy: bool, columns: np.ndarray) -> Circumstance | str:
    if not _can_be_asked(columns, base):
        return "it cannot be separated from the hyperparameters: they moved together, or there are too few trials"
    return _asked(key, kind, base, is_roomy, (columns,), ())


def _asked(
    key: Key, kind: Kind, base: Base, is_roomy: bool, candidates: tuple[np.ndarray, ...], places: tuple[int, ...]
) -> Circumstance:
    num_base = base.columns.shape[1]
    questions = []
    for columns in candidates:
        contrasts = np.hstack([np.zeros((columns.shape[1], num_base)), np.eye(columns.shape[1])])
        questions.append(Estimand(key=key, base=base, further=columns, contrasts=contrasts))
    return Circumstance(
        key=key, kind=kind, questions=tuple(questions), candidates=candidates, places=places, is_roomy=is_roomy,
        columns=candidates[0],
    )  # fmt: skip


def settled(each: Circumstance, found: Estimate, table: Table, design: Design) -> Circumstance:
    """A circumstance with what the data say: which step it is, and what it explains."""
    columns, place, kind = each.columns, 0, each.kind
    if each.places:
        columns, place = each.candidates[found.strongest], each.places[found.strongest]
        kind = "step" if place else "drift"
    y, base = table.memory_bytes, each.questions[0].base.columns
    survives, fails = ((), ()) if each.is_roomy or not each.places else _standing(table, design.encodings, columns)
    beyond = explained_share(np.hstack([base, columns]), y) - explained_share(base, y) if each.is_roomy else None
    share = explained_share(with_intercept(columns), y)
    return replace(
        each, columns=columns, place=place, kind=kind, share=share, share_beyond=beyond, survives=survives, fails=fails
    )


def _standing(table: Table, encodings: Encodings, column: np.ndarray) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Does the step remain when one hyperparameter at a time is taken out?"""
    survives, fails = [], []
    for options in encodings:
        base = Base(
            independent(with_intercept(np.hstack([option.columns for option in options]))), rows_of_trials(len(table))
        )
        stands = False
        if len(table) - base.columns.shape[1] > 2 and _can_be_asked(column, base):
            asked = _asked(ORDER, "step", base, False, (column,), (1,))
            _, low, high = answer(asked.questions, table.memory_bytes)[ORDER].change
            stands = low > 0 or high < 0
        (survives if stands else fails).append(options[0].name)
    return tuple(survives), tuple(fails)
