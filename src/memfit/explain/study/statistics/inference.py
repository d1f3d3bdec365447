"""Estimates, 95 % intervals and p-values of everything a report says: one statistic, one reference distribution.

Every estimand is one or more contrasts of a linear model. The statistic is the estimate divided by its HC3 standard
error (MacKinnon and White 1985), so that noise may differ between trials. What the statistics do by chance is
simulated: normal noise goes through the same models on the same design, whether its points were drawn independently,
crowd where a tuner found them good, or come in blocks. Where points are compared by their repeats, that noise scatters
at every point as its repeats do (the parametric bootstrap of Krishnamoorthy, Lu and Mathew 2007): with few repeats HC3
alone takes a difference between a quiet and a restless point for surer than it is. An interval covers all contrasts of
its estimand together; a p-value is the chance that anything in the report looks this large (the largest of all,
Westfall and Young 1993). Both come from the same statistic: a p-value at or below 5 % implies an interval without zero.

Statistics with few degrees of freedom have long tails; before the largest is taken, each is brought to the scale of a
normal deviate by a t distribution fitted to its simulated quantiles (Wallace 1959).

Cost: trials x draws x estimands. Known limits: trials are taken as independent given the model; heavy-tailed noise
makes the intervals wider than need be.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from memfit.explain.student_t import t_quantile

ERROR_RATE = 0.05
"""Of a whole report: so many studies without any effect show a finding."""
SEED = 20_260_501
POOLED_LEVERAGE = 0.95
"""A trial with more leverage than this determines its own residual; there the common variance is taken."""
_ROUNDING = 1e-9
"""Noise below this share of the data is rounding."""
_LEAST_FREEDOM = 0.5
"""A point with fewer degrees of freedom than this says nothing of its own scatter."""
_LEAST_SCATTER = 1e-3
"""Of the common scatter: repeats that are equal to the byte are taken to scatter by this share of it."""
_CHUNK_NUMBERS = 1_500_000

Key = tuple[str, ...]
Interval = tuple[float, float, float]
"""Middle, low and high."""


@dataclass(frozen=True, slots=True)
class Rows:
    """What a row of a model is: a trial, or a point with all its repeats."""

    point_of: np.ndarray
    """For every trial the number of its row."""
    root_counts: np.ndarray
    """For every row the root of how many trials it holds."""

    @property
    def are_trials(self) -> bool:
        return len(self.point_of) == len(self.root_counts)

    def means(self, columns: np.ndarray) -> np.ndarray:
        """Columns over trials as columns over rows: the mean of each row's trials."""
        if self.are_trials:
            return columns
        return _sums(columns, self.point_of, len(self.root_counts)) / self.root_counts[:, None] ** 2

    def weighted(self, columns: np.ndarray) -> np.ndarray:
        """Columns over rows, each row with the weight of its trials."""
        return columns if self.are_trials else columns * self.root_counts[:, None]

    def responses(self, y: np.ndarray) -> np.ndarray:
        """Numbers of trials (as columns) as weighted numbers of rows."""
        if self.are_trials:
            return y
        return _sums(y, self.point_of, len(self.root_counts)) / self.root_counts[:, None]


def rows_of_trials(num_trials: int) -> Rows:
    """Every trial by itself."""
    return Rows(np.arange(num_trials), np.ones(num_trials))


def _sums(columns: np.ndarray, point_of: np.ndarray, num_points: int) -> np.ndarray:
    order = np.argsort(point_of, kind="stable")
    starts = np.searchsorted(point_of[order], np.arange(num_points))
    return np.add.reduceat(columns[order], starts, axis=0)


