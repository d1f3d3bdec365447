"""Questions on the effects of single hyperparameters on memory, and on interactions of two.

One model holds every hyperparameter at once, so that each effect is what remains when the others are held fixed. A
number that spans a factor of ten or more enters both as it is and as its logarithm, where there are points enough, so
that no scale has to be chosen by a look at memory. Every pair is added to that model in turn (two that act together),
and every number with itself (an effect that bends). Repeats of one point are one row: what the model cannot follow at a
point is the same in all its repeats, and is no evidence that counts several times.

Where points are too few for that, but were repeated (a grid of two by two, each run six times), every point has a mean
of its own, effects are differences between those means, and what they are held against is how far repeats scatter. That
needs no model, and speaks of these points alone. Repeats that came one after the other count as time: a step in the
order of recording would look the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from memfit.explain.study.statistics.design import Design, Encodings, beside_points
from memfit.explain.study.statistics.factors import Factor, as_levels, stacked
from memfit.explain.study.statistics.inference import Base, Estimand, Estimate, Key
from memfit.explain.study.statistics.regression import (
    adds_columns,
    explained_share,
    independent,
    rank_of,
    residuals,
    with_intercept,
)
from memfit.records.study import PATH_SEPARATOR

MIN_DF = 4
"""Fewer degrees of freedom than this, and no effect is reported."""
TOGETHER = 0.95
"""A hyperparameter that the others predict to this share moved together with them."""
MIN_ORDER = 8
"""Fewer trials than this have no order to speak of."""
MOST_PAIRS = 60
ALIKE = 0.02
"""A step in time of which the points leave less than this share looks like a difference between points."""
LEAK = 0.1
"""The share of such a step that may go into an effect."""
ORDER_WORDS = "the order of recording"
MOST_COLUMNS = 8
"""A pair of choices with more combinations than this is not looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectPlan:
    """What is asked about hyperparameters, or why nothing is."""

    factors: tuple[Factor, ...] = ()
    """Those that vary by themselves, on their first scale."""
    pairs: tuple[tuple[Factor, Factor], ...] = ()
    questions: tuple[Estimand, ...] = ()
    together: dict[str, tuple[str, ...]]
    """Hyperparameters that cannot be separated from others, and from which."""
    reason: str = ""
    base: Base | None = None
    """Everything at once."""
    is_by_repeats: bool = False
    """Whether effects are differences between points, held against how far repeats of one point scatter."""

    along_time: tuple[str, ...] = ()
    """Hyperparameters that changed along with the order of recording: a drift would look the same."""

    def moved_along(self, name: str) -> tuple[str, ...]:
        """What is outside of the model and cannot be separated from a hyperparameter in it."""
        others = tuple(other for other, partners in self.together.items() if name in partners)
        return (*others, ORDER_WORDS) if name in self.along_time else others


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectShares:
    """EffectShares of the differences between points that one hyperparameter explains."""

    alone: float
    beside: float
    """Beyond what moved memory besides hyperparameters."""
    beyond: float
    """Beyond everything else in the model."""
    rank_correlation: float | None
    """Between the value and memory, both without what the others explain; None for a choice."""


def main_key(name: str) -> Key:
    """Of the question on one hyperparameter."""
    return ("hyperparameter", name)


def pair_key(first: Factor, second: Factor) -> Key:
    """Of the question on two hyperparameters, or on one with itself."""
    return ("interaction", first.name, second.name)


def plan_effects(design: Design, covariates: np.ndarray, *, in_order: bool = True) -> EffectPlan:
    """The questions on all hyperparameters beside covariates (columns over trials, without an intercept); `in_order`
    says whether trials are in the order in which they were run."""
    encodings, n = design.point_encodings, design.num_points
    fixed = beside_points(design, covariates)
    if not encodings:
        return EffectPlan(together={}, reason="nothing varied")
    kept, together = _separable([options[0] for options in encodings], fixed[:, 1:], n)
    if n - fixed.shape[1] - sum(factor.columns.shape[1] for factor in kept) < MIN_DF:
        if design.num_trials - n >= MIN_DF:
            return _plan_by_repeats(design, covariates, in_order=in_order)
        return EffectPlan(together=together, reason=_too_few(design, len(encodings)))
    if not kept:
        return EffectPlan(together=together, reason="no hyperparameter varies by itself")
    columns, owners = _all_columns(kept, design, fixed)
    base = Base(columns, design.points)
    mains = [_main(factor, base, columns, owners) for factor in kept]
    pairs = _pairs(kept, base)
    joint = [_joint(first, second, base, columns) for first, second in pairs]
    return EffectPlan(
        factors=tuple(kept), pairs=tuple(pairs), questions=(*mains, *joint), together=together, base=base,
        along_time=_along_time(kept, design, covariates) if in_order else (),
    )  # fmt: skip


