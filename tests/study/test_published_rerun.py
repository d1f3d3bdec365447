"""Are published trials run again as they were published, in an order that no drift can follow, and compared fairly?"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from study_jobs import run

from memfit.errors import UsageError
from memfit.records.figure import measured
from memfit.records.study import Proposal, Study, TrialOutcome, TrialRecord
from memfit.show.terminal.study import rerun_text
from memfit.study.published import TABLES
from memfit.study.published_comparison import compare_with_published
from memfit.study.published_rerun import is_published, published_name, rerun_settings
from memfit.study.tuners.ordered import OrderedTuner
from memfit.units import MIB

TARGETS = [f"paper-{name}" for name in TABLES]


@given(num_points=st.integers(1, 12), replicates=st.integers(1, 5), seed=st.integers(0, 2**32))
def test_every_replicate_is_a_shuffle_of_all_points(num_points: int, replicates: int, seed: int):
    tuner = OrderedTuner([{"x": index} for index in range(num_points)], replicates, seed)
    for replicate in range(replicates):
        block = tuner.order[replicate * num_points : (replicate + 1) * num_points]
        assert sorted(row for row, _ in block) == list(range(num_points))
        assert {number for _, number in block} == {replicate}


def test_replicates_come_in_different_orders():
    order = OrderedTuner([{"x": index} for index in range(8)], 3, seed=0).order
    blocks = {tuple(row for row, _ in order[start : start + 8]) for start in (0, 8, 16)}
    assert len(blocks) == 3


@pytest.mark.parametrize("target", TARGETS)
def test_the_points_are_the_published_ones(target: str):
    settings = rerun_settings(target, replicates=2, steps=20)
    rows = TABLES[target.removeprefix("paper-")]
    points = settings.tuner.arguments["points"]
    assert [(p["lr"], p["epochs"], p["batch_size"], p["hidden"]) for p in points] == [row[:4] for row in rows]
    assert settings.max_trials == 2 * len(rows)
    assert settings.fixed["steps"] == 20
    assert any("20 optimizer steps" in note for note in settings.notes)


@pytest.mark.parametrize("target", TARGETS)
def test_new_points_lie_in_the_published_ranges_and_repeat_with_the_seed(target: str):
    rows = TABLES[target.removeprefix("paper-")]
    points = rerun_settings(target, num_random=30, seed=4).tuner.arguments["points"]
    assert points == rerun_settings(target, num_random=30, seed=4).tuner.arguments["points"]
    assert len(points) == 30
    for name, column in (("lr", 0), ("epochs", 1), ("batch_size", 2)):
        low, high = min(row[column] for row in rows), max(row[column] for row in rows)
        assert all(low <= point[name] <= high for point in points)


def test_an_unknown_table_is_refused():
    assert not is_published("paper-imagenet")
    with pytest.raises(UsageError, match="paper-imagenet") as caught:
        rerun_settings("paper-imagenet")
    assert "paper-mnist" in caught.value.hint


def made_study(sizes: dict[int, list[float]]) -> Study:
    """A re-run of the Fashion-MNIST table with these peaks in MiB."""
    settings = rerun_settings("paper-fashion-mnist", steps=5)
    points = settings.tuner.arguments["points"]
    trials = []
    for row, peaks in sizes.items():
        for replicate, peak in enumerate(peaks):
            memo = {"row": row, "replicate": replicate}
            trials.append(
                TrialRecord(
                    proposal=Proposal(number=len(trials), parameters=points[row], memo=memo),
                    outcome=TrialOutcome(kind="done"),
                    peak=measured(peak * MIB, "bytes", "test"),
                    average=measured(peak * MIB / 2, "bytes", "test"),
                    background=measured(1000 * MIB, "bytes", "test"),
                )
            )
    return Study(study_id="abc", settings=settings, trials=tuple(trials))


def test_replicates_are_averaged_beside_the_published_number():
    rerun = compare_with_published(made_study({0: [100, 110], 3: [200]}))
    first, fourth = rerun.rows[0], rerun.rows[3]
    assert (first.peak.value, first.peak.low, first.peak.high) == (105 * MIB, 100 * MIB, 110 * MIB)
    assert first.system.value == 52.5 * MIB + 1000 * MIB
    assert first.published.value == pytest.approx(2655.838252 * MIB)
    assert fourth.num_done == 1
    assert rerun.rows[1].peak.value is None
    assert "no replicate" in rerun.rows[1].peak.reason
    text = rerun_text(rerun, width=120)
    assert "not known" in text  # nothing was really run, so there is no evidence for the cap
    assert "5 optimizer steps" in text


def test_a_study_that_is_no_rerun_is_not_compared():
    study = made_study({0: [1]})
    random = msgspec.structs.replace(study, settings=rerun_settings("paper-fashion-mnist", num_random=2))
    assert published_name(study) == "fashion-mnist"
    assert published_name(random) == ""


def test_a_capped_rerun_shows_that_memory_does_not_change_after_step_two(tmp_path: Path):
    pytest.importorskip("torch")
    settings = rerun_settings("paper-mnist", replicates=1, steps=5)
    point = settings.tuner.arguments["points"][1]
    tuner = msgspec.structs.replace(settings.tuner, arguments={"points": [point, point], "replicates": 1})
    study, _ = run(msgspec.structs.replace(settings, tuner=tuner, max_trials=1), tmp_path / "study")
    trial = study.trials[0]
    assert trial.kind == "done", trial.outcome.message
    assert trial.others["num_parameters"] > 100_000
    assert Counter(t.kind for t in study.trials) == {"done": 1}
    evidence = compare_with_published(study).evidence
    assert (evidence.num_trials, evidence.num_steps) == (1, 5)
    assert evidence.share.value is not None
    assert evidence.share.value < 0.05
