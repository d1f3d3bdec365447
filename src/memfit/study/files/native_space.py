"""Reader of the parameters (search space) in memfit's own study file.

{ kind = "choice", options = [...] }
{ kind = "nested", branches = { sgd = { momentum = {...} }, adam = {} } }
{ kind = "integer", low = 8, high = 512, log = true }        both ends belong to it
{ kind = "number", low = 1e-4, high = 1e-1, log = true, step = 0.5 }
{ kind = "normal", mean = 0, deviation = 1, log = true, step = 0.5 }
"""

from __future__ import annotations

from typing import Any

from memfit.records.study import Bell, Branch, Choice, Integers, Nested, Parameter, Span
from memfit.study.files.fields import Fields
from memfit.study.space.complaint import FieldPlace, expect, expect_number

KINDS = ("choice", "nested", "integer", "number", "normal")


def read_parameters(written: dict[str, Any], place: FieldPlace) -> tuple[Parameter, ...]:
    """The parameters of a space or of a branch, in the order of the file."""
    return tuple(_read_parameter(name, spec, place.at(name)) for name, spec in written.items())


def _read_parameter(name: str, written: Any, place: FieldPlace) -> Parameter:
    fields = Fields(written, place)
    kind = fields.take_one_of("kind", KINDS, "")
    parameter = _READERS[kind](name, fields)
    fields.refuse_rest()
    return parameter


def _read_choice(name: str, fields: Fields) -> Parameter:
    place, options = fields.at("options"), fields.take("options", list, "a list of options", [])
    if not options:
        place.refuse("expected at least one option")
    return Choice(name=name, options=tuple(options))


def _read_nested(name: str, fields: Fields) -> Parameter:
    place, branches = fields.at("branches"), fields.take("branches", dict, "branches by their names", {})
    if not branches:
        place.refuse("expected at least one branch")
    return Nested(
        name=name,
        branches=tuple(
            Branch(
                name=branch,
                parameters=read_parameters(
                    expect(inner, dict, "the branch's parameters by their names", place.at(branch)), place.at(branch)
                ),
            )
            for branch, inner in branches.items()
        ),
    )


def _ends(fields: Fields) -> tuple[float, float]:
    ends = []
    for name in ("low", "high"):
        place, value = fields.at(name), fields.take(name)
        if value is None:
            place.refuse("expected a number")
        ends.append(expect_number(value, place))
    if ends[0] > ends[1]:
        fields.place.refuse("expected low below high", found=ends)
    return ends[0], ends[1]


def _positive(fields: Fields, name: str) -> float | None:
    place, value = fields.at(name), fields.take(name)
    if value is not None and expect_number(value, place) <= 0:
        place.refuse("expected a number above zero", found=value)
    return None if value is None else float(value)


def _read_integer(name: str, fields: Fields) -> Parameter:
    """Both ends belong to it, unlike NNI's randint."""
    low, high = _ends(fields)
    log = fields.take_flag("log")
    if not (low.is_integer() and high.is_integer()):
        fields.place.refuse("expected whole numbers", found=[low, high])
    if not log:
        return Integers(name=name, low=int(low), end=int(high) + 1)
    if low <= 0:
        fields.place.at("low").refuse("expected a number above zero for log", found=low)
    return Span(name=name, low=low, high=high, log=True, step=1.0, whole=True)


def _read_number(name: str, fields: Fields) -> Parameter:
    low, high = _ends(fields)
    log, step = fields.take_flag("log"), _positive(fields, "step")
    if log and low <= 0:
        fields.place.at("low").refuse("expected a number above zero for log", found=low)
    return Span(name=name, low=low, high=high, log=log, step=step)


def _read_normal(name: str, fields: Fields) -> Parameter:
    place, mean = fields.at("mean"), fields.take("mean")
    deviation = _positive(fields, "deviation")
    if mean is None or deviation is None:
        fields.place.refuse("expected mean and deviation")
    return Bell(
        name=name,
        mean=expect_number(mean, place),
        deviation=deviation,
        log=fields.take_flag("log"),
        step=_positive(fields, "step"),
    )


_READERS = {
    "choice": _read_choice,
    "nested": _read_nested,
    "integer": _read_integer,
    "number": _read_number,
    "normal": _read_normal,
}