def _plan_by_repeats(design: Design, covariates: np.ndarray, *, in_order: bool) -> EffectPlan:
    """Effects as differences between the means of points; each value of a number is a level of its own."""
    n = design.num_points
    levels, columns = _levels(design.point_encodings, n)
    if rank_of(columns) < columns.shape[1]:
        levels, columns = _levels(design.whole_lists, n)
    if rank_of(columns) < columns.shape[1]:
        return EffectPlan(together={}, reason=_too_few(design, len(levels)))
    base = _base_of_points(design, covariates)
    if len(base) - base.columns.shape[1] < MIN_DF:
        return EffectPlan(together={}, reason=_too_few(design, len(levels)))
    owners: list[Factor | None] = [None, *(each for each in levels for _ in range(each.columns.shape[1]))]
    blocks = _steps_between_points(design) if in_order else np.empty((0, n))
    kept, together, questions = [], {}, []
    for factor in levels:
        weights = _over_points(_main(factor, base, columns, owners).contrasts, columns, design)
        if np.any(abs(weights @ blocks.T) > LEAK):
            together[factor.name] = (ORDER_WORDS,)
            continue
        kept.append(factor)
        questions.append(_of_points(main_key(factor.name), weights, base))
    if not kept:
        return EffectPlan(together=together, reason="no hyperparameter varies by itself")
    pairs = [pair for pair in combinations(kept, 2) if _are_crossed(pair, columns)]
    for first, second in pairs[:MOST_PAIRS]:
        joint = _joint(first, second, base, columns)
        assert joint.further is not None
        weights = _over_points(joint.contrasts, np.hstack([columns, joint.further]), design)
        questions.append(_of_points(joint.key, weights, base))
    return EffectPlan(
        factors=tuple(kept), pairs=tuple(pairs[:MOST_PAIRS]), questions=tuple(questions), together=together, base=base,
        is_by_repeats=True,
    )  # fmt: skip


def _levels(encodings: Encodings, num_points: int) -> tuple[list[Factor], np.ndarray]:
    """Hyperparameters as choices between their values, and the columns of all, behind an intercept."""
    levels = [as_levels(options[0]) for options in encodings]
    return levels, np.hstack([np.ones((num_points, 1)), stacked(levels, num_points)])


def _base_of_points(design: Design, covariates: np.ndarray) -> Base:
    """Over trials: an intercept, covariates that change within points, and every point but the first."""
    points = (design.points.point_of[:, None] == np.arange(1, design.num_points)).astype(float)
    ones = np.ones((design.num_trials, 1))
    beyond = independent(np.hstack([ones, points, covariates]))[:, design.num_points :]
    return Base(np.hstack([ones, beyond, points]), design.trials)


def _over_points(contrasts: np.ndarray, columns: np.ndarray, design: Design) -> np.ndarray:
    """Contrasts of coefficients over points as sums of the means of points."""
    roots = design.points.root_counts
    return contrasts @ (np.linalg.pinv(columns * roots[:, None]) * roots)


def _of_points(key: Key, weights: np.ndarray, base: Base) -> Estimand:
    """A question on means of points; the first point is the base's intercept, and weights add up to nothing."""
    before = base.columns.shape[1] - (weights.shape[1] - 1)
    return Estimand(key=key, base=base, contrasts=np.hstack([np.zeros((len(weights), before)), weights[:, 1:]]))


def _steps_between_points(design: Design) -> np.ndarray:
    """Steps in time that look like differences between points: (steps, points), which share of each lies behind."""
    is_point = design.points.point_of[:, None] == np.arange(design.num_points)
    counts = is_point.sum(axis=0)
    behind = (counts - np.cumsum(is_point, axis=0)[:-1]) / counts
    middle = (behind * counts).sum(axis=1) / counts.sum()
    between = ((behind - middle[:, None]) ** 2 * counts).sum(axis=1)
    is_alike = 1 - between / (counts.sum() * middle * (1 - middle)) < ALIKE
    is_alike[[0, -1]] = False  # one trial is a repeat of nothing
    return behind[is_alike]


