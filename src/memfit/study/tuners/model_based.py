"""Model-based tuners: Parzen estimator (TPE) and Gaussian process.

Memory of a point judged by the trials nearest to it: does it look too large.

A tuner's model is about the metric; that a point does not fit reaches it late, and the best points often lie at the
edge. So a tuner that draws from a model draws a few times, and takes the first point whose nearest known trials all
fit, or else the one with the fewest that do not. In `benchmarks/study/constraint_toy.py` it takes the runs that die of
memory from 33 % to 20 %, at the same best value. Every point stays possible: only the choice between draws is changed.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from memfit.errors import MissingExtra, UsageError
from memfit.records.study import Bell, Choice, Integers, Nested, Opaque, Parameter, SearchSpace, Span
from memfit.study.engine.history import History, num_objectives
from memfit.study.space.random_points import generator_for
from memfit.study.space.space import Draws, walk_all
from memfit.study.tuners.base import Answer, NoMore, proposal_for, take_argument
from memfit.study.tuners.random_search import Unique

NUM_STARTUP = 20
"""As NNI's TPE: so many points are drawn at random before there is a model."""
_TPE_ARGUMENTS = {
    "constant_liar_type",
    "n_startup_jobs",
    "n_ei_candidates",
    "linear_forgetting",
    "prior_weight",
    "gamma",
}


class ModelTuner:
    """Asks Optuna, keeps away from where memory ran out, and never proposes the same parameters twice."""

    def __init__(self, space: SearchSpace, seed: int, *, model: str, arguments: dict[str, Any]) -> None:
        self.space = space
        self.seed = seed
        self.unique = Unique(space)
        self.sampler = _sampler(space, model, arguments)
        self.models_memory = model == "gp"
        """A Gaussian process is fitted to the constraint as well, and a draw of it takes a second."""

    def propose(self, history: History, number: int) -> Answer:
        draws = self.unique.instead_of(self._draw(history, number), history)
        if draws is None:
            return NoMore("every point of the space was tried")
        return proposal_for(self.space, number, draws)

    def _draw(self, history: History, number: int) -> Draws:
        if self.models_memory:
            return self._suggest(history, number, 0)
        return first_that_fits(self.space, history, lambda attempt: self._suggest(history, number, attempt))

    def _suggest(self, history: History, number: int, attempt: int) -> Draws:
        from memfit.study.tuners.optuna_points import suggest

        return suggest(
            self.space,
            history,
            num_objectives=num_objectives(history.settings),
            seed=optuna_seed(self.seed, number, attempt),
            sampler=self.sampler,
        )


def optuna_seed(seed: int, number: int, attempt: int) -> int:
    """Optuna's samplers take 32 bits."""
    return int(generator_for(seed, number, attempt).integers(2**32))


def require_optuna() -> None:
    """Say what to install, before anything is started."""
    if importlib.util.find_spec("optuna") is None:
        raise MissingExtra("this tuner needs optuna", hint="pip install 'memfit[study]', or the tuner Random")


def has_gaussian_process() -> bool:
    """Whether what Optuna's Gaussian process needs is installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("torch", "scipy"))


def _sampler(space: SearchSpace, model: str, arguments: dict[str, Any]) -> Any:
    require_optuna()
    from memfit.study.tuners.optuna_points import gp_factory, tpe_factory

    if model == "gp":
        return gp_factory(take_argument(arguments, "cold_start_num", 10, low=0, high=1e6, tool="the tuner"))
    return tpe_factory(space, tpe_arguments(arguments))


def tpe_arguments(arguments: dict[str, object]) -> dict[str, object]:
    """What of NNI's `tpe_args` has a counterpart."""
    written = arguments.get("tpe_args") or {}
    if not isinstance(written, dict) or not set(written) <= _TPE_ARGUMENTS:
        hint = f"the names are {', '.join(sorted(_TPE_ARGUMENTS))}"
        raise UsageError("TPE: tpe_args is not understood", found=repr(written), hint=hint)
    liar = written.get("constant_liar_type", "best")
    if liar not in ("best", "worst", "mean", None):
        raise UsageError("TPE: constant_liar_type is not best, worst, mean or null", found=repr(liar))
    return {
        "num_startup": take_argument(written, "n_startup_jobs", NUM_STARTUP, low=0, high=1e6, tool="TPE"),
        "num_candidates": take_argument(written, "n_ei_candidates", 24, low=1, high=1e6, tool="TPE"),
        "constant_liar": liar is not None,
    }


NUM_NEIGHBOURS = 3
NUM_DRAWS = 8
_APART = 1.0
"""The distance of two unordered options, or of a parameter that exists at one of the points only."""


def first_that_fits(space: SearchSpace, history: History, draw: Callable[[int], Draws]) -> Draws:
    """Draw until the nearest trials all fit, at most NUM_DRAWS times; `draw` gets how often it was called."""
    known = [(lesson.draws, lesson.is_infeasible) for lesson in history if lesson.violation is not None]
    best = draw(0)
    if len(known) < NUM_NEIGHBOURS or not any(is_bad for _, is_bad in known):
        return best
    places = np.array([_place(space, draws) for draws, _ in known])
    bad = np.array([is_bad for _, is_bad in known])
    fewest = _num_bad(space, best, places, bad)
    for attempt in range(1, NUM_DRAWS):
        if fewest == 0:
            break
        draws = draw(attempt)
        num_bad = _num_bad(space, draws, places, bad)
        if num_bad < fewest:
            best, fewest = draws, num_bad
    return best


def _num_bad(space: SearchSpace, draws: Draws, places: np.ndarray, bad: np.ndarray) -> int:
    """How many of the nearest trials need too much memory."""
    gaps = np.abs(places - np.array(_place(space, draws)))
    gaps[np.isnan(gaps)] = _APART
    unordered = [_is_unordered(parameter) for _, parameter in walk_all(space)]
    gaps[:, unordered] = (gaps[:, unordered] > 0) * _APART
    nearest = np.argsort((gaps**2).sum(axis=1), kind="stable")[:NUM_NEIGHBOURS]
    return int(bad[nearest].sum())


def _place(space: SearchSpace, draws: Draws) -> list[float]:
    """The point in a cube of edge one; nan where a parameter does not exist."""
    return [_coordinate(parameter, draws[path]) if path in draws else math.nan for path, parameter in walk_all(space)]


def _coordinate(parameter: Parameter, draw: float) -> float:
    match parameter:
        case Choice():
            return draw / max(len(parameter.options) - 1, 1)
        case Integers():
            return (draw - parameter.low) / max(parameter.end - 1 - parameter.low, 1)
        case Span(log=True):
            return math.log(draw / parameter.low) / (math.log(parameter.high / parameter.low) or 1.0)
        case Span():
            return (draw - parameter.low) / ((parameter.high - parameter.low) or 1.0)
        case Nested() | Bell() | Opaque():
            return draw


def _is_unordered(parameter: Parameter) -> bool:
    """A choice between numbers in their order is an axis; any other choice is not."""
    if not isinstance(parameter, Choice):
        return isinstance(parameter, (Nested, Opaque))
    numbers = [option for option in parameter.options if type(option) in (int, float)]
    return len(numbers) < len(parameter.options) or numbers not in (sorted(numbers), sorted(numbers, reverse=True))
