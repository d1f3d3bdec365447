"""Does a search space give the trial what was drawn, by the distributions that NNI documents?"""

from __future__ import annotations

import math
from itertools import islice
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from memfit.records.study import Branch, Choice, Integers, Nested, SearchSpace, Span
from memfit.study.space.field_errors import FieldPlace
from memfit.study.space.nni_space import read_space
from memfit.study.space.random_points import generator_for, random_draws
from memfit.study.space.space import fingerprint, parameters_of, space_size
from memfit.study.tuners.grid import grid_points

NUM_DRAWS = 3000


def draw_many(kind: str, value: list[Any]) -> np.ndarray:
    """What trials 0, 1, 2, ... of a random search get, as a study draws them: one generator for each."""
    space = read_space({"x": {"_type": kind, "_value": value}}, FieldPlace("test"))
    return np.array([parameters_of(space, random_draws(space, generator_for(7, n)))["x"] for n in range(NUM_DRAWS)])


@pytest.mark.parametrize(
    ("kind", "value", "law"),
    [
        ("uniform", [-2, 5], stats.uniform(-2, 7).cdf),
        ("loguniform", [1e-4, 1e-1], stats.loguniform(1e-4, 1e-1).cdf),
        ("normal", [3, 2], stats.norm(3, 2).cdf),
        ("lognormal", [1, 0.5], stats.lognorm(s=0.5, scale=math.e).cdf),
    ],
)
def test_smooth_types_follow_their_law(kind: str, value: list[float], law: Any):
    assert stats.kstest(draw_many(kind, value), law).pvalue > 0.001


def steps_of(law: Any, step: float, low: float, high: float, ends: tuple[float, float] | None) -> dict[float, float]:
    """The mass of every rounded value: what lies within half a step of it; clipped to the ends, where there are any."""
    masses: dict[float, float] = {}
    for k in range(round(low / step), round(high / step) + 1):
        value = k * step if ends is None else min(max(k * step, ends[0]), ends[1])
        mass = law.cdf((k + 0.5) * step) - law.cdf((k - 0.5) * step)
        masses[value] = masses.get(value, 0.0) + mass
    return masses


@pytest.mark.parametrize(
    ("kind", "value", "law", "ends"),
    [
        ("quniform", [2, 10, 5], stats.uniform(2, 8), (2, 10)),
        ("quniform", [0, 1, 0.25], stats.uniform(0, 1), (0, 1)),
        ("quniform", [0.5, 0.9, 2], stats.uniform(0.5, 0.4), (0.5, 0.9)),
        ("qloguniform", [1, 100, 7], stats.loguniform(1, 100), (1, 100)),
        ("qnormal", [5, 2, 1], stats.norm(5, 2), None),
        ("qlognormal", [1, 0.5, 1], stats.lognorm(s=0.5, scale=math.e), None),
    ],
)
def test_stepped_types_have_the_mass_that_lies_around_each_multiple(
    kind: str, value: list[float], law: Any, ends: tuple[float, float] | None
):
    drawn = draw_many(kind, value)
    low, high = ends or (law.ppf(1e-9), law.ppf(1 - 1e-9))
    masses = steps_of(law, value[2], low, high, ends)
    assert sum(masses.values()) == pytest.approx(1, abs=1e-6)
    assert {float(x) for x in drawn} <= {float(key) for key in masses}
    for known, mass in masses.items():
        assert np.mean(drawn == known) == pytest.approx(mass, abs=4.5 * math.sqrt(mass * (1 - mass) / NUM_DRAWS) + 1e-9)


def test_whole_numbers_and_options_are_equally_likely():
    counts = np.bincount(draw_many("randint", [3, 8]))
    assert counts[:3].sum() == 0
    assert stats.chisquare(counts[3:]).pvalue > 0.001
    letters = draw_many("choice", ["a", "b", "c", "d"])
    assert stats.chisquare([np.sum(letters == letter) for letter in "abcd"]).pvalue > 0.001


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("randint", [0.5, 2.5], int),
        ("quniform", [0, 10, 1], float),
        ("uniform", [1, 2], float),
        ("qlognormal", [0, 1, 1], float),
    ],
)
def test_values_have_the_python_type_that_trials_of_nni_get(kind: str, value: list[float], expected: type):
    space = read_space({"x": {"_type": kind, "_value": value}}, FieldPlace("test"))
    assert type(parameters_of(space, random_draws(space, generator_for(0, 0)))["x"]) is expected