def _are_crossed(pair: tuple[Factor, Factor], columns: np.ndarray) -> bool:
    """Whether there are points enough to see two act together."""
    products = _products(*pair)
    wider = np.hstack([columns, products])
    return products.shape[1] <= MOST_COLUMNS and rank_of(wider) == wider.shape[1]


def _along_time(kept: list[Factor], design: Design, covariates: np.ndarray) -> tuple[str, ...]:
    """The hyperparameters without which a drift could be separated from the others, where it cannot be from all."""
    drift = np.arange(design.num_trials, dtype=float)
    if design.num_trials < MIN_ORDER:
        return ()

    def follows(factors: list[Factor]) -> bool:
        columns = stacked(factors, design.num_points)[design.points.point_of]
        wide = independent(np.hstack([np.ones((design.num_trials, 1)), covariates, columns]))
        return wide.shape[1] < design.num_trials - 1 and explained_share(wide, drift) > TOGETHER

    if not follows(kept):
        return ()
    return tuple(each.name for each in kept if not follows([other for other in kept if other is not each]))


def _too_few(design: Design, count: int) -> str:
    what = f"{design.num_points} trials"
    if design.num_points < design.num_trials:
        what = f"{design.num_trials} trials of {design.num_points} points"
    if count == 1:
        return f"{what} vary it: too few to tell an effect from chance"
    return f"{what} vary {count} hyperparameters at once: too few to tell one from the other"


def _separable(factors: list[Factor], beside: np.ndarray, n: int) -> tuple[list[Factor], dict[str, tuple[str, ...]]]:
    """The hyperparameters that can be separated from the others, and for the rest whom they moved with."""
    kept = list(factors)
    together: dict[str, tuple[str, ...]] = {}
    for factor in sorted(factors, key=lambda each: -each.name.count(PATH_SEPARATOR)):  # a choice outlives its branches
        others = [other for other in kept if other is not factor]
        rest = independent(np.hstack([np.ones((n, 1)), stacked(others, n), beside]))
        if rest.shape[1] >= n:
            continue
        left = (residuals(rest, factor.columns) ** 2).sum(axis=0) / (factor.columns**2).sum(axis=0)
        followed = [other.name for other in others if _go_together(factor, other)]
        if np.any(left < 1 - TOGETHER):
            together[factor.name] = _partners(factor.columns[:, np.argmin(left)], others)
        elif followed:
            together[factor.name] = tuple(followed)
        if factor.name in together:
            kept.remove(factor)
    return kept, together


def _go_together(first: Factor, second: Factor) -> bool:
    """Whether two numbers of few values never changed without each other, along a line or not: what either does then
    depends on the scale of the other."""
    if "choice" in (first.scale, second.scale) or max(first.num_distinct, second.num_distinct) >= len(first.columns):
        return False
    both = np.unique(np.hstack([first.columns, second.columns]), axis=0)
    return len(both) == len(np.unique(first.columns)) == len(np.unique(second.columns))


def _partners(column: np.ndarray, others: list[Factor]) -> tuple[str, ...]:
    """The other hyperparameters that it follows most closely; none where it follows the covariates."""

    def closeness(other: Factor) -> float:
        return explained_share(with_intercept(other.columns), column)

    ranked = sorted(others, key=closeness, reverse=True)
    close = [other.name for other in ranked if closeness(other) > 0.5]
    return tuple(close or [other.name for other in ranked[:1]])


