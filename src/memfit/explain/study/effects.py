"""Effects of single hyperparameters on memory, and interactions of two.

One model holds every hyperparameter at once, so that each effect is what remains when the others are held fixed. Each
number enters as it is or as a logarithm, whichever fits better. Then every pair is added in turn (two that act
together), and every number with itself (an effect that bends). All these tests are one family: by shuffling, the
chance that any of them looks this large in data without any effect.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from memfit.explain.study.factors import Factor, stacked
from memfit.explain.study.regression import (
    chance_of,
    deviates,
    explained_share,
    independent,
    rank_of,
    residuals,
    shuffled,
    slopes,
    with_intercept,
)

MIN_DF = 4
"""Fewer degrees of freedom than this, and no effect is reported."""
TOGETHER = 0.95
"""A hyperparameter that the others predict to this share moved together with them."""
MOST_PAIRS = 60
AS_GOOD = 3.84
"""Two scales fit about as well when twice the difference of their log-likelihoods is below this (5 % of
chi-squared)."""

Interval = tuple[float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What one hyperparameter does, the others held fixed."""

    factor: Factor
    change_bytes: tuple[Interval, ...]
    """From low to high; for a choice, from the most common option to each of the others."""
    p: float
    share: float
    """Of the variance, by itself and on the better scale."""
    share_beyond: float
    share_beside: float
    """What it explains beyond the covariates alone, on the better scale."""
    rank_correlation: float | None
    """Between the value and memory, both without what the others explain (a partial rank correlation)."""
    together_with: tuple[str, ...] = ()
    """Hyperparameters it moved together with; then nothing can be concluded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JointEffect:
    """Two hyperparameters that act together, or one with itself."""

    names: tuple[str, str]
    change_bytes: Interval
    """How much larger the effect of the first is at the high end of the second than at its low end; for one with
    itself, how far its middle lies from the straight line."""
    p: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """All effects of a study, or why there are none."""

    effects: tuple[Effect, ...] = ()
    joint: tuple[JointEffect, ...] = ()
    reason: str = ""
    num_tests: int = 0
    df: int = 0


def find_effects(encodings: list[list[Factor]], covariates: np.ndarray, memory_bytes: np.ndarray) -> Effects:
    """Effects of all hyperparameters beside the covariates (columns without an intercept)."""
    n = len(memory_bytes)
    chosen, together = _separable([options[0] for options in encodings], covariates, n)
    fixed = with_intercept(covariates) if covariates.size else np.ones((n, 1))
    num_columns = fixed.shape[1] + sum(factor.columns.shape[1] for factor in chosen)
    if n - num_columns < MIN_DF:
        reason = f"{n} trials vary {_counted(len(encodings))} at once: too few to tell one from the other"
        return Effects(reason=reason)
    mixed = [_mixed(options[0], together[options[0].name]) for options in encodings if options[0].name in together]
    if not chosen:
        return Effects(effects=tuple(mixed), reason="no hyperparameter varies by itself")
    by_name = {options[0].name: options for options in encodings}
    names = [factor.name for factor in chosen]
    y = shuffled(memory_bytes, fixed)
    is_roomy = n - fixed.shape[1] - sum(o.columns.shape[1] for name in names for o in by_name[name]) >= n // 2
    scales = {name: by_name[name] if is_roomy else by_name[name][:1] for name in names}
    mains = {name: _main_values(by_name[name], _beside(scales, name, fixed), y) for name in names}
    joints = _joint_values([by_name[name][0] for name in names], _beside(scales, None, fixed), y)
    chosen = _best_scales(chosen, by_name, fixed, memory_bytes)
    largest = np.max([value[1:] for value in (*mains.values(), *joints.values())], axis=0)
    effects = [_effect(by_name[f.name], f, chosen, fixed, memory_bytes, mains[f.name], largest) for f in chosen]
    effects += mixed
    whole = _beside(scales, None, fixed)
    found = [_joint(pair, by_name, whole, memory_bytes, value, largest) for pair, value in joints.items()]
    return Effects(effects=tuple(effects), joint=tuple(found), num_tests=len(mains) + len(joints), df=n - num_columns)


def _counted(count: int) -> str:
    return "one hyperparameter" if count == 1 else f"{count} hyperparameters"


def _separable(
    factors: list[Factor], covariates: np.ndarray, n: int
) -> tuple[list[Factor], dict[str, tuple[str, ...]]]:
    """The hyperparameters that can be separated from the others, and for the rest whom they moved with."""
    kept = list(factors)
    together: dict[str, tuple[str, ...]] = {}
    for factor in factors:
        others = [other for other in kept if other is not factor]
        rest = with_intercept(stacked(others, n), covariates) if covariates.size else with_intercept(stacked(others, n))
        if rest.shape[1] >= n or rank_of(rest) < rest.shape[1]:
            continue
        left = (residuals(rest, factor.columns) ** 2).sum(axis=0) / (factor.columns**2).sum(axis=0)
        if np.any(left < 1 - TOGETHER):
            together[factor.name] = _partners(factor, others)
            kept.remove(factor)
    return kept, together


def _partners(factor: Factor, others: list[Factor]) -> tuple[str, ...]:
    """The other hyperparameters that it follows most closely."""

    def closeness(other: Factor) -> float:
        return explained_share(with_intercept(other.columns), factor.columns[:, 0])

    ranked = sorted(others, key=closeness, reverse=True)
    close = [other.name for other in ranked if closeness(other) > 0.5]
    return tuple(close or [other.name for other in ranked[:1]])


def _others(chosen: list[Factor], name: str, fixed: np.ndarray) -> np.ndarray:
    return np.hstack([fixed, stacked([factor for factor in chosen if factor.name != name], len(fixed))])


def _best_scales(
    chosen: list[Factor], by_name: dict[str, list[Factor]], fixed: np.ndarray, y: np.ndarray
) -> list[Factor]:
    """Plain or logarithm, whichever explains more beside the others."""
    for place, factor in enumerate(chosen):
        others = _others(chosen, factor.name, fixed)
        options = by_name[factor.name]
        if len(options) > 1:
            fits = [float(deviates(others, option.columns, y[:, None])[0]) for option in options]
            chosen = [*chosen[:place], options[int(np.argmax(fits))], *chosen[place + 1 :]]
    return chosen


def _beside(scales: dict[str, list[Factor]], name: str | None, fixed: np.ndarray) -> np.ndarray:
    """What stands beside a tested hyperparameter: all others, chosen without a look at memory."""
    others = [option.columns for other, options in scales.items() if other != name for option in options]
    return independent(np.hstack([fixed, *others]))


def _main_values(options: list[Factor], others: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The test of one hyperparameter in the data and in every shuffle; the choice of its scale is made in each."""
    usable = [o for o in options if rank_of(np.hstack([others, o.columns])) == others.shape[1] + o.columns.shape[1]]
    return np.max([deviates(others, option.columns, y) for option in usable or options[:1]], axis=0)


