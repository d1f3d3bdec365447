"""Does the grid go over a space in the order of NNI's grid search?

The sequences were recorded from NNI 3.0's own GridSearchTuner.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

from memfit.records.study import StudySettings, TrialRecord
from memfit.study.engine.history import History
from memfit.study.space.field_errors import FieldPlace
from memfit.study.space.nni_space import read_space
from memfit.study.space.space import parameters_of
from memfit.study.tuners.base import NoMore
from memfit.study.tuners.grid import GridTuner, grid_points

Values = list[dict[str, Any] | None]


def choice(*options: Any) -> dict[str, Any]:
    return {"_type": "choice", "_value": list(options)}


def numbers(kind: str, *values: float) -> dict[str, Any]:
    return {"_type": kind, "_value": list(values)}


RECORDED: list[tuple[dict[str, Any], Values]] = [
    (
        {"lr": numbers("loguniform", 0.0001, 0.1)},
        [
            {"lr": value}
            for value in (
                0.003162277660168382,
                0.0005623413251903495,
                0.01778279410038924,
                0.00023713737056616573,
                0.0013335214321633251,
                0.007498942093324564,
                0.04216965034285825,
                0.00015399265260594933,
            )
        ],
    ),
    (
        {"a": choice(1, 2, 3), "b": choice("x", "y")},
        [*({"a": a, "b": b} for a in (1, 2, 3) for b in ("x", "y")), None],
    ),
    (
        {"x": choice(5, 7), "y": numbers("normal", 0, 1), "z": numbers("quniform", 2, 3, 1)},
        [
            {"x": x, "y": y * 0.6744897501960818, "z": z}
            for x, y, z in (
                (5, 0, 2.0),
                (7, 0, 2.0),
                (5, 0, 3.0),
                (5, -1, 2.0),
                (5, -1, 3.0),
                (5, 1, 2.0),
                (5, 1, 3.0),
                (7, 0, 3.0),
            )
        ],
    ),
    ({"q": numbers("quniform", 2, 10, 5)}, [{"q": 5.0}, {"q": 10.0}, {"q": 2.0}, None]),
    ({"q": numbers("quniform", 0.5, 0.9, 2)}, [{"q": 0.5}, None]),
    (
        {"q": numbers("qloguniform", 1, 100, 7), "r": numbers("randint", 0.5, 2.5)},
        [{"q": q, "r": r} for q in (7.0, 1.0, 35.0, 21.0) for r in (1, 2)],
    ),
    (
        {
            "m": choice(
                {"_name": "Empty"},
                {"_name": "conv", "k": choice(1, 2), "u": numbers("uniform", 0, 1)},
                {"_name": "pool", "p": numbers("randint", 1, 3)},
            ),
            "d": choice(None, [1, 2]),
        },
        [
            {"m": m, "d": d}
            for m in (
                {"_name": "Empty"},
                {"_name": "conv", "k": 1, "u": 0.5},
                {"_name": "conv", "k": 2, "u": 0.5},
                {"_name": "pool", "p": 1},
            )
            for d in (None, [1, 2])
        ],
    ),
    ({"n": numbers("qnormal", 5, 2, 1)}, [{"n": n} for n in (5.0, 4.0, 6.0, 3.0, 7.0, 2.0, 8.0, 1.0)]),
    (
        {"n": numbers("lognormal", 0, 1), "o": numbers("qlognormal", 1, 0.5, 1)},
        [{"n": n, "o": o} for n in (1.0, 0.5094162838632774, 1.9630310841582572) for o in (3.0, 2.0, 4.0)],
    ),
    ({"u": numbers("uniform", 99.9, 99.9), "c": choice(1, 2)}, [{"u": 99.9, "c": 1}, {"u": 99.9, "c": 2}, None]),
    ({"c": choice(1, 1, True, "1")}, [{"c": 1}, {"c": True}, {"c": "1"}, None]),
]


def ask_all(written: dict[str, Any], most: int) -> Values:
    space = read_space(written, FieldPlace("test"))
    history, tuner, found = History(StudySettings(space=space)), GridTuner(space), []
    for number in range(most):
        answer = tuner.propose(history, number)
        if isinstance(answer, NoMore):
            return [*found, None]
        assert not hasattr(answer, "reason")
        history.add(TrialRecord(proposal=answer))  # pyright: ignore[reportArgumentType]
        found.append(answer.parameters)  # pyright: ignore[reportAttributeAccessIssue]
    return found


@pytest.mark.parametrize(("written", "expected"), RECORDED)
def test_the_sequence_is_that_of_nni(written: dict[str, Any], expected: Values):
    found = ask_all(written, len(expected))
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours == (theirs if theirs is None else pytest.approx(theirs) if "m" not in theirs else theirs)
        assert repr(type(ours)) == repr(type(theirs))


def test_a_branch_within_a_branch_is_walked_too():
    written = {
        "outer": choice(
            {"_name": "a", "inner": choice({"_name": "b", "x": numbers("quniform", 0, 2, 1)}, {"_name": "c"})},
            {"_name": "d", "z": choice(0, 1)},
        )
    }
    found = ask_all(written, 10)
    inner = [{"_name": "a", "inner": {"_name": "b", "x": x}} for x in (1.0, 0.0, 2.0)]
    expected = [*inner, {"_name": "a", "inner": {"_name": "c"}}, {"_name": "d", "z": 0}, {"_name": "d", "z": 1}]
    assert found.pop() is None
    assert sorted(map(str, found)) == sorted(str({"outer": value}) for value in expected)


def test_even_an_unbounded_type_with_steps_comes_to_an_end():
    space = read_space({"n": numbers("qnormal", 0, 1, 1)}, FieldPlace("test"))
    values = {parameters_of(space, draws)["n"] for draws in islice(grid_points(space), 100_000)}
    assert values == set(range(-8, 9))


def test_no_combination_comes_twice_in_any_round():
    space = read_space(
        {"a": choice(1, 2, 3), "u": numbers("uniform", 0, 1), "v": numbers("normal", 0, 1)}, FieldPlace("t")
    )
    points = [tuple(draws.values()) for draws in islice(grid_points(space), 600)]
    assert len(set(points)) == len(points) == 600


def test_a_resumed_grid_goes_on_where_it_was():
    written = {"a": choice(1, 2, 3), "u": numbers("uniform", 0, 1)}
    whole = ask_all(written, 12)
    space = read_space(written, FieldPlace("test"))
    history = History(StudySettings(space=space))
    for number in range(12):
        answer = GridTuner(space).propose(history, number)
        history.add(TrialRecord(proposal=answer))  # pyright: ignore[reportArgumentType]
        assert answer.parameters == whole[number]  # pyright: ignore[reportAttributeAccessIssue]
