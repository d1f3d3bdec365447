"""Are steps counted as a person counts them: on ranks, in processes of their own, by several optimizers?"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.api import view_run
from memfit.records.run_parts.steps import Steps, no_steps
from memfit.runfolder.reader import read_run
from memfit.show.as_json import plain
from memfit.show.page.data import page_json
from memfit.show.terminal.run import summary_text
from memfit.show.views.steps import _weighted_median, count_steps, steps_view
from memfit.testing.made_records.processes import MadeProcess, MadeTree, write_made_tree
from memfit.units import MIB


def steps_of(processes: list[int], optimizers: list[int] | None = None, sizes: list[int] | None = None) -> Steps:
    number = len(processes)
    columns = {f.name: np.arange(number, dtype=np.float64) for f in fields(Steps)}
    columns |= {"process": np.array(processes), "optimizer": np.array(optimizers or [0] * number)}
    columns["group_size"] = np.array(sizes or [1] * number)
    return Steps(**columns | {"end_seconds": np.arange(number) + 0.5})


@pytest.mark.parametrize(
    ("processes", "ranks", "words", "number"),
    [
        ([1, 2] * 10, {1, 2}, "10 on each of 2 ranks", 10),
        ([1] * 10 + [2] * 10, set(), "10 on each of 2 processes", 20),
        ([1, 2] * 4 + [2], {1, 2}, "4 to 5 on each of 2 ranks", 5),
        ([0] * 12, set(), "12", 12),
    ],
)
def test_steps_of_ranks_are_made_together_and_those_of_other_processes_apart(processes, ranks, words, number):
    steps = steps_of(processes)
    assert steps_view(steps, max_steps=100, ranks=ranks).words == words
    assert count_steps(steps, ranks) == number


def test_the_steps_of_several_optimizers_are_told_apart():
    assert steps_view(steps_of([0] * 24, [0, 1] * 12), max_steps=100).words == "24 (12 by each of 2 optimizers)"
    assert steps_view(steps_of([0] * 12, [0, 0, 0, 0, 0, 1] * 2), max_steps=100).words == "12 (10, 2 by 2 optimizers)"


def test_a_group_counts_as_its_steps_and_a_mixed_one_names_no_optimizer():
    assert steps_view(steps_of([0, 0], sizes=[3, 1]), max_steps=100).words == "4"
    assert steps_view(steps_of([0, 0], [-1, 0], [3, 1]), max_steps=100).words == "4 (by several optimizers)"
    assert steps_view(steps_of([1, 2], sizes=[7, 7]), max_steps=100, ranks={1, 2}).words == "7 on each of 2 ranks"


@given(st.lists(st.tuples(st.floats(0, 1e6), st.integers(1, 9)), min_size=1, max_size=20))
def test_the_weighted_median_is_that_of_the_repeated_values(rows: list[tuple[float, int]]):
    values, weights = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    assert _weighted_median(values, weights) == np.median(np.repeat(values, weights))


def test_a_group_that_claims_a_billion_steps_costs_nothing():
    view = steps_view(steps_of([0] * 3, sizes=[1, 999_999_999, 999_999_999]), max_steps=100)
    assert view.num_steps == 1_999_999_999


def test_the_pace_of_ranks_is_that_of_one_of_them():
    view = steps_view(steps_of([1, 2] * 10), max_steps=100, ranks={1, 2})
    assert view.steps_per_second.value == pytest.approx(0.5)
    assert steps_view(no_steps(), max_steps=100).num_steps == 0


def test_summary_page_and_json_say_the_same_of_two_ranks_and_workers_are_none(tmp_path: Path):
    launcher = MadeProcess(pid=1, command="torchrun", samples=((0, MIB),))
    ranks = [
        MadeProcess(pid=2 + rank, parent_pid=1, marked_peaks_bytes=(MIB,) * 10, rank=(rank, 2)) for rank in range(2)
    ]
    worker = MadeProcess(pid=9, parent_pid=2, command="pt_data_worker", marked_peaks_bytes=(), rank=(0, 2))
    record = read_run(write_made_tree(tmp_path / "run", MadeTree(processes=(launcher, *ranks, worker))))
    view = view_run(record)
    assert "Steps  10 on each of 2 ranks" in summary_text(view)
    assert '"words":"10 on each of 2 ranks"' in page_json(view)
    steps = plain(view)["steps"]
    assert (steps["num_steps"], steps["num_ranks"]) == (10, 2)
