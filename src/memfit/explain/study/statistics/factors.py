"""Encoding of hyperparameters as columns of numbers for a regression.

Numbers enter as they are and, when they span a factor of ten or more, also as logarithms; first comes the scale on
which their values are spread more evenly. A list of layer widths enters as the number of layers and the sum of units.
Everything else is a choice: one column per option but the most common; a null that was tried is an option as well. A
hyperparameter that only some trials have (a nested one) counts as average where it is missing, so that it neither adds
nor takes anything there: that the branch itself was taken is what the choice above it says.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, TypeGuard

import numpy as np

from memfit.records.study import PATH_SEPARATOR, finite_or_reason

LOG_SPAN = 10.0
_EXTREME = 1e100
"""Beyond this, or below its inverse, squares and cubes leave what a float holds; such a number is scaled first."""
MOST_OPTIONS = 100
"""A choice of more options is in no model: hardly one of them was tried often, and time grows with their square."""
_WIDTHS = re.compile(r"\d+(-\d+)+")
Scale = Literal["plain", "log", "choice"]


class NotSet(Enum):
    """Where a trial does not have a hyperparameter; not the same as a null that was tried."""

    NOT_SET = "not set"

    def __str__(self) -> str:
        return self.value


NOT_SET = NotSet.NOT_SET


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """One hyperparameter as a model sees it."""

    name: str
    scale: Scale
    columns: np.ndarray
    """(trials, columns); centred."""
    low: Any
    """The small end of what was tried: the tenth percentile, or the most common option."""
    high: Any
    deltas: np.ndarray
    """How far each column moves from low to high; for a choice 1 in each."""
    options: tuple[Any, ...] = ()
    """For a choice: what each column stands for."""
    num_distinct: int = 0
    values: np.ndarray = field(default_factory=lambda: np.empty(0))
    """For a number: as it was tried; not a number where it was not set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """The hyperparameters of a table as columns of numbers."""

    encodings: list[list[Factor]]
    """For each that varied, its possible encodings."""
    constant: tuple[str, ...]
    crowded: dict[str, int]
    """Choices of too many options, and how many."""


def encode(
    values: tuple[dict[str, object], ...], absent_elsewhere: frozenset[str] = frozenset(), *, split_lists: bool = True
) -> Encoded:
    """Encode every hyperparameter. Like nested ones, those in `absent_elsewhere` count as average where they are
    missing. With `split_lists`, a list of widths is two numbers, its layers and its units."""
    of_widths = _lists_of_widths(values) if split_lists else set[str]()
    expanded = [_expand(row, of_widths) for row in values]
    names = dict.fromkeys(name for row in expanded for name in row)
    factors: list[list[Factor]] = []
    constant: list[str] = []
    crowded: dict[str, int] = {}
    for name in names:
        column = [row.get(name, NOT_SET) for row in expanded]
        is_nested = name.partition(": ")[0] in absent_elsewhere
        is_nested = is_nested or any(name.startswith(f"{other}{PATH_SEPARATOR}") for other in names)
        seen = {_key(value) for value in column} - ({_key(NOT_SET)} if is_nested else set())
        if len(seen) < 2:
            constant.append(name)
        elif len(seen) > MOST_OPTIONS and not _are_numbers(column):
            crowded[name] = len(seen)
        else:
            factors.append(_encodings(name, column, is_nested=is_nested))
    return Encoded(encodings=factors, constant=tuple(constant), crowded=crowded)


def _are_numbers(column: Iterable[object]) -> bool:
    return all(value is NOT_SET or _is_number(value) for value in column)


def _key(value: object) -> object:
    return ("", repr(float(value))) if _is_number(value) else (type(value).__name__, repr(value))


def _is_number(value: object) -> TypeGuard[int | float]:
    return finite_or_reason(value)[0] is not None


def widths_in(value: object) -> list[int] | None:
    """The layer widths that a value lists; None when it lists none."""
    if isinstance(value, str) and _WIDTHS.fullmatch(value.strip()):
        return [int(width) for width in value.strip().split("-")]
    if isinstance(value, (list, tuple)) and value and all(type(width) is int for width in value):
        return list(value)
    return None