class Base:
    """Columns that several questions share."""

    def __init__(self, columns: np.ndarray, rows: Rows) -> None:
        self.rows = rows
        self.columns = rows.weighted(columns)
        self.norms = _norms(self.columns)
        self.basis, self.triangle = np.linalg.qr(self.columns / self.norms)

    def with_further(self, further: np.ndarray | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Basis, triangle and norms with further columns: those are made orthogonal to the basis that is there."""
        if further is None:
            return self.basis, self.triangle, self.norms
        weighted = self.rows.weighted(further)
        norms = _norms(weighted)
        rest, along = weighted / norms, np.zeros((self.basis.shape[1], weighted.shape[1]))
        for _ in range(2):  # once more: one pass loses digits where columns are nearly alike
            step = self.basis.T @ rest
            rest, along = rest - self.basis @ step, along + step
        basis, corner = np.linalg.qr(rest)
        triangle = np.block([[self.triangle, along], [np.zeros((len(corner), len(self.triangle))), corner]])
        return np.hstack([self.basis, basis]), triangle, np.concatenate([self.norms, norms])

    def __len__(self) -> int:
        return len(self.columns)


def _norms(columns: np.ndarray) -> np.ndarray:
    return np.maximum(np.linalg.norm(columns, axis=0), 1e-300)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimand:
    """Contrasts of one model: of the base's columns, then of further ones. Questions with one key are one question."""

    key: Key
    base: Base
    further: np.ndarray | None = None
    """(rows, columns), none a mix of the base's and the others."""
    contrasts: np.ndarray
    """(contrasts, all columns): what is added up of the coefficients."""
    is_tested: bool = True
    """Whether it may be found; a constant of a law is estimated only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The estimates of a question and how sure they are."""

    intervals: tuple[Interval, ...]
    """95 %, for all contrasts of the question together; in the order in which they were asked."""
    strongest: int
    """The contrast that stands for all: the surest, or (`by_size`) the largest of the sure ones."""
    p: float
    """The chance that anything of the report looks this large when nothing is there."""
    p_alone: float
    """The same of this question alone."""
    multiples: tuple[float, ...]
    """How many standard errors the interval of each contrast goes to either side."""
    is_behind_a_step: bool = False
    """Whether it would be found, were it not for a step in time that fits as well."""

    @property
    def is_found(self) -> bool:
        """Within the error rate of the report, and without zero in the interval."""
        _, low, high = self.change
        return self.p <= ERROR_RATE and not low <= 0 <= high

    @property
    def change(self) -> Interval:
        """The strongest contrast."""
        return self.intervals[self.strongest]

    def by_size(self) -> Estimate:
        """The same, with the largest contrast without zero in its interval to stand for all: between forty options the
        surest difference may be a small one."""
        sizes = [abs(middle) if low > 0 or high < 0 else -1.0 for middle, low, high in self.intervals]
        largest = replace(self, strongest=int(np.argmax(sizes)))
        return replace(largest, is_behind_a_step=False) if largest.is_found else self

    @property
    def reach(self) -> float:
        """How far from zero any contrast may be, by its interval."""
        return max(max(abs(low), abs(high)) for _, low, high in self.intervals)


def scatter_of_points(base: Base, points: Rows, y: np.ndarray) -> np.ndarray | None:
    """For every trial how far the repeats of its point scatter around what the base says; None where none do. A point
    without repeats is taken to scatter as the others do."""
    left = y - base.basis @ (base.basis.T @ y)
    squares = np.bincount(points.point_of, left**2)
    freedom = np.bincount(points.point_of, 1 - (base.basis**2).sum(axis=1))
    common = squares.sum() / max(freedom.sum(), 1e-300)
    if common <= _ROUNDING**2 * np.mean((y - y.mean()) ** 2):
        return None
    own = np.where(freedom > _LEAST_FREEDOM, squares / np.maximum(freedom, _LEAST_FREEDOM), common)
    return np.sqrt(np.maximum(own, _LEAST_SCATTER**2 * common))[points.point_of]


def answer(questions: Sequence[Estimand], y: np.ndarray, scatter: np.ndarray | None = None) -> dict[Key, Estimate]:
    """Estimate all questions of a report at once; `scatter` is the standard deviation of the noise of every trial, up
    to a factor, where it is known."""
    if not questions:
        return {}
    prepared = [_Prepared(question) for question in questions]
    scale = float(np.sqrt(np.mean((y - y.mean()) ** 2))) or 1.0
    centred = (y - y.mean()) / scale
    statistics = np.hstack([_statistics(prepared, block) for block in _blocks(centred, scatter)])
    values, errors = _observed(prepared, y, scale)
    deviates, tails = _normalised(statistics)
    places = _places(prepared)
    limits = {key: float(np.quantile(deviates[rows, 1:].max(axis=0), 1 - ERROR_RATE)) for key, rows in places.items()}
    ratios = {key: deviates[rows].max(axis=0) / limits[key] for key, rows in places.items()}
    tested = {question.key for question in questions if question.is_tested}
    largest = np.max([np.zeros(statistics.shape[1] - 1), *(ratios[key][1:] for key in tested)], axis=0)
    answers = {}
    for key, rows in places.items():
        multiples = [tails[row].quantile(limits[key]) for row in rows]
        half = errors[rows] * np.array(multiples)
        answers[key] = Estimate(
            intervals=tuple((float(v), float(v - h), float(v + h)) for v, h in zip(values[rows], half, strict=True)),
            strongest=int(np.argmax(deviates[rows, 0])),
            p=_chance(ratios[key][0], largest) if key in tested else 1.0,
            p_alone=_chance(ratios[key][0], ratios[key][1:]),
            multiples=tuple(multiples),
        )
    return answers


def _chance(observed: float, by_chance: np.ndarray) -> float:
    return (1 + int((by_chance >= observed).sum())) / (len(by_chance) + 1)


class _Prepared:
    """A question as vectors: what estimates each contrast, and what its standard error is made of."""

    def __init__(self, question: Estimand) -> None:
        base = question.base
        self.question, self.rows = question, base.rows
        basis, triangle, norms = base.with_further(question.further)
        self.further = basis[:, base.columns.shape[1] :]
        self.estimators = np.linalg.solve(triangle.T, (question.contrasts / norms).T).T @ basis.T
        leverage = (basis**2).sum(axis=1)
        is_pooled = leverage > POOLED_LEVERAGE
        squares = self.estimators**2
        self.weights = np.where(is_pooled, 0.0, squares / np.maximum(1 - leverage, 1e-3) ** 2)
        self.pooled = squares[:, is_pooled].sum(axis=1)
        self.least = _ROUNDING**2 * squares.sum(axis=1)
        self.df = max(len(basis) - basis.shape[1], 1)

    def variances(self, left: _Left) -> np.ndarray:
        """(responses, contrasts), from what the base leaves of some responses."""
        squares = left.squares
        if self.further.shape[1]:
            squares = _squares(left.rest - (left.rest @ self.further) @ self.further.T)
        pooled = squares.sum(axis=1)[:, None] / self.df * self.pooled if self.pooled.any() else 0.0
        return squares @ self.weights.T + pooled + self.least


class _Left:
    """Responses, a row each, and what a base leaves of them: worked out once for all questions on that base."""

    def __init__(self, base: Base, y: np.ndarray) -> None:
        self.responses = base.rows.responses(y.T).T
        self.rest = self.responses - (self.responses @ base.basis) @ base.basis.T
        self.squares = _squares(self.rest)


def _squares(numbers: np.ndarray) -> np.ndarray:
    return numbers * numbers


def _blocks(centred: np.ndarray, scatter: np.ndarray | None) -> Iterator[np.ndarray]:
    """The data, then draws of noise, a row each; the seed is fixed, so is the answer."""
    n = len(centred)
    yield centred[None, :]
    left = 1999 if n <= 400 else 999 if n <= 3000 else 499
    generator = np.random.default_rng(SEED)
    while left:
        size = min(left, max(1, _CHUNK_NUMBERS // n))
        noise = generator.standard_normal((size, n))
        yield noise if scatter is None else noise * scatter
        left -= size


def _statistics(prepared: list[_Prepared], y: np.ndarray) -> np.ndarray:
    """Estimate by standard error: (contrasts, rows of y)."""
    left: dict[int, _Left] = {}
    parts = []
    for each in prepared:
        base = each.question.base
        if id(base) not in left:
            left[id(base)] = _Left(base, y)
        found = left[id(base)]
        parts.append(found.responses @ each.estimators.T / np.sqrt(each.variances(found)))
    return np.abs(np.hstack(parts)).T


def _observed(prepared: list[_Prepared], y: np.ndarray, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Estimates and standard errors of all contrasts, in bytes."""
    values, errors = [], []
    for each in prepared:
        found = _Left(each.question.base, y[None, :] / scale)
        values.append((found.responses @ each.estimators.T)[0] * scale)
        errors.append(np.sqrt(each.variances(found))[0] * scale)
    return np.concatenate(values), np.concatenate(errors)


def _places(prepared: list[_Prepared]) -> dict[Key, list[int]]:
    """For every key the rows of its contrasts."""
    places: dict[Key, list[int]] = {}
    row = 0
    for each in prepared:
        count = len(each.estimators)
        places.setdefault(each.question.key, []).extend(range(row, row + count))
        row += count
    return places


@dataclass(frozen=True, slots=True)
class _Tail:
    """A t distribution, scaled, that a statistic follows by chance."""

    df: float
    scale: float

    def deviate(self, statistic: np.ndarray) -> np.ndarray:
        """The same on the scale of a normal deviate (Wallace 1959)."""
        t = statistic / self.scale
        return (8 * self.df + 1) / (8 * self.df + 3) * np.sqrt(self.df * np.log1p(t * t / self.df))

    def quantile(self, deviate: float) -> float:
        """The statistic at a normal deviate."""
        z = deviate * (8 * self.df + 3) / (8 * self.df + 1)
        return self.scale * float(np.sqrt(self.df * np.expm1(min(z * z / self.df, 500.0))))


def _normalised(statistics: np.ndarray) -> tuple[np.ndarray, list[_Tail]]:
    middle, far = np.quantile(statistics[:, 1:], [0.5, 1 - ERROR_RATE], axis=1)
    tails = [_tail(float(m), float(f)) for m, f in zip(middle, far, strict=True)]
    return np.array([tail.deviate(row) for tail, row in zip(tails, statistics, strict=True)]), tails


def _tail(middle: float, far: float) -> _Tail:
    ratios, dfs, quantiles = _t_table()
    # Ratios fall with the degrees of freedom; np.interp wants them to rise.
    df = float(np.exp(np.interp(far / max(middle, 1e-300), ratios[::-1], np.log(dfs)[::-1])))
    return _Tail(df, far / float(np.interp(np.log(df), np.log(dfs), quantiles)))


@cache
def _t_table() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The far quantile by the middle one, for degrees of freedom from few to many."""
    dfs = np.array([0.6, 0.8, 1.0, 1.3, 1.7, 2.2, 3.0, 4.0, 5.5, 8.0, 12.0, 20.0, 40.0, 120.0, 1000.0])
    far = np.array([t_quantile(float(df)) for df in dfs])
    middle = np.array([t_quantile(float(df), 0.5) for df in dfs])
    return far / middle, dfs, far
