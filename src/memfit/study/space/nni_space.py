"""Reader and writer of NNI search spaces.

    {"lr": {"_type": "loguniform", "_value": [1e-4, 1e-1]}}

Stricter than NNI where NNI would quietly sample something else: an unknown type is refused, and so are an empty choice,
ends in the wrong order, and a logarithm of nothing. As lenient where files in use are: ends that are equal, options of
any JSON kind, randint between fractions. A custom tuner gets the space as it is written, whatever that is.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from memfit.errors import UsageError
from memfit.records.study import Bell, Branch, Choice, Integers, Nested, Opaque, Parameter, SearchSpace, Span
from memfit.study.space.field_errors import FieldPlace, expect, expect_number

SPANS = ("uniform", "quniform", "loguniform", "qloguniform")
BELLS = ("normal", "qnormal", "lognormal", "qlognormal")
TYPES = ("choice", "randint", *SPANS, *BELLS)
NAS_TYPES = ("layer_choice", "input_choice", "mutable_type", "mutable_layer")


def read_space(found: object, place: FieldPlace, *, allow_unknown: bool = False) -> SearchSpace:
    """Read a whole space; a custom tuner may know types, and whole spaces, that are refused otherwise."""
    written = expect(found, dict, "a search space: names, each with _type and _value", place)
    if allow_unknown:
        return SearchSpace(parameters=_read_parameters(written, place, True), written=written)
    if not written:
        place.refuse("the search space is empty", hint='{"lr": {"_type": "uniform", "_value": [0.001, 0.1]}}')
    return SearchSpace(parameters=_read_parameters(written, place, allow_unknown))


def _read_parameters(written: Mapping[str, object], place: FieldPlace, allow_unknown: bool) -> tuple[Parameter, ...]:
    return tuple(
        _read_parameter(expect(name, str, "a name", place), spec, place.at(name), allow_unknown)
        for name, spec in written.items()
        if name != "_name"
    )


def _read_parameter(name: str, spec: object, place: FieldPlace, allow_unknown: bool) -> Parameter:
    if not allow_unknown:
        return _read_known(name, spec, place, False)
    try:
        return _read_known(name, spec, place, True)
    except UsageError:
        return Opaque(name=name, written=spec)


def _read_known(name: str, found: object, place: FieldPlace, allow_unknown: bool) -> Parameter:
    spec = expect(found, dict, "an object with _type and _value", place)
    for key in ("_type", "_value"):
        if key not in spec:
            place.refuse(f"expected {key}", found=spec, hint='{"_type": "choice", "_value": [1, 2, 3]}')
    kind, values = spec["_type"], spec["_value"]
    if kind not in TYPES:
        _refuse_type(kind, place.at("_type"))
    expect(values, list, "a list", place.at("_value"))
    if kind == "choice":
        return _read_choice(name, values, place.at("_value"), allow_unknown)
    return _read_numbers(name, kind, values, place.at("_value"))


def _refuse_type(kind: object, place: FieldPlace) -> NoReturn:
    if isinstance(kind, str) and kind in NAS_TYPES:
        place.refuse("architecture search is not supported", found=kind, hint="write the options as a choice")
    near = difflib.get_close_matches(str(kind), TYPES, n=1)
    place.refuse(f"expected one of {', '.join(TYPES)}", found=kind, hint=near[0] if near else "")


def _read_choice(name: str, options: Sequence[object], place: FieldPlace, allow_unknown: bool) -> Parameter:
    if not options:
        place.refuse("expected at least one option", found=options)
    named = [option for option in options if isinstance(option, dict) and "_name" in option]
    if len(named) < len(options):
        return Choice(name=name, options=tuple(options))
    branches = []
    for index, option in enumerate(named):
        branch_name = expect(option["_name"], (str, int, float), "a text", place.at(index, "_name"))
        inside = _read_parameters(option, place.at(index), allow_unknown)
        branches.append(Branch(name=str(branch_name), parameters=inside))
    names = [branch.name for branch in branches]
    twice = next((branch for branch in names if names.count(branch) > 1), None)
    if twice is not None:
        place.refuse("expected a different _name for every branch", found=twice)
    return Nested(name=name, branches=tuple(branches))


def _read_numbers(name: str, kind: str, values: Sequence[object], place: FieldPlace) -> Parameter:
    meanings = ("mu", "sigma") if kind in BELLS else ("low", "high")
    meanings = (*meanings, "q") if kind.startswith("q") else meanings
    if len(values) != len(meanings):
        place.refuse(f"expected [{', '.join(meanings)}] for {kind}", found=values)
    numbers = [expect_number(value, place.at(index)) for index, value in enumerate(values)]
    if kind == "randint":
        return _read_randint(name, numbers, place)
    step = numbers[2] if len(numbers) == 3 else None
    if step is not None and step <= 0:
        place.at(2).refuse("expected q above zero", found=values[2])
    if kind in BELLS:
        if numbers[1] < 0:
            place.at(1).refuse("expected sigma of zero or more", found=values[1])
        return Bell(name=name, mean=numbers[0], deviation=numbers[1], log="log" in kind, step=step)
    if numbers[0] > numbers[1]:
        place.refuse("expected low below high", found=values)
    if "log" in kind and numbers[0] <= 0:
        place.at(0).refuse(f"expected low above zero for {kind}", found=values[0])
    return Span(name=name, low=numbers[0], high=numbers[1], log="log" in kind, step=step)


def _read_randint(name: str, numbers: list[float], place: FieldPlace) -> Parameter:
    low, end = math.ceil(numbers[0]), math.ceil(numbers[1])
    if low >= end:
        place.refuse(
            "expected a whole number between the ends", found=numbers, hint="the upper end of randint is excluded"
        )
    return Integers(name=name, low=low, end=end)


def write_space(space: SearchSpace) -> dict[str, Any]:
    """The space as its file writes it, or as NNI would write it."""
    return space.written if space.written is not None else _write_parameters(space.parameters)


def _write_parameters(parameters: tuple[Parameter, ...]) -> dict[str, object]:
    return {parameter.name: _write_parameter(parameter) for parameter in parameters}


def _write_parameter(parameter: Parameter) -> dict[str, object]:
    match parameter:
        case Opaque():
            return parameter.written
        case Choice():
            return {"_type": "choice", "_value": list(parameter.options)}
        case Nested():
            branches = [{"_name": b.name, **_write_parameters(b.parameters)} for b in parameter.branches]
            return {"_type": "choice", "_value": branches}
        case Integers():
            return {"_type": "randint", "_value": [parameter.low, parameter.end]}
        case Span():
            return _write_numbers("uniform", parameter, [parameter.low, parameter.high])
        case Bell():
            return _write_numbers("normal", parameter, [parameter.mean, parameter.deviation])


def _write_numbers(word: str, parameter: Span | Bell, values: list[float]) -> dict[str, object]:
    quantized = parameter.step is not None
    kind = f"{'q' if quantized else ''}{'log' if parameter.log else ''}{word}"
    return {"_type": kind, "_value": [*values, parameter.step] if quantized else values}
