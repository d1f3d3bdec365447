"""Extrapolation of a learning curve by several families of curves."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.optimize import curve_fit

Curve = Callable[..., Any]
"""Letters as in the literature: x the step from 1, c the value it tends to."""

FAMILIES: dict[str, Curve] = {
    "power": lambda x, c, a, b: c - a * x**-b,
    "exponential": lambda x, c, a, b: c - a * np.exp(-b * x),
    "janoschek": lambda x, c, a, k, d: c - (c - a) * np.exp(-k * x**d),
    "hill": lambda x, c, k, n: c * x**n / (k**n + x**n),
    "inverse logarithm": lambda x, c, a: c - a / np.log(x + 1),
    "vapour": lambda x, a, b, c: np.exp(a + b / x + c * np.log(x)),
    "logarithmic": lambda x, a, b: a * np.log(x) + b,
}
LEAST_FAMILIES = 3
_MOST_SPREAD = 0.5
"""The families must agree within this part of what the curve has covered so far."""


def prolong(values: list[float], target_step: int) -> float | None:
    """The value expected at the target step, more being better; None when the families cannot tell."""
    if len(values) >= target_step:
        return values[-1]
    if max(values) == min(values):
        return values[-1]
    fits = [fit for family in FAMILIES.values() if (fit := _fit(family, np.asarray(values), target_step)) is not None]
    if len(fits) < LEAST_FAMILIES:
        return None
    criteria, ends = np.array([criterion for criterion, _ in fits]), np.array([end for _, end in fits])
    weights = np.exp(-(criteria - criteria.min()) / 2)
    weights /= weights.sum()
    mean = float(weights @ ends)
    spread = float(np.sqrt(weights @ (ends - mean) ** 2))
    return mean if spread <= _MOST_SPREAD * (max(values) - min(values)) else None


def _fit(family: Curve, values: np.ndarray, target_step: int) -> tuple[float, float] | None:
    """Akaike's criterion of one family and its value at the target step; None when it cannot be fitted."""
    steps = np.arange(1, len(values) + 1, dtype=float)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            found, _ = curve_fit(family, steps, values, maxfev=2000)
            residual = float(np.sum((family(steps, *found) - values) ** 2))
            end = float(family(float(target_step), *found))
        except (RuntimeError, TypeError, ValueError, FloatingPointError, OverflowError):
            return None
    # A curve that explains less than a flat line is no curve of this trial.
    if not np.isfinite(residual) or not np.isfinite(end) or residual > float(np.sum((values - values.mean()) ** 2)):
        return None
    floor = 1e-12 * float(np.sum(values**2)) + 1e-300
    return len(values) * float(np.log((residual + floor) / len(values))) + 2 * len(found), end
