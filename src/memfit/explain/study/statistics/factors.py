"""Encoding of hyperparameters as columns of numbers for a regression.

Numbers enter as they are and, when they span a factor of ten or more, also as logarithms; first comes the scale on
which their values are spread more evenly. A list of layer widths enters as the number of layers and the sum of units.
Everything else is a choice: one column per option but the most common. A hyperparameter that only some trials have (a
nested one) counts as average where it is missing, so that it neither adds nor takes anything there.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

LOG_SPAN = 10.0
_WIDTHS = re.compile(r"\d+(-\d+)+")
Scale = Literal["plain", "log", "choice"]


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


def factors_of(values: tuple[dict[str, object], ...]) -> tuple[list[list[Factor]], list[str]]:
    """For every hyperparameter that varied, its possible encodings; and the names of those that did not."""
    expanded = [_expand(row) for row in values]
    names = dict.fromkeys(name for row in expanded for name in row)
    factors, constant = [], []
    for name in names:
        column = [row.get(name) for row in expanded]
        if len({_key(value) for value in column}) < 2:
            constant.append(name)
        else:
            factors.append(_encodings(name, column))
    return factors, constant


def _key(value: object) -> object:
    return (type(value).__name__ if isinstance(value, bool) else "", repr(value))


def widths_in(value: object) -> list[int] | None:
    """The layer widths that a value lists; None when it lists none."""
    if isinstance(value, str) and _WIDTHS.fullmatch(value.strip()):
        return [int(width) for width in value.strip().split("-")]
    if isinstance(value, (list, tuple)) and value and all(type(width) is int for width in value):
        return list(value)
    return None


def _expand(row: dict[str, object]) -> dict[str, object]:
    """Lists of widths become two numbers."""
    expanded: dict[str, Any] = {}
    for name, value in row.items():
        widths = widths_in(value)
        if widths is None:
            expanded[name] = value
        else:
            expanded[f"{name}: layers"], expanded[f"{name}: units"] = len(widths), sum(widths)
    return expanded


def _encodings(name: str, column: list[Any]) -> list[Factor]:
    known = [value for value in column if value is not None]
    if not all(isinstance(v, (int, float)) and not isinstance(v, bool) and math.isfinite(v) for v in known):
        return [_choice(name, column)]
    if len(known) < len(column) and len(set(known)) < 2:
        return [_choice(name, column)]
    numbers = np.array([math.nan if value is None else float(value) for value in column])
    encodings = [_number(name, numbers, "plain", lambda x: x)]
    lowest, highest = np.nanmin(numbers), np.nanmax(numbers)
    if lowest > 0 and highest / lowest >= LOG_SPAN:
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
    )


def _choice(name: str, column: list[object]) -> Factor:
    keys = [_key(value) for value in column]
    ranked = [key for key, _ in Counter(keys).most_common()]
    shown = dict(zip(keys, column, strict=True))
    dummies = np.array([[float(key == option) for option in ranked[1:]] for key in keys])
    return Factor(
        name=name,
        scale="choice",
        columns=dummies - dummies.mean(axis=0),
        low=shown[ranked[0]],
        high=shown[ranked[1]],
        deltas=np.ones(len(ranked) - 1),
        options=tuple(shown[key] for key in ranked[1:]),
        num_distinct=len(ranked),
    )


def stacked(factors: Iterable[Factor], num_rows: int) -> np.ndarray:
    """All columns of some factors beside each other."""
    return np.hstack([np.empty((num_rows, 0)), *(factor.columns for factor in factors)])