def _all_columns(kept: list[Factor], design: Design, fixed: np.ndarray) -> tuple[np.ndarray, list[Factor | None]]:
    """All columns of the model and whose each is: first scales, then, where there is room, the second ones."""
    n = len(fixed)
    columns = np.hstack([fixed, stacked(kept, n)])
    owners: list[Factor | None] = [None] * fixed.shape[1]
    owners += [factor for factor in kept for _ in range(factor.columns.shape[1])]
    second = [design.second_scales[factor.name] for factor in kept if factor.name in design.second_scales]
    if n - columns.shape[1] - len(second) >= max(n // 2, MIN_DF):
        for option in second:
            wider = np.hstack([columns, option.columns])
            if rank_of(wider) == wider.shape[1]:
                columns, owners = wider, [*owners, option]
    return columns, owners


def _main(factor: Factor, base: Base, columns: np.ndarray, owners: list[Factor | None]) -> Estimand:
    """From low to high; for a choice, from the most common option to each of the others."""
    mine = [place for place, owner in enumerate(owners) if owner is not None and owner.name == factor.name]
    if factor.scale == "choice":
        contrasts = np.zeros((len(mine), columns.shape[1]))
        contrasts[np.arange(len(mine)), mine] = 1.0
    else:
        contrasts = np.zeros((1, columns.shape[1]))
        for place in mine:
            owner = owners[place]
            contrasts[0, place] = owner.deltas[0] if owner is not None else 0.0
    return Estimand(key=main_key(factor.name), base=base, contrasts=contrasts)


def _pairs(kept: list[Factor], base: Base) -> list[tuple[Factor, Factor]]:
    """All pairs, and all numbers with themselves, as far as there is room."""
    bends = [(f, f) for f in kept if f.scale != "choice" and f.num_distinct >= 4]
    usable = [pair for pair in [*bends, *combinations(kept, 2)] if _has_room(_products(*pair), base)]
    return usable[:MOST_PAIRS]


def _has_room(products: np.ndarray, base: Base) -> bool:
    num_columns = base.columns.shape[1] + products.shape[1]
    if len(base) - num_columns < MIN_DF or products.shape[1] > MOST_COLUMNS:
        return False
    return adds_columns(base.basis, base.rows.weighted(products))


def _products(first: Factor, second: Factor) -> np.ndarray:
    if first is second:
        return first.columns**2 - (first.columns**2).mean(axis=0)
    products = first.columns[:, :, None] * second.columns[:, None, :]
    return products.reshape(len(products), -1)


def _joint(first: Factor, second: Factor, base: Base, columns: np.ndarray) -> Estimand:
    """How much larger the effect of the first is at the high end of the second than at its low end; for one with
    itself, how far its middle lies from the straight line between its ends."""
    products = _products(first, second)
    if first is second:
        deltas = np.array([-(first.deltas[0] ** 2) / 4])
    else:
        deltas = np.outer(first.deltas, second.deltas).reshape(-1)
    contrasts = np.hstack([np.zeros((len(deltas), columns.shape[1])), np.diag(deltas)])
    return Estimand(key=pair_key(first, second), base=base, further=products, contrasts=contrasts)


def shares_of(factor: Factor, plan: EffectPlan, design: Design, covariates: np.ndarray, y: np.ndarray) -> EffectShares:
    """What a hyperparameter explains, alone and beside the rest."""
    assert plan.base is not None
    rest = stacked([other for other in plan.factors if other is not factor], design.num_points)
    if plan.is_by_repeats:  # a mean for every point explains all differences between points
        points, point_of = y, design.points.point_of
        options, rest = [factor.columns[point_of]], rest[point_of]
        fixed = np.hstack([np.ones((len(y), 1)), covariates])
    else:
        points = design.points.means(y[:, None])[:, 0]
        second = design.second_scales.get(factor.name)
        options = [factor.columns] if second is None else [factor.columns, second.columns]
        fixed = beside_points(design, covariates)
    others = independent(np.hstack([fixed, rest]))
    return EffectShares(
        alone=_most(options, np.ones((len(points), 1)), points),
        beside=_most(options, fixed, points),
        beyond=_most(options, others, points),
        rank_correlation=None
        if factor.scale == "choice"
        else _rank_correlation(residuals(others, options[0][:, 0]), residuals(others, points)),
    )


def _most(options: list[np.ndarray], beside: np.ndarray, y: np.ndarray) -> float:
    """The most that a hyperparameter explains beyond some columns, on its better scale."""
    shares = [explained_share(independent(np.hstack([beside, option])), y) for option in options]
    return max(shares) - explained_share(beside, y)


def _rank_correlation(x: np.ndarray, y: np.ndarray) -> float:
    """Spearman's, of two columns without ties to speak of."""
    ranks = [np.argsort(np.argsort(column)) for column in (x, y)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1]) if np.ptp(x) > 0 and np.ptp(y) > 0 else 0.0


def found_pairs(plan: EffectPlan, answers: dict[Key, Estimate]) -> list[tuple[Factor, Factor]]:
    """The pairs that act together beyond chance, the surest first."""
    found = [pair for pair in plan.pairs if answers[pair_key(*pair)].is_found]
    return sorted(found, key=lambda pair: answers[pair_key(*pair)].p_alone)
