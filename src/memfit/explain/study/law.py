"""Fit of the law bytes = a + b * parameters + c * batch * activations to the trials of a study.

Fitted by least squares and judged on trials it has not seen: each trial is predicted from all the others (PRESS; Allen
1974), and what counts is how much better that goes than without the law's terms. A law that predicts less than four
fifths of the differences between trials, or has a term that is surely below zero or none that is surely above, is not
called one. The networks' own size is also counted from assumptions, to see whether it could make such differences at
all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memfit.explain.study.regression import rank_of, slopes, with_intercept
from memfit.explain.study.table import Table

MIN_TRIALS = 8
PREDICTS = 0.8
BYTES_PER_PARAMETER = 16
"""Assumed: a weight, its gradient and Adam's two moments, 4 bytes each."""
BYTES_PER_ACTIVATION = 8
"""Assumed: a value and its gradient, 4 bytes each."""
MEANINGS = {
    8: "a weight and its gradient",
    12: "a weight, its gradient and a momentum",
    16: "a weight, its gradient and Adam's two moments",
}

Interval = tuple[float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """The fitted law; each coefficient with its 95 % interval."""

    base_bytes: Interval
    per_parameter: Interval | None
    """None when the number of parameters did not vary."""
    per_activation: Interval | None
    predicted: float
    """The share of the variance that is predicted on trials left out; below zero when the mean predicts better."""
    typical_error_bytes: float
    holds: bool


def fit_law(table: Table, covariates: np.ndarray) -> Law | str:
    """The law beside covariates (such as a step in the order), or why it cannot be fitted."""
    sizes = network_columns(table)
    if isinstance(sizes, str):
        return sizes
    used = [np.ptp(column) > 1e-9 * max(abs(column).max(), 1) for column in sizes]
    columns = [column[:, None] for column, is_used in zip(sizes, used, strict=True) if is_used]
    if not columns:
        return "neither the number of parameters nor batch times activations varied"
    parts = [*columns, covariates] if covariates.size else columns
    model = with_intercept(*parts)
    if len(table) < MIN_TRIALS or len(table) - model.shape[1] < 4:
        return f"{len(table)} trials; {max(MIN_TRIALS, model.shape[1] + 4)} or more are needed"
    scale = np.maximum(np.abs(model).max(axis=0), 1e-300)
    if rank_of(model / scale) < model.shape[1]:
        return "parameters and batch times activations moved together"
    beside = with_intercept(covariates) if covariates.size else np.ones((len(table), 1))
    return _fitted(model / scale, scale, beside, used, table.memory_bytes)


def network_columns(table: Table) -> tuple[np.ndarray, np.ndarray] | str:
    """Parameters, and batch times activations, of every trial; or what is missing."""
    if np.isnan(table.num_parameters).any() or np.isnan(table.num_activations).any():
        return "the trials did not report the size of their networks (num_parameters, num_activations)"
    batch = np.array([_batch_of(row) for row in table.values])
    if np.isnan(batch).any():
        return "no hyperparameter is called batch_size"
    return table.num_parameters, batch * table.num_activations


def _batch_of(row: dict) -> float:
    for name in ("batch_size", "batch", "batchsize"):
        if isinstance(row.get(name), (int, float)):
            return float(row[name])
    return float("nan")


def _errors_left_out(columns: np.ndarray, y: np.ndarray) -> np.ndarray:
    """How far each trial lies from what all the others predict for it."""
    inverse = np.linalg.pinv(columns)
    leverage = np.minimum(np.einsum("ij,ji->i", columns, inverse), 1 - 1e-9)
    return (y - columns @ (inverse @ y)) / (1 - leverage)


def _fitted(model: np.ndarray, scale: np.ndarray, beside: np.ndarray, used: list[bool], y: np.ndarray) -> Law:
    """`model` was divided by `scale`; `beside` is the model without the law's terms."""
    fit = slopes(model, y)
    errors, without = _errors_left_out(model, y), _errors_left_out(beside, y)
    predicted = 1 - float((errors**2).sum() / max((without**2).sum(), 1e-300))

    def coefficient(place: int) -> Interval:
        weights = np.zeros(len(scale))
        weights[place] = 1 / scale[place]
        return fit.combined(weights)

    places = np.cumsum([1, *used])[:2]
    terms = [coefficient(int(place)) if is_used else None for place, is_used in zip(places, used, strict=True)]
    known = [term for term in terms if term is not None]
    is_physical = any(low > 0 for _, low, _ in known) and all(high >= 0 for _, _, high in known)
    return Law(
        base_bytes=coefficient(0),
        per_parameter=terms[0],
        per_activation=terms[1],
        predicted=predicted,
        typical_error_bytes=float(np.sqrt(np.mean(errors**2))),
        holds=predicted >= PREDICTS and is_physical,
    )


def own_bytes(table: Table) -> np.ndarray | None:
    """What each network's own numbers take, by the assumptions above; None when its size is not known."""
    sizes = network_columns(table)
    if isinstance(sizes, str):
        return None
    return BYTES_PER_PARAMETER * sizes[0] + BYTES_PER_ACTIVATION * sizes[1]
