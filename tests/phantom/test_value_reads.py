"""Are answers to unknown values read as they were meant, and is every read listed? Needs no torch."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.errors import UsageError
from memfit.predict.phantom.value_reads import VARIABLE, ReadLog, answers_of_environment, parse_answers

places = st.from_regex(r"[a-z_]{1,12}\.py:[1-9][0-9]{0,4}", fullmatch=True)
numbers = st.floats(-1e9, 1e9).map(lambda value: round(value, 6))


@given(st.dictionaries(places, numbers, max_size=5))
def test_what_is_written_is_what_is_read(answers: dict[str, float]):
    text = ", ".join(f"{place}={value}" for place, value in answers.items())
    assert parse_answers(text) == answers
    assert answers_of_environment({VARIABLE: text}) == answers


def test_words_are_numbers_and_a_star_is_every_place():
    assert parse_answers("a.py:1=true; b.py:2=No, *=0.5") == {"a.py:1": 1.0, "b.py:2": 0.0, "*": 0.5}


@given(st.text(max_size=30))
def test_any_text_is_understood_or_refused_with_a_hint(text: str):
    with contextlib.suppress(UsageError):
        assert all(place == "*" or ":" in place for place in parse_answers(text))


@pytest.mark.parametrize("text", ["train.py=1", "train.py:x=1", "train.py:3=perhaps", "=1", "train.py:3"])
def test_what_is_no_answer_is_a_usage_error(text: str):
    with pytest.raises(UsageError):
        parse_answers(text)


def test_the_line_that_asked_goes_before_the_users_own_line_and_before_everywhere():
    log = ReadLog({"lib.py:2": 7.0, "train.py:1": 5.0, "*": 3.0})
    assert log.answer("lib.py:2", "train.py:1") == 7.0
    assert log.answer("lib.py:9", "train.py:1") == 5.0
    assert log.answer("lib.py:9", "train.py:9") == 3.0
    assert ReadLog().answer("lib.py:2", "train.py:1") is None


def test_reads_are_counted_by_place_and_an_answer_that_nobody_asked_for_is_said():
    log = ReadLog({"train.py:8": 1.0})
    for _ in range(3):
        log.add("an unknown float32 was read", "lib.py:2", "train.py:1")
    first, unused = log.assumptions()
    assert (first.text, first.line, first.count) == ("an unknown float32 was read (asked by lib.py:2)", "train.py:1", 3)
    assert "train.py:8" in unused.text
