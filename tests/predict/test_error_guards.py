"""Questions behind which an error stands are answered with the way around the error."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable

import pytest

from memfit.predict.observe.error_guards import answer_without_error, number_without_error


class Unknown:
    """As a tensor whose value is asked for."""

    def __init__(self, usual: bool) -> None:
        self._usual = usual
        self.answers: list[bool | float | None] = []

    def __bool__(self) -> bool:
        self.answers.append(answer_without_error(sys._getframe(1)))
        return self._usual if self.answers[-1] is None else bool(self.answers[-1])

    def any(self) -> Unknown:
        return self

    def item(self) -> float:
        self.answers.append(number_without_error(sys._getframe(1), float(self._usual)))
        return float(self._usual) if self.answers[-1] is None else float(self.answers[-1])


def is_right(value: Unknown) -> bool:
    return bool(value)


def plain(value: Unknown) -> None:
    if value.any():
        raise ValueError


def negated(value: Unknown) -> None:
    if not value.any():
        message = "why"
        raise ValueError(message)


def asserted(value: Unknown) -> None:
    assert value, "why"


def asserted_not(value: Unknown) -> None:
    assert not bool(value)


def leaves(value: Unknown) -> None:
    if value:
        print("diverged")
        sys.exit(1)


def joined(value: Unknown) -> None:
    if value.answers is not None and not (value or not value):  # noqa: SIM221
        raise ValueError


def returned(value: Unknown) -> None:
    if not is_right(value):
        raise ValueError


def named(value: Unknown) -> None:
    good = bool(value)
    if not good:
        raise ValueError


def compared(value: Unknown) -> None:
    if value.item() <= 0 or value.item() > 0.5:
        raise ValueError


def chained(value: Unknown) -> None:
    if not value.item() != 1:
        raise ValueError


def many(value: Unknown) -> None:
    if any(value for _ in range(2)) or not all([not value]):
        raise ValueError


def falls_into(value: Unknown) -> None:
    if value:
        return
    raise ValueError


def otherwise(value: Unknown) -> None:
    if value:
        value.answers.append(None)
    else:
        raise ValueError


GUARDS = [
    plain, negated, asserted, asserted_not, leaves, joined, returned, named, compared, chained, falls_into, otherwise,
]  # fmt: skip


@pytest.mark.parametrize(("guard", "usual"), list(itertools.product(GUARDS, (True, False))))
def test_no_guard_fails_whatever_the_usual_answer(guard: Callable[[Unknown], None], usual: bool) -> None:
    value = Unknown(usual)
    guard(value)
    assert value.answers


def test_many_values_in_one_test_go_the_same_way() -> None:
    value = Unknown(True)
    with contextlib.suppress(ValueError):  # a list inside of the test is not followed
        many(value)
    assert value.answers[:2] == [False, False]


def caught(value: Unknown) -> None:
    try:
        if value:
            raise ValueError
    except ValueError:
        value.answers.append(None)


def open_branch(value: Unknown) -> None:
    if value:
        value.answers.append(None)


@pytest.mark.parametrize("asks", [caught, open_branch])
def test_where_no_error_decides_the_usual_answer_stays(asks: Callable[[Unknown], None]) -> None:
    value = Unknown(True)
    asks(value)
    assert value.answers == [None, None]
