"""Memory of a point judged by the trials nearest to it: does it look too large.

A tuner's model is about the metric; that a point does not fit reaches it late, and the best points often lie at the
edge. So a tuner that draws from a model draws a few times, and takes the first point whose nearest known trials all
fit, or else the one with the fewest that do not. In `benchmarks/study/constraint_toy.py` it takes the runs that die of
memory from 33 % to 20 %, at the same best value. Every point stays possible: only the choice between draws is changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from memfit.records.study import Bell, Choice, Integers, Nested, Opaque, Parameter, SearchSpace, Span
from memfit.study.engine.history import History
from memfit.study.space.space import Draws, walk_all

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