def _products(first: Factor, second: Factor) -> np.ndarray:
    if first is second:
        return first.columns**2 - (first.columns**2).mean(axis=0)
    products = first.columns[:, :, None] * second.columns[:, None, :]
    return products.reshape(len(products), -1)


def _joint_values(factors: list[Factor], base: np.ndarray, y: np.ndarray) -> dict[tuple[str, str], np.ndarray]:
    """Tests of all pairs, and of all numbers with themselves, as far as there is room."""
    bends = [(f, f) for f in factors if f.scale != "choice" and f.num_distinct >= 4]
    values: dict[tuple[str, str], np.ndarray] = {}
    for first, second in [*bends, *combinations(factors, 2)][:MOST_PAIRS]:
        columns = _products(first, second)
        whole = np.hstack([base, columns])
        if len(y) - whole.shape[1] >= MIN_DF and rank_of(whole) == whole.shape[1]:
            values[first.name, second.name] = deviates(base, columns, y)
    return values


def _effect(
    options: list[Factor],
    factor: Factor,
    chosen: list[Factor],
    fixed: np.ndarray,
    y: np.ndarray,
    value: np.ndarray,
    largest: np.ndarray,
) -> Effect:
    others = _others(chosen, factor.name, fixed)
    whole = np.hstack([others, factor.columns])
    return Effect(
        factor=factor,
        change_bytes=_changes(options, factor, others, y),
        p=chance_of(float(value[0]), largest),
        share=_best_share(options, np.ones((len(y), 1)), y),
        share_beyond=explained_share(whole, y) - explained_share(others, y),
        share_beside=_best_share(options, fixed, y),
        rank_correlation=_rank_correlation(residuals(others, factor.columns[:, 0]), residuals(others, y))
        if factor.scale != "choice"
        else None,
    )


