"""Student's t distribution: tail probability and the quantile that leaves 2.5 % outside.

The distribution function is an incomplete beta function, by its continued fraction (Lentz' method as modified by
Thompson and Barnett, 1986); the quantile is found by bisection. Accurate to about 1e-12, so numpy is enough.
"""

from __future__ import annotations

from functools import cache
from math import exp, inf, isinf, lgamma, log

_TINY = 1e-300
_MOST_TERMS = 500


def two_sided_p(t: float, df: float) -> float:
    """The chance of a value at least as far from zero."""
    if isinf(t):
        return 0.0
    return incomplete_beta(df / 2, 0.5, df / (df + t * t))


@cache
def t_quantile(df: float, confidence: float = 0.95) -> float:
    """The value that a share of `confidence` stays within, on both sides of zero."""
    if df <= 0:
        return inf
    low, high = 0.0, 1.0
    while two_sided_p(high, df) > 1 - confidence:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided_p(middle, df) > 1 - confidence else (low, middle)
    return (low + high) / 2


def incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log(1 - x))
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(a, b, x) / a
    return 1 - front * _fraction(b, a, 1 - x) / b


def _fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of the incomplete beta function."""
    c, d = 1.0, 1 / _away_from_zero(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, _MOST_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / _away_from_zero(1 + term * d)
            c = _away_from_zero(1 + term / c)
            value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return value


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
