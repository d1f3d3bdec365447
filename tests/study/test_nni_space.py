"""Are search spaces of NNI read as they are, and mistakes in them told with their place?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.errors import UsageError
from memfit.records.study import Bell, Branch, Choice, Integers, Nested, Opaque, SearchSpace, Span
from memfit.study.files.kinds import read_space_file
from memfit.study.space.field_errors import FieldPlace
from memfit.study.space.nni_space import read_space, write_space

SPACE = {
    "pool_type": {"_type": "choice", "_value": ["max", "min", "avg"]},
    "学习率": {"_type": "loguniform", "_value": [1e-7, 0.1]},
}
PLAIN_JSON = json.dumps(SPACE, ensure_ascii=False, indent="\t")
COMMAS = '{"pool_type": {"_type": "choice", "_value": ["max", "min", "avg",],},\n\t"学习率": {"_type": "loguniform", "_value": [1e-7, 0.1],},}'  # noqa: E501
COMMENTS = """{
    // a comment, with "quotes" and a comma,
    "pool_type": {"_type": "choice", /* inside, */ "_value": ["max", "min", "avg"]}, # another
    "学习率": {"_type": "loguniform", "_value": [1e-7, 0.1]} // the last
}"""
YAML = """
pool_type:
  _type: choice
  _value: [max, min, avg]
学习率:  # unicode
  _type: loguniform
  _value: [ 1e-7, 0.1 ]  # scientific notation
