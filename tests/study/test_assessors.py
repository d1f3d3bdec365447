"""Do assessors stop what NNI's would stop, and only that?"""

from __future__ import annotations

import math

import pytest

from memfit.errors import UsageError
from memfit.records.figure import measured
from memfit.records.study import (
    Choice,
    Goal,
    Intermediate,
    MemoryRule,
    Proposal,
    SearchSpace,
    StudySettings,
    Tool,
    TrialOutcome,
    TrialRecord,
)
from memfit.study.assessors.scipy_curves import prolong
from memfit.study.engine.engine import SearchEngine

SPACE = SearchSpace(parameters=(Choice(name="a", options=tuple(range(100))),))

Log = list[tuple[list[float], int | None, bool]]
"""Each trial's results, after how many of them it was stopped, and whether it ended well."""

RECORDED: list[tuple[str, int, Log]] = [
    (
        "maximize",
        3,
        [
            ([0.95, -0.32, 1.77], None, True),
            ([0.55, 1.11, 0.42, 1.04, 0.25], None, True),
            ([-0.33], None, True),
            ([-0.11, -0.9], None, True),
            ([-0.97, -2.18, 1.65, 1.89, 0.57], None, True),
            ([-1.26, -0.33], None, True),
            ([0.56, 1.2, -0.62, -0.74, -0.34, -0.11], None, True),
            ([-1.23, 0.03], None, True),
            ([-0.94, -0.56, -0.55], 3, False),
            ([1.69, 0.08, -0.41, -0.36, 1.11, -0.6], None, True),
            ([0.91], None, True),
            ([0.47, 0.79, 0.96, -0.43], None, False),
        ],
    ),
    (
        "minimize",
        0,
        [
            ([0.95, -0.32, 1.77], None, True),
            ([0.55, 1.11], 2, False),
            ([0.42], None, True),
            ([0.39, 0.19, -1.67, 0.86], None, True),
            ([-0.9, -0.97], None, True),
            ([-2.18, 1.65, 1.89, 0.57, -0.14], None, True),
            ([0.54], 1, False),
            ([0.25, -0.58, -1.24, -0.7, -0.88], None, True),
            ([0.91], 1, False),
            ([0.41], 1, False),
            ([1.45], 1, False),
            ([-2.21, 0.49, -0.49], None, True),
        ],
    ),
]
"""What NNI 3.0's own MedianstopAssessor decided on made-up curves."""


def engine_with(assessor: Tool, direction: str = "maximize", **options: object) -> SearchEngine:
    return SearchEngine(
        StudySettings(
            space=SPACE,
            tuner=Tool(name="GridSearch"),
            assessor=assessor,
            goal=Goal(direction=direction),  # pyright: ignore[reportArgumentType]
            **options,  # pyright: ignore[reportArgumentType]
        )
    )


def so_far(proposal: Proposal, values: list[float | None], kind: str = "running") -> TrialRecord:
    reports = tuple(
        Intermediate(sequence=index, value=value, reason="" if value is not None else "nan is not a finite number")
        for index, value in enumerate(values)
    )
    outcome = TrialOutcome(kind=kind)  # pyright: ignore[reportArgumentType]
    return TrialRecord(proposal=proposal, outcome=outcome, intermediates=reports)


def finish(engine: SearchEngine, values: list[float | None], kind: str = "done") -> None:
    proposal = engine.ask()
    assert proposal is not None
    engine.tell(so_far(proposal, values, kind))


@pytest.mark.parametrize(("mode", "start_step", "log"), RECORDED)
def test_the_median_rule_decides_as_nnis_own(mode: str, start_step: int, log: Log):
    engine = engine_with(Tool(name="Medianstop", arguments={"optimize_mode": mode, "start_step": start_step}))
    for values, stopped_after, ended_well in log:
        proposal = engine.ask()
        assert proposal is not None
        stops = [
            count for count in range(1, len(values) + 1) if engine.assess(so_far(proposal, list(values[:count]))).stop
        ]
        assert stops == ([] if stopped_after is None else [stopped_after])
        kind = "stopped early" if stopped_after else "done" if ended_well else "failed"
        engine.tell(so_far(proposal, list(values), kind))


