"""Are texts that name optimizers read as they were meant, and what is none refused?"""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.errors import UsageError
from memfit.job.recipes.optimizer_names import TORCH_CLASSES, WORDS, OptimizerSpec, parse_optimizer

NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)
PATHS = st.builds("{}.{}".format, NAMES, st.from_regex(r"[A-Z][A-Za-z0-9]{0,8}", fullmatch=True))
FILES = st.builds("my-{}/opt.py:{}".format, NAMES, NAMES)
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.booleans() | st.none()
VALUES = NUMBERS | st.text("ab,+()= -", max_size=6) | st.tuples(NUMBERS, NUMBERS)
ALONE = st.builds(
    OptimizerSpec,
    base=st.sampled_from(sorted(TORCH_CLASSES)) | PATHS | FILES,
    words=st.lists(st.sampled_from(sorted(WORDS)), max_size=2, unique=True).map(tuple),
    options=st.dictionaries(NAMES, VALUES, max_size=3),
)
WRAPPING = st.builds(
    OptimizerSpec, base=PATHS, options=st.dictionaries(NAMES, VALUES, max_size=2), inner=st.none() | ALONE
)
JOINED = st.builds(OptimizerSpec, base=PATHS, inner=st.none() | ALONE, rest=ALONE)


@given(ALONE | WRAPPING | JOINED)
def test_what_is_written_is_read_back_as_it_was(spec: OptimizerSpec):
    assert parse_optimizer(str(spec)) == spec


@given(st.text(max_size=40))
def test_any_text_is_an_optimizer_or_a_usage_error(text: str):
    spec = None
    with contextlib.suppress(UsageError):
        spec = parse_optimizer(text)
    assert spec is None or parse_optimizer(str(spec)) == spec


@given(st.sampled_from(sorted(TORCH_CLASSES)))
def test_the_case_of_torchs_own_names_does_not_matter(name: str):
    assert parse_optimizer(TORCH_CLASSES[name]).base == name


def test_words_stand_for_options_and_parentheses_come_last():
    spec = parse_optimizer("sgd-momentum-foreach(momentum=0.5, nesterov=true)")
    assert spec.all_options == {"momentum": 0.5, "foreach": True, "nesterov": True}


def test_signs_and_commas_inside_of_values_separate_nothing():
    spec = parse_optimizer("a.B(adamw-fused(eps=1e+2), betas=(0.9, 0.99), name='x,+y')+sgd")
    assert str(spec.inner) == "adamw-fused(eps=100.0)"
    assert spec.options == {"betas": (0.9, 0.99), "name": "x,+y"}
    assert spec.rest == OptimizerSpec(base="sgd")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "does not name"),
        ("adam-quick", "cannot be 'quick'"),
        ("a+b+c", "more than two"),
        ("adam(", "does not name"),
        ("a.B(sgd, adam)", "no option"),
        ("3", "does not name"),
    ],
)
def test_what_names_no_optimizer_is_refused_with_what_to_try(text: str, part: str):
    with pytest.raises(UsageError, match=part) as caught:
        parse_optimizer(text)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "package"),
    [("adam", "torch"), ("none", "torch"), ("torchao.optim.Adam8bit", "torchao"), ("x/opt.py:Mine", "x/opt.py")],
)
def test_the_package_of_an_optimizer_is_known_without_importing_it(text: str, package: str):
    assert parse_optimizer(text).package == package
