"""Do fewer runs die of memory when the tuner is told that they did, and fewer still with a prediction?"""

from __future__ import annotations

import pytest
from benchmarks.study.constraint_toy import ARMS, run_arm, share_that_does_not_fit

NUM_SUGGESTIONS = 60
SEEDS = (1, 2)


def share_of_deaths(arm: str) -> float:
    results = [run_arm(**ARMS[arm], seed=seed, num_suggestions=NUM_SUGGESTIONS) for seed in SEEDS]
    return sum(result.num_out_of_memory for result in results) / sum(result.num_started for result in results)


def test_most_of_the_space_does_not_fit():
    assert 0.6 < share_that_does_not_fit(4000) < 0.75


@pytest.mark.slow
def test_told_as_infeasible_few_runs_die_and_without_being_told_most_do():
    constraint, control = share_of_deaths("constraint"), share_of_deaths("no constraint")
    assert constraint <= 0.30
    assert control >= 0.80, "the control shows that it is the constraint that helps"


@pytest.mark.slow
def test_with_a_prediction_that_is_wrong_by_a_third_hardly_any_run_dies():
    assert share_of_deaths("predictor 30 %") <= 0.05