"""


@pytest.mark.parametrize(
    ("name", "text"),
    [("s.json", PLAIN_JSON), ("s.json", COMMAS), ("s.json", COMMENTS), ("s.yaml", YAML), ("s.json", "\ufeff" + YAML)],
)
def test_the_same_space_is_read_from_every_form_of_file(tmp_path: Path, name: str, text: str):
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert read_space_file(tmp_path / name) == read_space(SPACE, FieldPlace("x"))


def test_what_looks_like_a_comment_in_a_text_is_kept(tmp_path: Path):
    text = '{"url": {"_type": "choice", "_value": ["http://a//b#c", "/* no */", ",]"]},} // end'
    (tmp_path / "s.json").write_text(text)
    assert read_space_file(tmp_path / "s.json").parameters == (
        Choice(name="url", options=("http://a//b#c", "/* no */", ",]")),
    )


def test_every_type_has_its_kind():
    def of(kind: str, *value: Any) -> Any:
        return read_space({"x": {"_type": kind, "_value": list(value)}}, FieldPlace("t")).parameters[0]

    assert of("choice", None, [1], {"a": 1}) == Choice(name="x", options=(None, [1], {"a": 1}))
    assert of("randint", 0.5, 2.5) == Integers(name="x", low=1, end=3)
    assert of("uniform", 1, 2) == Span(name="x", low=1, high=2)
    assert of("quniform", 1, 2, 0.5) == Span(name="x", low=1, high=2, step=0.5)
    assert of("loguniform", 1, 2) == Span(name="x", low=1, high=2, log=True)
    assert of("qloguniform", 1, 2, 1) == Span(name="x", low=1, high=2, log=True, step=1)
    assert of("normal", 0, 1) == Bell(name="x", mean=0, deviation=1)
    assert of("qnormal", 0, 1, 2) == Bell(name="x", mean=0, deviation=1, step=2)
    assert of("lognormal", 0, 1) == Bell(name="x", mean=0, deviation=1, log=True)
    assert of("qlognormal", 0, 1, 2) == Bell(name="x", mean=0, deviation=1, log=True, step=2)


@pytest.mark.parametrize(
    ("written", "where", "expected"),
    [
        ([1, 2], "s", "a search space"),
        ({}, "s", "empty"),
        ({"x": 3}, "s: x", "an object with _type and _value"),
        ({"x": {"_type": "uniform"}}, "s: x", "_value"),
        ({"x": {"_value": [1, 2]}}, "s: x", "_type"),
        ({"x": {"_type": "uniforn", "_value": [0, 1]}}, "s: x._type", "one of choice"),
        ({"x": {"_type": "layer_choice", "_value": ["a"]}}, "s: x._type", "architecture"),
        ({"x": {"_type": "choice", "_value": "ab"}}, "s: x._value", "a list"),
        ({"x": {"_type": "choice", "_value": []}}, "s: x._value", "at least one option"),
        ({"x": {"_type": "uniform", "_value": [0, 1, 2]}}, "s: x._value", "[low, high]"),
        ({"x": {"_type": "quniform", "_value": [0, 1]}}, "s: x._value", "[low, high, q]"),
        ({"x": {"_type": "qnormal", "_value": [0, 1]}}, "s: x._value", "[mu, sigma, q]"),
        ({"x": {"_type": "uniform", "_value": [1, 0]}}, "s: x._value", "low below high"),
        ({"x": {"_type": "loguniform", "_value": [0, 1]}}, "s: x._value[0]", "above zero"),
        ({"x": {"_type": "quniform", "_value": [0, 1, 0]}}, "s: x._value[2]", "q above zero"),
        ({"x": {"_type": "normal", "_value": [0, -1]}}, "s: x._value[1]", "sigma"),
        ({"x": {"_type": "randint", "_value": [0, 0]}}, "s: x._value", "whole number between"),
        ({"x": {"_type": "uniform", "_value": [0, "a"]}}, "s: x._value[1]", "a number"),
        ({"x": {"_type": "uniform", "_value": [0, True]}}, "s: x._value[1]", "a number"),
        ({"x": {"_type": "uniform", "_value": [0, float("inf")]}}, "s: x._value[1]", "finite"),
        (
            {"x": {"_type": "choice", "_value": [{"_name": "a", "y": {"_type": "zzz", "_value": []}}]}},
            "s: x._value[0].y._type",
            "one of",
        ),
        ({"x": {"_type": "choice", "_value": [{"_name": "a"}, {"_name": "a"}]}}, "s: x._value", "different _name"),
    ],
)
def test_a_mistake_names_the_file_the_field_and_what_was_expected(written: Any, where: str, expected: str):
    with pytest.raises(UsageError) as caught:
        read_space(written, FieldPlace("s"))
    assert caught.value.what.startswith(f"{where}: ") or (where == "s" and caught.value.what.startswith("s: "))
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_near_miss_is_named():
    with pytest.raises(UsageError, match="try: loguniform"):
        read_space({"x": {"_type": "log_uniform", "_value": [1, 2]}}, FieldPlace("s"))


def test_a_type_only_a_custom_tuner_knows_is_kept_as_it_was_written():
    written = {"x": {"_type": "factor", "_value": [2, 8]}}
    assert read_space(written, FieldPlace("s"), allow_unknown=True).parameters == (
        Opaque(name="x", written=written["x"]),
    )
    assert write_space(read_space(written, FieldPlace("s"), allow_unknown=True)) == written


names = st.text(min_size=1, max_size=8).filter(lambda name: name not in ("_name", "_type", "_value"))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=4,
)
finite = st.floats(-1e6, 1e6)
positive = st.floats(1e-6, 1e6)
leaves = st.one_of(
    st.builds(lambda options: Choice(name="", options=tuple(options)), st.lists(json_values, min_size=1, max_size=4)),
    st.builds(lambda low, size: Integers(name="", low=low, end=low + size), st.integers(-9, 9), st.integers(1, 9)),
    st.builds(
        lambda low, width, log, step: Span(name="", low=low, high=low + width, log=log, step=step),
        positive,
        positive,
        st.booleans(),
        st.none() | positive,
    ),
    st.builds(
        lambda mean, deviation, log, step: Bell(name="", mean=mean, deviation=deviation, log=log, step=step),
        finite,
        positive,
        st.booleans(),
        st.none() | positive,
    ),
)


def named(parameters: dict[str, Any]) -> tuple[Any, ...]:
    import msgspec

    return tuple(msgspec.structs.replace(parameter, name=name) for name, parameter in parameters.items())


spaces = st.dictionaries(
    names,
    leaves
    | st.dictionaries(names, st.dictionaries(names, leaves, max_size=2), min_size=1, max_size=3).map(
        lambda branches: Nested(
            name="", branches=tuple(Branch(name=name, parameters=named(inner)) for name, inner in branches.items())
        )
    ),
    min_size=1,
    max_size=4,
).map(lambda parameters: SearchSpace(parameters=named(parameters)))


@given(spaces)
def test_a_space_that_was_written_is_read_back_the_same(space: SearchSpace):
    assert read_space(json.loads(json.dumps(write_space(space))), FieldPlace("s")) == space


@given(st.recursive(json_values, lambda inner: st.dictionaries(names, inner, max_size=3), max_leaves=6))
def test_whatever_is_written_gives_a_space_or_a_usage_error(written: Any):
    for candidate in (written, {"x": written}, {"x": {"_type": "choice", "_value": written}}):
        try:
            space = read_space(candidate, FieldPlace("s"))
        except UsageError:
            continue
        assert write_space(space) == candidate
