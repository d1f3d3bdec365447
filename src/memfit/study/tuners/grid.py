"""Grid search tuner: the order of its points, and when it is done.

Options are multiplied out, the last parameter changing fastest. A number on an axis starts at its median; when all
combinations are done, the quartiles are added, then the eighths, and so on, each axis by its own distribution; where a
step makes two neighbours equal, that part of the axis is divided no further. A round skips what an earlier round gave.
The order is that of NNI's grid search. A bell has ends here, eight deviations out, so that even steps come to an end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from memfit.records.study import Parameter, SearchSpace
from memfit.study.engine.history import History
from memfit.study.space.space import Draws, draw_at, fingerprint, num_options, parameters_of, value_of, walk, walk_all
from memfit.study.tuners.base import Answer, NoMore, proposal_for


class GridTuner:
    """The next combination that was not tried."""

    def __init__(self, space: SearchSpace) -> None:
        self.space = space
        self.untried = UntriedPoints(space)

    def propose(self, history: History, number: int) -> Answer:
        draws = self.untried.first(history)
        return NoMore("every point of the grid was tried") if draws is None else proposal_for(self.space, number, draws)


class UntriedPoints:
    """The points of the grid whose parameters were never proposed; it remembers how far it has looked, nothing else."""

    def __init__(self, space: SearchSpace) -> None:
        self.space = space
        self._points = grid_points(space)
        self._head: tuple[str, Draws] | None = None

    def first(self, history: History) -> Draws | None:
        """The first untried point; None when there is none left."""
        while self._head is None or self._head[0] in history.tried:
            draws = next(self._points, None)
            if draws is None:
                return None
            self._head = fingerprint(parameters_of(self.space, draws)), draws
        return dict(self._head[1])


@dataclass(slots=True)
class _Axis:
    """The points of one parameter so far, and the intervals that can still be divided."""

    parameter: Parameter
    points: list[float]
    """Draws of an unordered parameter; probabilities of one on an axis."""
    gaps: list[tuple[float, float]] = field(default_factory=list)
    num_old: int = 0
    """How many of the points are from earlier rounds."""

    @property
    def is_ordered(self) -> bool:
        return num_options(self.parameter) is None

    def draw(self, index: int) -> float:
        point = self.points[index]
        return draw_at(self.parameter, point) if self.is_ordered else point


def _axis(parameter: Parameter) -> _Axis:
    size = num_options(parameter)
    if size is not None:
        first = getattr(parameter, "low", 0)
        return _Axis(parameter, [float(first + index) for index in range(size)])
    gaps = [(left, right) for left, right in ((0.0, 0.5), (0.5, 1.0)) if _differ(parameter, left, right)]
    return _Axis(parameter, [0.5], gaps)


def _differ(parameter: Parameter, left: float, right: float) -> bool:
    """Whether the trial would get another, larger value at the right end."""
    return value_of(parameter, draw_at(parameter, left)) < value_of(parameter, draw_at(parameter, right))


def grid_points(space: SearchSpace) -> Iterator[Draws]:
    """All points of the grid in order; endless where an axis can be divided for ever."""
    axes = {path: _axis(parameter) for path, parameter in walk_all(space)}
    growing = bool(axes)
    while growing:
        yield from _one_round(space, axes)
        growing = _divide(axes)


def _one_round(space: SearchSpace, axes: dict[str, _Axis]) -> Iterator[Draws]:
    """The combinations of this round that have at least one new coordinate."""
    counters: dict[str, int] | None = dict.fromkeys(axes, 0)
    while counters is not None:
        draws: Draws = {}
        for path, _ in walk(space, draws):
            draws[path] = axes[path].draw(counters[path])
        # Counters of branches that are not taken stand at zero or where they were left, as in NNI.
        if any(counters[path] >= axis.num_old for path, axis in axes.items()):
            yield draws
        counters = _next_counters(list(draws), counters, axes)


def _next_counters(active: list[str], counters: dict[str, int], axes: dict[str, _Axis]) -> dict[str, int] | None:
    for path in reversed(active):
        if counters[path] + 1 < len(axes[path].points):
            counters[path] += 1
            return counters
        counters[path] = 0
    return None


def _divide(axes: dict[str, _Axis]) -> bool:
    """Put new points between the old ones; whether any axis can still give new values."""
    grew = False
    for axis in axes.values():
        axis.num_old = len(axis.points)
        gaps, axis.gaps = axis.gaps, []
        for left, right in gaps:
            grew |= _divide_gap(axis, left, right)
    return grew


def _divide_gap(axis: _Axis, left: float, right: float) -> bool:
    middle = (left + right) / 2
    differs_left, differs_right = _differ(axis.parameter, left, middle), _differ(axis.parameter, middle, right)
    # The ends 0 and 1 are no points of the grid: nothing there can equal the middle.
    is_new = (differs_left or left == 0.0) and (differs_right or right == 1.0)
    if is_new:
        axis.points.append(middle)
    if differs_left:
        axis.gaps.append((left, middle))
    if differs_right:
        axis.gaps.append((middle, right))
    return is_new or (differs_left and left == 0.0) or (differs_right and right == 1.0)
