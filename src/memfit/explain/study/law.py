"""Fit of the law bytes = a + b * parameters + c * batch * activations to the trials of a study.

Fitted by least squares over points and judged on points it has not seen: each is predicted from all the others (PRESS;
Allen 1974), and what counts is how much better that goes than without the law's terms. A term whose interval
holds zero, or lies below it (no number takes negative bytes), is left out and the rest is fitted again. A law that
predicts less than four fifths of the differences between points, or has no term left, is not called one. The networks'
own size is also counted from assumptions, to see whether it could make such differences at all.

Law of a study's peak memory as a record, for the figure it is drawn into.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memfit.explain.study.statistics.design import Design, beside_points, design_of
from memfit.explain.study.statistics.inference import Base, Estimand, Estimate, Interval, Key, answer
from memfit.explain.study.statistics.regression import orthonormal, rank_of
from memfit.explain.study.table import Table, table_of
from memfit.records.study import Study
from memfit.records.study_findings import MemoryLaw

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


BATCH_NAMES = ("batch_size", "batch", "batchsize")
TERMS: tuple[str, str] = ("parameter", "activation and example")
BASE: Key = ("law", "base")


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """The fitted law, without the terms that may be zero."""

    questions: tuple[Estimand, ...]
    """One for each term that is left, and one for the base."""
    alone: dict[Key, Estimate]
    """Their answers where nothing else is asked."""
    terms: tuple[str, ...]
    """Those that are left."""
    left_out: tuple[tuple[str, Interval], ...]
    """Terms that were left out, with the interval that was the reason."""
    predicted: float
    """The share of the variance that is predicted on points left out; below zero when the mean predicts better."""
    typical_error_bytes: float
    explained_bytes: np.ndarray
    """What the terms give for each point."""

    @property
    def predicts(self) -> bool:
        return bool(self.terms) and self.predicted >= PREDICTS

    def holds(self, answers: dict[Key, Estimate]) -> bool:
        """Whether it predicts, and at least one of its terms stands out in the whole report."""
        return self.predicts and any(answers[term_key(term)].is_found for term in self.terms)


def term_key(term: str) -> Key:
    """Of the question on one coefficient."""
    return ("law", term)


def fit_law(table: Table, design: Design, covariates: np.ndarray) -> Law | str:
    """The law beside covariates (such as a step in the order), or why it cannot be fitted."""
    sizes = network_columns(table)
    if isinstance(sizes, str):
        return sizes
    points = dict(zip(TERMS, design.points.means(np.column_stack(sizes)).T, strict=True))
    terms = [term for term in TERMS if np.ptp(points[term]) > 1e-9 * max(abs(points[term]).max(), 1)]
    if not terms:
        return "neither the number of parameters nor batch times activations varied"
    beside = beside_points(design, covariates)
    num_columns = beside.shape[1] + len(terms)
    if design.num_points < max(MIN_TRIALS, num_columns + 4):
        return f"{design.num_points} different points; {max(MIN_TRIALS, num_columns + 4)} or more are needed"
    if rank_of(np.column_stack([beside, *(points[term] for term in terms)])) < num_columns:
        return "parameters and batch times activations moved together"
    return _without_doubtful(points, terms, beside, design, table.memory_bytes)


def _without_doubtful(
    points: dict[str, np.ndarray], terms: list[str], beside: np.ndarray, design: Design, y: np.ndarray
) -> Law:
    """Leave out the most doubtful term until all that are left lie above zero."""
    left_out: list[tuple[str, Interval]] = []
    while True:
        questions = _questions(points, terms, beside, design)
        found = answer(questions, y)
        doubtful = [term for term in terms if found[term_key(term)].change[1] <= 0]
        if not doubtful:
            break
        # Below zero is impossible and goes first; then what is known least.
        worst = min(doubtful, key=lambda term: _doubt(found[term_key(term)].change))
        left_out.append((worst, found[term_key(worst)].change))
        terms = [term for term in terms if term != worst]
    rows = design.points
    model = rows.weighted(np.column_stack([beside, *(points[term] for term in terms)]))
    weighted = rows.responses(y[:, None])[:, 0]
    errors = _errors_left_out(model, weighted) / rows.root_counts
    without = _errors_left_out(rows.weighted(beside), weighted) / rows.root_counts
    slopes = [found[term_key(term)].change[0] for term in terms]
    return Law(
        questions=tuple(questions),
        alone=found,
        terms=tuple(terms),
        left_out=tuple(left_out),
        predicted=1 - float((errors**2).sum() / max((without**2).sum(), 1e-300)),
        typical_error_bytes=float(np.sqrt(np.mean(errors**2))),
        explained_bytes=np.sum([b * points[term] for b, term in zip(slopes, terms, strict=True)], axis=0)
        if terms
        else np.zeros(design.num_points),
    )


def _doubt(change: Interval) -> float:
    """Small for a term that is surely below zero, and for one that is wide beside its middle."""
    middle, low, high = change
    return middle / max(high - low, 1e-300)


def _questions(points: dict[str, np.ndarray], terms: list[str], beside: np.ndarray, design: Design) -> list[Estimand]:
    base = Base(np.column_stack([beside, *(points[term] for term in terms)]), design.points)
    places = {BASE: 0} | {term_key(term): beside.shape[1] + place for place, term in enumerate(terms)}
    width = beside.shape[1] + len(terms)
    return [
        Estimand(key=key, base=base, contrasts=np.eye(width)[[place]], is_tested=key != BASE)
        for key, place in places.items()
    ]


def network_columns(table: Table) -> tuple[np.ndarray, np.ndarray] | str:
    """Parameters, and batch times activations, of every trial; or what is missing."""
    sizes = {"num_parameters": table.num_parameters, "num_activations": table.num_activations}
    missing = {name: int(np.isnan(column).sum()) for name, column in sizes.items() if np.isnan(column).any()}
    if all(missing.get(name) == len(table) for name in sizes):
        return "the trials did not report the size of their networks (num_parameters, num_activations)"
    if missing:
        counts = ", ".join(f"{name} in {count} of {len(table)}" for name, count in missing.items())
        return f"the trials did not all report the size of their networks: {counts} is missing"
    batch = np.array([_batch_of(row) for row in table.values])
    if np.isnan(batch).any():
        return "no hyperparameter is called batch_size"
    return table.num_parameters, batch * table.num_activations


def _batch_of(row: dict) -> float:
    for name in BATCH_NAMES:
        if isinstance(row.get(name), (int, float)):
            return float(row[name])
    return float("nan")


def _errors_left_out(columns: np.ndarray, y: np.ndarray) -> np.ndarray:
    """How far each row lies from what all the others predict for it."""
    basis = orthonormal(columns)
    leverage = np.minimum((basis**2).sum(axis=1), 1 - 1e-9)
    return (y - basis @ (basis.T @ y)) / (1 - leverage)


def own_bytes(table: Table) -> np.ndarray | None:
    """What each network's own numbers take, by the assumptions above; None when its size is not known."""
    sizes = network_columns(table)
    if isinstance(sizes, str):
        return None
    return BYTES_PER_PARAMETER * sizes[0] + BYTES_PER_ACTIVATION * sizes[1]


NO_LAW = "none of the form a + b * parameters + c * batch * activations shows in these numbers"


def memory_law(study: Study) -> MemoryLaw | str:
    """The law of a study as `explain` fits it, without terms that may be zero; or why there is none."""
    table = table_of(study, "peak")
    law = fit_law(table, design_of(table), np.empty((len(table), 0))) if len(table) else "no trial has a number"
    if isinstance(law, str):
        return law
    found = law.alone
    if not law.holds(found):
        return NO_LAW
    terms = [found[term_key(term)].change[0] if term in law.terms else None for term in TERMS]
    return MemoryLaw(base_bytes=found[BASE].change[0], bytes_per_parameter=terms[0], bytes_per_activation=terms[1])