def _changes(options: list[Factor], factor: Factor, others: np.ndarray, y: np.ndarray) -> tuple[Interval, ...]:
    """Changes from low to high; the interval covers every scale that fits about as well, since either may be the true
    one."""
    changes = _changes_on(factor, others, y)
    best = _squares_left(factor, others, y)
    for option in options:
        if option is not factor and len(y) * np.log(_squares_left(option, others, y) / best) <= AS_GOOD:
            ((_, low, high),) = _changes_on(option, others, y)
            ((middle, lowest, highest),) = changes
            changes = ((middle, min(low, lowest), max(high, highest)),)
    return changes


def _squares_left(factor: Factor, others: np.ndarray, y: np.ndarray) -> float:
    left = residuals(np.hstack([others, factor.columns]), y)
    return max(float((left**2).sum()), 1e-18 * float((y**2).sum()), 1e-300)


def _changes_on(factor: Factor, others: np.ndarray, y: np.ndarray) -> tuple[Interval, ...]:
    fit = slopes(np.hstack([others, factor.columns]), y)
    changes = []
    for place, delta in enumerate(factor.deltas):
        weights = np.zeros(len(fit.values))
        weights[others.shape[1] + place] = delta
        changes.append(fit.combined(weights))
    return tuple(changes)


def _best_share(options: list[Factor], beside: np.ndarray, y: np.ndarray) -> float:
    """The most that a hyperparameter explains beyond some columns, on its better scale."""
    shares = [explained_share(np.hstack([beside, option.columns]), y) for option in options]
    return max(shares) - explained_share(beside, y)


def _mixed(factor: Factor, partners: tuple[str, ...]) -> Effect:
    return Effect(
        factor=factor,
        change_bytes=(),
        p=1.0,
        share=0.0,
        share_beyond=0.0,
        share_beside=0.0,
        rank_correlation=None,
        together_with=partners,
    )


def _rank_correlation(x: np.ndarray, y: np.ndarray) -> float:
    """Spearman's, of two columns without ties to speak of."""
    ranks = [np.argsort(np.argsort(column)) for column in (x, y)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1]) if np.ptp(x) > 0 and np.ptp(y) > 0 else 0.0


def _joint(
    pair: tuple[str, str],
    by_name: dict[str, list[Factor]],
    base: np.ndarray,
    y: np.ndarray,
    value: np.ndarray,
    largest: np.ndarray,
) -> JointEffect:
    first, second = (by_name[name][0] for name in pair)
    columns = _products(first, second)
    fit = slopes(np.hstack([base, columns]), y)
    weights = np.zeros(base.shape[1] + columns.shape[1])
    # A square bends by a quarter of its range; a product adds the product of both ranges; the first column of a choice.
    weights[base.shape[1]] = first.deltas[0] * second.deltas[0] / (4 if first is second else 1)
    return JointEffect(names=pair, change_bytes=fit.combined(weights), p=chance_of(float(value[0]), largest))
