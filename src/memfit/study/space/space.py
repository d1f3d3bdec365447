"""Search space: what can be drawn, and what the trial gets for what was drawn.

A *draw* is one number per parameter: the index of an option or branch, the whole number itself, the number before
rounding for a span, the probability below it for a bell. Tuners work on draws, trials get *parameters*. So a tuner sees
an unrounded, unbroken axis wherever NNI's do, and an option may be any JSON value.

The same law for everybody: `draw_at(parameter, probability)` is the inverse of the distribution's cumulative function,
and random search, grids and mutations all go through it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from statistics import NormalDist
from typing import Any

from memfit.records.study import (
    PATH_SEPARATOR,
    Bell,
    Choice,
    Integers,
    Nested,
    Opaque,
    Parameter,
    SearchSpace,
    Span,
)

_SMALLEST_PROBABILITY = 2.0**-53
_STANDARD_NORMAL = NormalDist()

Draws = dict[str, float]


def num_options(parameter: Parameter) -> int | None:
    """How many values an unordered parameter has; None for a number on an axis."""
    match parameter:
        case Choice():
            return len(parameter.options)
        case Nested():
            return len(parameter.branches)
        case Integers():
            return parameter.end - parameter.low
    return None


def walk(space: SearchSpace, draws: Mapping[str, float]) -> Iterator[tuple[str, Parameter]]:
    """The parameters that exist at this point with their paths, in order; `draws` may grow while walking."""
    yield from _walk(space.parameters, "", draws)


def _walk(
    parameters: tuple[Parameter, ...], prefix: str, draws: Mapping[str, float]
) -> Iterator[tuple[str, Parameter]]:
    for parameter in parameters:
        path = prefix + parameter.name
        yield path, parameter
        if isinstance(parameter, Nested):
            branch = parameter.branches[int(draws[path])]
            yield from _walk(branch.parameters, _inside(path, branch.name), draws)


def walk_all(space: SearchSpace) -> Iterator[tuple[str, Parameter]]:
    """Every parameter of every branch with its path, in the order of the file."""
    yield from _walk_all(space.parameters, "")


def _walk_all(parameters: tuple[Parameter, ...], prefix: str) -> Iterator[tuple[str, Parameter]]:
    for parameter in parameters:
        path = prefix + parameter.name
        yield path, parameter
        if isinstance(parameter, Nested):
            for branch in parameter.branches:
                yield from _walk_all(branch.parameters, _inside(path, branch.name))


def _inside(path: str, branch: str) -> str:
    return f"{path}{PATH_SEPARATOR}{branch}{PATH_SEPARATOR}"


def draw_at(parameter: Parameter, probability: float) -> float:
    """The draw below which this share of all draws lies."""
    match parameter:
        case Span(log=True):
            low, high = math.log(parameter.low), math.log(parameter.high)
            return _within(math.exp(low + (high - low) * probability), parameter.low, parameter.high)
        case Span():
            return _within(
                parameter.low + (parameter.high - parameter.low) * probability, parameter.low, parameter.high
            )
        case Bell():
            return probability
    size = num_options(parameter)
    if size is None:
        raise TypeError(f"{parameter.name} is of a type that only its custom tuner can draw")
    index = min(int(probability * size), size - 1)
    return index + parameter.low if isinstance(parameter, Integers) else index


def value_of(parameter: Parameter, draw: float) -> Any:
    """What the trial gets for a draw; a nested choice gives its branch's name."""
    match parameter:
        case Choice():
            return parameter.options[int(draw)]
        case Nested():
            return parameter.branches[int(draw)].name
        case Integers():
            return int(draw)
        case Span():
            value = _rounded(float(draw), parameter.step)
            if parameter.step is not None:
                value = _within(value, parameter.low, parameter.high)
            return round(value) if parameter.whole else value
        case Bell():
            return _rounded(_bell_value(parameter, draw), parameter.step)
        case Opaque():
            return draw


def _bell_value(parameter: Bell, probability: float) -> float:
    inside = _within(probability, _SMALLEST_PROBABILITY, 1 - _SMALLEST_PROBABILITY)
    value = parameter.mean + parameter.deviation * _STANDARD_NORMAL.inv_cdf(inside)
    return math.exp(value) if parameter.log else value


def _rounded(value: float, step: float | None) -> float:
    # Python's round: half to even, as NNI's own.
    return value if step is None else round(value / step) * step


def _within(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def parameters_of(space: SearchSpace, draws: Mapping[str, float]) -> dict[str, Any]:
    """What the trial gets for a whole point."""
    return _parameters_of(space.parameters, "", draws)


def _parameters_of(parameters: tuple[Parameter, ...], prefix: str, draws: Mapping[str, float]) -> dict[str, object]:
    values: dict[str, Any] = {}
    for parameter in parameters:
        path = prefix + parameter.name
        value = value_of(parameter, draws[path])
        if isinstance(parameter, Nested):
            branch = parameter.branches[int(draws[path])]
            value = {"_name": value, **_parameters_of(branch.parameters, _inside(path, branch.name), draws)}
        values[parameter.name] = value
    return values


def fingerprint(parameters: Mapping[str, object]) -> str:
    """One text for every parameter set, equal exactly when the sets are equal."""
    return json.dumps(parameters, sort_keys=True, ensure_ascii=False)


def never_repeats(space: SearchSpace) -> bool:
    """Whether a parameter at the top varies without steps, so that no point comes twice."""
    return any(_is_smooth(parameter) for parameter in space)


def _is_smooth(parameter: Parameter) -> bool:
    match parameter:
        case Span():
            return parameter.step is None and not parameter.whole and parameter.low < parameter.high
        case Bell():
            return parameter.step is None and parameter.deviation > 0
    return False


def is_nested(space: SearchSpace) -> bool:
    """Whether some parameters exist only beside a certain branch."""
    return any(isinstance(parameter, Nested) for parameter in space)


def space_size(space: SearchSpace) -> int | None:
    """How many different parameter sets there are; None when they are endless."""
    return _size(space.parameters)


def _size(parameters: tuple[Parameter, ...]) -> int | None:
    sizes = [_size_of(parameter) for parameter in parameters]
    return None if None in sizes else math.prod(size for size in sizes if size is not None)


def _size_of(parameter: Parameter) -> int | None:
    match parameter:
        case Choice():
            return len({json.dumps(option, sort_keys=True) for option in parameter.options})
        case Nested():
            sizes = [_size(branch.parameters) for branch in parameter.branches]
            return None if None in sizes else sum(size for size in sizes if size is not None)
        case Integers():
            return parameter.end - parameter.low
        case Span(step=float() as step):
            # Clipping moves the two outermost multiples, and no two of them to the same place.
            return round(parameter.high / step) - round(parameter.low / step) + 1
        case Span():
            return None if parameter.low < parameter.high else 1
        case Bell():
            return None if parameter.deviation > 0 else 1
    return None
