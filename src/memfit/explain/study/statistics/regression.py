"""Least squares over trials: what columns explain, and what they leave.

By QR, on columns of length one, so that hyperparameters of very different size do not spoil the digits.
"""

from __future__ import annotations

import numpy as np


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


def adds_columns(basis: np.ndarray, columns: np.ndarray) -> bool:
    """Whether none of the columns is a mix of an orthonormal basis and of the others."""
    norms = np.linalg.norm(columns, axis=0)
    rest = columns - basis @ (basis.T @ columns)
    if np.any(np.linalg.norm(rest, axis=0) <= 1e-6 * np.maximum(norms, 1e-300)):
        return False
    return columns.shape[1] == 1 or rank_of(rest) == columns.shape[1]