def _lists_of_widths(values: Iterable[dict[str, object]]) -> set[str]:
    """Hyperparameters all of whose values list widths; one with other options besides is a choice."""
    listed: dict[str, bool] = {}
    for row in values:
        for name, value in row.items():
            listed[name] = listed.get(name, True) and widths_in(value) is not None
    return {name for name, is_widths in listed.items() if is_widths}


def _expand(row: dict[str, object], of_widths: set[str]) -> dict[str, object]:
    """Lists of widths become two numbers."""
    expanded: dict[str, Any] = {}
    for name, value in row.items():
        widths = widths_in(value) if name in of_widths else None
        if widths is None:
            expanded[name] = value
        else:
            expanded[f"{name}: layers"], expanded[f"{name}: units"] = len(widths), sum(widths)
    return expanded


def _encodings(name: str, column: list[Any], *, is_nested: bool) -> list[Factor]:
    known = [value for value in column if value is not NOT_SET]
    if not all(_is_number(value) for value in known) or len(set(known)) < 2:
        return [_choice(name, column, is_nested=is_nested)]
    numbers = np.array([math.nan if value is NOT_SET else float(value) for value in column])
    largest = float(np.nanmax(np.abs(numbers)))
    unit = 1.0 if 1 / _EXTREME < largest < _EXTREME else largest
    encodings = [_number(name, numbers, "plain", lambda x: x / unit)]
    lowest, highest = np.nanmin(numbers), np.nanmax(numbers)
    if lowest > 0 and np.log(highest) - np.log(lowest) >= math.log(LOG_SPAN) * (1 - 1e-12):
        encodings.append(_number(name, numbers, "log", np.log))
    return sorted(encodings, key=lambda option: _unevenness(option.columns[:, 0]))


def _unevenness(column: np.ndarray) -> float:
    """How lopsided the values are: the size of their skewness."""
    spread = float(np.sqrt((column**2).mean()))
    return abs(float((column**3).mean())) / spread**3 if spread > 0 else 0.0


def _number(name: str, numbers: np.ndarray, scale: Scale, transform: Callable[..., np.ndarray]) -> Factor:
    scaled = transform(numbers)
    mean = float(np.nanmean(scaled))
    column = np.where(np.isnan(scaled), 0.0, scaled - mean)
    low, high = np.nanquantile(numbers, [0.1, 0.9], method="nearest")
    if low == high:
        low, high = np.nanmin(numbers), np.nanmax(numbers)
    return Factor(
        name=name,
        scale=scale,
        columns=column[:, None],
        low=float(low),
        high=float(high),
        deltas=np.array([float(transform(high) - transform(low))]),
        num_distinct=len(np.unique(numbers[~np.isnan(numbers)])),
        values=numbers,
    )


def _choice(name: str, column: list[object], *, is_nested: bool) -> Factor:
    keys = [_key(value) for value in column]
    is_set = np.array([not is_nested or value is not NOT_SET for value in column])
    ranked = [key for key, _ in Counter(key for key, known in zip(keys, is_set, strict=True) if known).most_common()]
    shown = dict(zip(keys, column, strict=True))
    dummies = np.array([[float(key == option) for option in ranked[1:]] for key in keys])
    return Factor(
        name=name,
        scale="choice",
        columns=np.where(is_set[:, None], dummies - dummies[is_set].mean(axis=0), 0.0),
        low=shown[ranked[0]],
        high=shown[ranked[1]],
        deltas=np.ones(len(ranked) - 1),
        options=tuple(shown[key] for key in ranked[1:]),
        num_distinct=len(ranked),
    )


def as_levels(factor: Factor) -> Factor:
    """A number as a choice between the values that were tried, from the lowest to each of the others."""
    if factor.scale == "choice":
        return factor
    values = factor.values
    known = ~np.isnan(values)
    levels = np.unique(values[known])
    dummies = (values[:, None] == levels[1:]).astype(float)
    return Factor(
        name=factor.name,
        scale="choice",
        columns=np.where(known[:, None], dummies - dummies[known].mean(axis=0), 0.0),
        low=float(levels[0]),
        high=float(levels[-1]),
        deltas=np.ones(len(levels) - 1),
        options=tuple(levels[1:].tolist()),
        num_distinct=len(levels),
    )


def stacked(factors: Iterable[Factor], num_rows: int) -> np.ndarray:
    """All columns of some factors beside each other."""
    return np.hstack([np.empty((num_rows, 0)), *(factor.columns for factor in factors)])