def test_randint_between_fractions_takes_the_whole_numbers_from_the_upper_side():
    assert set(draw_many("randint", [0.5, 2.5])) == {1, 2}


def test_equal_ends_always_give_that_end():
    assert set(draw_many("uniform", [99.9, 99.9])) == {99.9}
    assert set(draw_many("loguniform", [99.9, 99.9])) == {99.9}


def test_a_whole_span_gives_ints_within_its_ends():
    space = SearchSpace(parameters=(Span(name="x", low=1, high=100, log=True, step=1.0, whole=True),))
    values = [parameters_of(space, random_draws(space, generator_for(0, n)))["x"] for n in range(500)]
    assert all(type(value) is int and 1 <= value <= 100 for value in values)
    assert np.median(values) < 20, "the logarithm should favour small numbers"


def test_only_the_chosen_branch_has_parameters():
    space = read_space(
        {
            "model": {
                "_type": "choice",
                "_value": [{"_name": "none"}, {"_name": "conv", "k": {"_type": "randint", "_value": [1, 4]}}],
            }
        },
        FieldPlace("test"),
    )
    seen = {fingerprint(parameters_of(space, random_draws(space, generator_for(0, n)))) for n in range(100)}
    expected = [{"model": {"_name": "none"}}, *({"model": {"_name": "conv", "k": k}} for k in (1, 2, 3))]
    assert seen == {fingerprint(parameters) for parameters in expected}


def test_a_choice_that_mixes_branches_with_plain_options_is_not_nested():
    options = [{"_name": "a", "x": {"_type": "randint", "_value": [0, 2]}}, 3]
    space = read_space({"m": {"_type": "choice", "_value": options}}, FieldPlace("test"))
    assert parameters_of(space, {"m": 0})["m"] == options[0]


def test_the_bell_of_a_probability_is_the_quantile_of_the_normal_law():
    space = read_space({"x": {"_type": "normal", "_value": [3, 2]}}, FieldPlace("test"))
    for probability in (0.01, 0.3, 0.5, 0.99):
        assert parameters_of(space, {"x": probability})["x"] == pytest.approx(NormalDist(3, 2).inv_cdf(probability))
    assert math.isfinite(parameters_of(space, {"x": 0.0})["x"])
    assert math.isfinite(parameters_of(space, {"x": 1.0})["x"])


steps = st.sampled_from([0.25, 0.5, 1.0, 2.0, 3.0])
finite_parameters = st.one_of(
    st.builds(
        lambda options: Choice(name="c", options=tuple(options)), st.lists(st.integers(0, 3), min_size=1, max_size=5)
    ),
    st.builds(lambda low, size: Integers(name="i", low=low, end=low + size), st.integers(-3, 3), st.integers(1, 4)),
    st.builds(
        lambda low, width, step: Span(name="s", low=low, high=low + width, step=step),
        st.floats(-4, 4).map(lambda x: round(x, 2)),
        st.floats(0, 5).map(lambda x: round(x, 2)),
        steps,
    ),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(finite_parameters, min_size=1, max_size=2), st.lists(finite_parameters, max_size=1))
def test_a_finite_space_has_as_many_points_as_its_grid_and_no_more(first: list[Any], inner: list[Any]):
    named = [_renamed(parameter, f"p{index}") for index, parameter in enumerate(first)]
    nested = Nested(name="n", branches=(Branch(name="empty"), Branch(name="full", parameters=tuple(inner))))
    space = SearchSpace(parameters=(*named, nested))
    size = space_size(space)
    assert size is not None
    points = {fingerprint(parameters_of(space, draws)) for draws in islice(grid_points(space), 20_000)}
    # Half-way points are rounded to even, so an end that lies exactly half-way may be an empty cell of the formula.
    halfway = any(_ends_half_way(parameter) for parameter in (*named, *inner))
    assert len(points) <= size if halfway else len(points) == size


def _renamed(parameter: Any, name: str) -> Any:
    import msgspec

    return msgspec.structs.replace(parameter, name=name)


def _ends_half_way(parameter: Any) -> bool:
    if not isinstance(parameter, Span) or parameter.step is None:
        return False
    return any(abs(end / parameter.step % 1 - 0.5) < 1e-9 for end in (parameter.low, parameter.high))


def test_an_endless_space_has_no_size():
    assert space_size(SearchSpace(parameters=(Span(name="x", low=0, high=1),))) is None
