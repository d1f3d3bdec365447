"""Linear regression over trials: variance explained beyond other columns, with its significance.

Least squares by QR. A test of columns compares the fit with and without them (an F value), brought to the scale of a
normal deviate (Wilson and Hilferty 1931; Paulson 1942), so that tests of one and of several columns can be compared.
How large the largest of many such values gets by chance is found by shuffling (Huh and Jhun 2001 beside covariates,
Freedman and Lane 1983 where trials are many; Westfall and Young 1993 for the largest): dependence between the tests
and odd distributions are paid for as they are. Intervals use variances that need not be the same in every trial (HC3;
MacKinnon and White 1985).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memfit.explain.student import t_quantile

NUM_SHUFFLES = 1999
MANY_TRIALS = 300
"""With more trials than this, half as many shuffles, to keep the time in bounds."""
_SEED = 20_260_501
_RANK_TOLERANCE = 1e-9


def with_intercept(*parts: np.ndarray) -> np.ndarray:
    """A column of ones and the given columns."""
    num_rows = len(parts[0])
    return np.hstack([np.ones((num_rows, 1)), *(part.reshape(num_rows, -1) for part in parts)])


def rank_of(columns: np.ndarray) -> int:
    """How many of the columns say something of their own."""
    if columns.shape[1] == 0:
        return 0
    scaled = columns / np.maximum(np.linalg.norm(columns, axis=0), 1e-300)
    return int(np.linalg.matrix_rank(scaled, tol=1e-6))


def independent(columns: np.ndarray) -> np.ndarray:
    """The columns, one after the other, without those that are a mix of the ones before."""
    kept = columns[:, :0]
    basis = columns[:, :0]
    for place in range(columns.shape[1]):
        column = columns[:, place]
        rest = column - basis @ (basis.T @ column)
        rest = rest - basis @ (basis.T @ rest)  # once more: one pass loses digits where columns are nearly alike
        if np.linalg.norm(rest) > 1e-6 * max(float(np.linalg.norm(column)), 1e-300):
            kept = np.column_stack([kept, column])
            basis = np.column_stack([basis, rest / np.linalg.norm(rest)])
    return kept


def orthonormal(columns: np.ndarray) -> np.ndarray:
    """An orthonormal basis of what the columns span; none of the columns may be a mix of the others."""
    return np.linalg.qr(columns / np.maximum(np.linalg.norm(columns, axis=0), 1e-300))[0]


def residuals(columns: np.ndarray, y: np.ndarray) -> np.ndarray:
    """What is left of y (one or many columns) after the columns have explained what they can."""
    basis = orthonormal(columns)
    return y - basis @ (basis.T @ y)


def explained_share(columns: np.ndarray, y: np.ndarray) -> float:
    """The share of the variance of y around its mean that columns (with an intercept) explain."""
    total = float(((y - y.mean()) ** 2).sum())
    return 1 - float((residuals(columns, y) ** 2).sum()) / total if total > 0 else 0.0


def deviates(others: np.ndarray, tested: np.ndarray, y: np.ndarray) -> np.ndarray:
    """For every column of y: how surprising is what `tested` explains beyond `others`, as a normal deviate."""
    basis = orthonormal(np.hstack([others, tested]))
    num_tested, df = tested.shape[1], len(y) - basis.shape[1]
    parts = basis.T @ y
    explained = (parts[-num_tested:] ** 2).sum(axis=0) / num_tested
    total = (y**2).sum(axis=0)
    left = np.maximum(total - (parts**2).sum(axis=0), _RANK_TOLERANCE**2 * total + 1e-300) / df
    return _as_deviate(explained / left, num_tested, df)


def _as_deviate(f: np.ndarray, df_1: int, df_2: int) -> np.ndarray:
    """An F value as a normal deviate (one-sided: large is surprising)."""
    root, a, b = np.cbrt(f), 2 / (9 * df_1), 2 / (9 * df_2)
    return ((1 - b) * root - (1 - a)) / np.sqrt(b * root**2 + a)


def shuffled(y: np.ndarray, covariates: np.ndarray) -> np.ndarray:
    """What covariates leave of y, and shuffles of it, as columns; the first is the data themselves."""
    rest = residuals(covariates, y)
    if covariates.shape[1] == 1 or len(y) > MANY_TRIALS:
        return np.column_stack([rest, _permuted(rest)])
    # What is left of n trials after p columns has n - p directions; along these it can be shuffled without its being
    # squeezed together by what was taken out.
    directions = np.linalg.qr(covariates, mode="complete")[0][:, covariates.shape[1] :]
    return np.column_stack([rest, directions @ _permuted(directions.T @ y)])


def _permuted(values: np.ndarray) -> np.ndarray:
    """Shuffles as columns; the seed is fixed, so is the answer."""
    num_shuffles = NUM_SHUFFLES if len(values) <= MANY_TRIALS else NUM_SHUFFLES // 2
    generator = np.random.default_rng(_SEED)
    return values[generator.permuted(np.tile(np.arange(len(values)), (num_shuffles, 1)), axis=1)].T


def chance_of(observed: float, by_chance: np.ndarray) -> float:
    """The share of shuffles, with the data themselves counted in, that reach the observed value."""
    return (1 + int((by_chance >= observed * (1 - 1e-9) if observed > 0 else by_chance >= observed).sum())) / (
        len(by_chance) + 1
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Slopes:
    """Coefficients of a fit, and how sure they are."""

    values: np.ndarray
    covariance: np.ndarray
    df: int

    def combined(self, weights: np.ndarray) -> tuple[float, float, float]:
        """A weighted sum of the coefficients with its 95 % interval."""
        middle = float(weights @ self.values)
        half = t_quantile(self.df) * float(np.sqrt(max(weights @ self.covariance @ weights, 0.0)))
        return middle, middle - half, middle + half


def slopes(columns: np.ndarray, y: np.ndarray) -> Slopes:
    """Least squares with HC3 covariance."""
    inverse = np.linalg.pinv(columns)
    values = inverse @ y
    leverage = np.minimum(np.einsum("ij,ji->i", columns, inverse), 1 - 1e-9)
    errors = (y - columns @ values) / (1 - leverage)
    covariance = (inverse * errors**2) @ inverse.T
    return Slopes(values=values, covariance=covariance, df=len(y) - columns.shape[1])