@pytest.mark.parametrize(("mode", "value", "beyond"), [("maximize", 0.35, 0.25), ("minimize", 0.65, 0.75)])
def test_of_two_averages_in_the_middle_the_worse_one_counts(mode: str, value: float, beyond: float):
    engine = engine_with(Tool(name="Medianstop", arguments={"optimize_mode": mode}))
    finish(engine, [0.3])
    finish(engine, [0.7])
    proposal = engine.ask()
    assert proposal is not None
    assert not engine.assess(so_far(proposal, [value])).stop
    assert engine.assess(so_far(proposal, [beyond])).stop


def test_a_stop_says_why():
    engine = engine_with(Tool(name="Medianstop"))
    finish(engine, [0.5, 0.6])
    proposal = engine.ask()
    assert proposal is not None
    assessment = engine.assess(so_far(proposal, [0.1]))
    assert assessment.stop
    assert assessment.reason == "its best of 1 results, 0.1, is worse than the median 0.5 of 1 finished trials"


def test_results_that_are_no_numbers_neither_stop_nor_break_anything():
    engine = engine_with(Tool(name="Medianstop"))
    finish(engine, [None, 0.9])
    finish(engine, [])
    proposal = engine.ask()
    assert proposal is not None
    assert not engine.assess(so_far(proposal, [None])).stop
    assert not engine.assess(so_far(proposal, [0.0, 0.0])).stop
    finish(engine, [0.5])
    assert engine.assess(so_far(proposal, [0.0])).stop


def test_trials_are_stopped_with_two_objectives_too():
    engine = engine_with(Tool(name="Medianstop"), memory=MemoryRule(use="objective"))
    proposal = engine.ask()
    assert proposal is not None
    import msgspec

    done = msgspec.structs.replace(so_far(proposal, [0.5], "done"), metric=0.5, peak=measured(1e9, "bytes", "invented"))
    engine.tell(done)
    proposal = engine.ask()
    assert proposal is not None
    assert engine.assess(so_far(proposal, [0.1])).stop


def curve(limit: float, speed: float, num_steps: int) -> list[float | None]:
    return [limit * (1 - math.exp(-speed * step)) for step in range(1, num_steps + 1)]


@pytest.mark.parametrize(("limit", "stops"), [(0.5, True), (0.93, False)])
@pytest.mark.parametrize("direction", ["maximize", "minimize"])
def test_a_curve_that_will_end_below_the_best_is_stopped(limit: float, stops: bool, direction: str):
    sign = 1 if direction == "maximize" else -1
    engine = engine_with(Tool(name="Curvefitting", arguments={"epoch_num": 20}), direction)
    finish(engine, [sign * value for value in curve(0.9, 0.4, 20) if value is not None])
    proposal = engine.ask()
    assert proposal is not None
    values = [sign * value for value in curve(limit, 0.4, 8) if value is not None]
    assert not engine.assess(so_far(proposal, list(values[:5]))).stop, "nothing is judged before start_step"
    assert engine.assess(so_far(proposal, list(values))).stop is stops


def test_a_curve_is_judged_only_every_gap_results():
    engine = engine_with(Tool(name="Curvefitting", arguments={"epoch_num": 20, "gap": 3}))
    finish(engine, curve(0.9, 0.4, 20))
    proposal = engine.ask()
    assert proposal is not None
    judged = [count for count in range(1, 13) if engine.assess(so_far(proposal, curve(0.3, 0.4, count))).stop]
    assert judged == [6, 9, 12]


@pytest.mark.parametrize("speed", [0.1, 0.3, 1.0])
def test_a_smooth_curve_is_prolonged_to_where_it_goes(speed: float):
    values = [value for value in curve(0.8, speed, 10) if value is not None]
    expected = 0.8 * (1 - math.exp(-speed * 20))
    assert prolong(values, 20) == pytest.approx(expected, abs=0.05)


def test_a_flat_or_finished_curve_ends_where_it_is():
    assert prolong([0.5] * 6, 20) == 0.5
    assert prolong([0.1, 0.2, 0.3], 3) == 0.3


@pytest.mark.parametrize(
    ("tool", "message"),
    [
        (Tool(name="Median"), "no such assessor"),
        (Tool(name="Medianstop", arguments={"start": 3}), "takes no argument"),
        (Tool(name="Medianstop", arguments={"start_step": -1}), "start_step is not a whole number"),
        (Tool(name="Medianstop", arguments={"optimize_mode": "up"}), "minimize or maximize"),
    ],
)
def test_wrong_assessors_are_refused_before_anything_runs(tool: Tool, message: str):
    with pytest.raises(UsageError, match=message):
        engine_with(tool)
