"""Intervals of effects that allow for a step or drift in time which the trials cannot exclude.

A hyperparameter that changes along with time (a grid in its own order, a tuner that moves to larger networks) may owe
its effect to a step in the order of recording that is too small, or too much in line with it, to be found. So every
interval is the union of the intervals beside all steps (and no step) that fit about as well as the best one does. A
hyperparameter that was changed independently of time loses next to nothing by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from memfit.explain.study.statistics.inference import Estimand, Estimate, Interval, Key, Rows

AS_GOOD = 1.0
"""Two steps fit about as well when twice the difference of their log-likelihoods is below this."""
HINT = 4.0
"""A step that improves twice the log-likelihood by less than this has left no trace, and is not allowed for."""
SEPARATE = 0.02
"""A step of which the hyperparameters leave less than this share says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fit:
    """The model without a step, over weighted rows."""

    basis: np.ndarray
    left: np.ndarray
    """What it leaves of memory."""
    leverage: np.ndarray
    df: int


def with_unseen_steps(
    answers: dict[Key, Estimate],
    questions: Sequence[Estimand],
    steps: np.ndarray,
    y: np.ndarray,
    *,
    step_place: int | None,
    none_is_plausible: bool,
) -> dict[Key, Estimate]:
    """The answers to questions of one model, widened; `steps` are columns over trials, and `step_place` says which
    column of the model is a step already."""
    if not questions or not steps.shape[1]:
        return {}
    base = questions[0].base
    columns = base.columns if step_place is None else np.delete(base.columns, step_place, axis=1)
    rows: Rows = base.rows
    response = rows.responses(y[:, None])[:, 0]
    fit = _fitted(columns, response)
    candidates = _plausible(rows.weighted(rows.means(steps)), fit, none_is_plausible)
    widened = {}
    for question in questions:
        contrasts = question.contrasts if step_place is None else np.delete(question.contrasts, step_place, axis=1)
        values, errors = _beside(contrasts, columns, candidates, fit, response, none_is_plausible)
        widened[question.key] = _union(answers[question.key], values, errors)
    return widened


def _fitted(columns: np.ndarray, response: np.ndarray) -> _Fit:
    basis = np.linalg.qr(columns / np.maximum(np.linalg.norm(columns, axis=0), 1e-300))[0]
    left = response - basis @ (basis.T @ response)
    return _Fit(basis=basis, left=left, leverage=(basis**2).sum(axis=1), df=max(len(response) - basis.shape[1], 1))


def _plausible(steps: np.ndarray, fit: _Fit, none_is_plausible: bool) -> np.ndarray:
    """What the model leaves of the steps that fit about as well as the best one."""
    rest = steps - fit.basis @ (fit.basis.T @ steps)
    sizes = (rest**2).sum(axis=0)
    is_separate = sizes > SEPARATE * ((steps - steps.mean(axis=0)) ** 2).sum(axis=0)
    steps, rest, sizes = steps[:, is_separate], rest[:, is_separate], sizes[is_separate]
    if not rest.shape[1]:
        return rest
    total = max(float((fit.left**2).sum()), 1e-300)
    squares = np.maximum(total - (rest.T @ fit.left) ** 2 / sizes, 1e-12 * total)
    if none_is_plausible and fit.df * np.log(total / squares.min()) < HINT:
        return steps[:, :0]
    return steps[:, fit.df * np.log(squares / squares.min()) <= AS_GOOD]


def _beside(
    contrasts: np.ndarray,
    columns: np.ndarray,
    steps: np.ndarray,
    fit: _Fit,
    response: np.ndarray,
    none_is_plausible: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """Estimates and standard errors (contrasts, models): beside each step, and beside none where that is plausible."""
    norms = np.maximum(np.linalg.norm(columns, axis=0), 1e-300)
    basis, triangle = np.linalg.qr(columns / norms)
    estimators = np.linalg.solve(triangle.T, (contrasts / norms).T).T @ basis.T
    values, errors = [], []
    if none_is_plausible:
        values.append(estimators @ response)
        errors.append(_errors(estimators, fit.left, fit.leverage))
    for step in steps.T:
        rest = step - basis @ (basis.T @ step)
        size = float(rest @ rest)
        shifted = estimators - np.outer(estimators @ step, rest / size)
        left = fit.left - rest * float(rest @ fit.left / size)
        values.append(shifted @ response)
        errors.append(_errors(shifted, left, fit.leverage + rest**2 / size))
    if not values:
        return np.empty((len(contrasts), 0)), np.empty((len(contrasts), 0))
    return np.array(values).T, np.array(errors).T


def _errors(estimators: np.ndarray, left: np.ndarray, leverage: np.ndarray) -> np.ndarray:
    """HC3."""
    return np.sqrt(estimators**2 @ (left / np.maximum(1 - leverage, 0.05)) ** 2)


def _union(found: Estimate, values: np.ndarray, errors: np.ndarray) -> Estimate:
    """The interval of each contrast over all models."""
    intervals: list[Interval] = []
    for place, (middle, low, high) in enumerate(found.intervals):
        half = errors[place] * found.multiples[place]
        lows, highs = values[place] - half, values[place] + half
        intervals.append((middle, float(min([low, *lows])), float(max([high, *highs]))))
    widened = replace(found, intervals=tuple(intervals))
    return replace(widened, is_behind_a_step=found.is_found and not widened.is_found)
