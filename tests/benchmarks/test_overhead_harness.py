"""Are the statistics of the overhead benchmark right: intervals, verdicts, schedules, figures taken from blocks?"""

from __future__ import annotations

import math
import random
from collections import Counter
from pathlib import Path
from statistics import median

import pytest
from benchmarks.overhead import paired
from benchmarks.overhead.ledger import traced_quotients
from benchmarks.overhead.paired import Estimate, estimate, ratio, rounds, verdict_below
from benchmarks.overhead.pss_reader import largest_median
from benchmarks.overhead.report import publish
from benchmarks.overhead.trainer import Block
from benchmarks.overhead.whole_runs_report import Run, added_bytes, errors_bytes
from hypothesis import given
from hypothesis import strategies as st

quotients = st.lists(st.floats(0.5, 2.0), min_size=1, max_size=30)


def known(value: float, low: float, high: float, num_values: int = 40) -> Estimate:
    return Estimate(value=value, low=low, high=high, num_values=num_values)


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paired, "NUM_RESAMPLES", 200)


@given(quotients)
def test_the_interval_holds_the_median_and_stays_within_the_values(values: list[float]) -> None:
    found = estimate(values, seed=0)
    assert min(values) <= found.low <= found.value <= found.high <= max(values)
    assert found.value == median(values)


@given(quotients)
def test_the_same_values_and_seed_give_the_same_interval(values: list[float]) -> None:
    assert estimate(values, seed=7) == estimate(values, seed=7)


def test_the_interval_shrinks_when_there_are_more_values() -> None:
    draw = random.Random(1)
    widths = []
    for size in (10, 1000):
        found = estimate([draw.gauss(1.0, 0.05) for _ in range(size)], seed=0)
        widths.append(found.high - found.low)
    assert widths[1] < widths[0] / 3


def test_an_interval_of_90_percent_covers_the_truth_about_nine_times_in_ten() -> None:
    draw = random.Random(2)
    hits = 0
    for trial in range(200):
        found = estimate([draw.gauss(1.0, 0.05) for _ in range(25)], seed=trial)
        hits += found.low <= 1.0 <= found.high
    assert 0.82 <= hits / 200 <= 0.98


def test_an_estimate_from_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing"):
        estimate([], seed=0)


@given(st.floats(0.9, 1.5), st.lists(st.floats(0.01, 10.0), min_size=6, max_size=20))
def test_a_machine_that_changes_its_speed_between_pairs_does_not_change_the_ratio(
    factor: float, speeds: list[float]
) -> None:
    found = ratio([factor * speed for speed in speeds], speeds, seed=0)
    assert math.isclose(found.value, factor, rel_tol=1e-9)


def test_pairs_of_different_number_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        ratio([1.0, 2.0], [1.0], seed=0)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.99, 1.01, "reached"),
        (1.011, 1.02, "missed"),
        (0.99, 1.011, "cannot tell (control is ±3.0 %)"),
    ],
)
def test_a_target_is_judged_by_the_whole_interval(low: float, high: float, verdict: str) -> None:
    control = known(1.0, 0.97, 1.02)
    assert verdict_below(known((low + high) / 2, low, high), 1.01, control) == verdict


def test_too_few_measurements_are_no_verdict_however_good_they_look() -> None:
    assert verdict_below(known(1.0, 1.0, 1.0, num_values=3), 1.01) == "cannot tell (only 3 measurements)"


@given(st.dictionaries(st.sampled_from("abcd"), st.integers(1, 4), min_size=1), st.integers(1, 12), st.integers())
def test_every_round_holds_every_tool_and_orders_are_balanced(
    pairs: dict[str, int], num_rounds: int, seed: int
) -> None:
    schedule = rounds(pairs, num_rounds, seed)
    assert len(schedule) == num_rounds
    assert all(Counter(turn.tool for turn in turns) == Counter(pairs) for turns in schedule)
    for tool in pairs:
        first = [turn.on_first for turns in schedule for turn in turns if turn.tool == tool]
        assert abs(sum(first) - (len(first) - sum(first))) <= 1
    assert rounds(pairs, num_rounds, seed) == schedule


def test_a_traced_step_is_compared_with_its_neighbours_and_warm_steps_are_not_counted() -> None:
    times = [1.0] * 10
    times[4], times[6] = 3.0, 2.0  # steps 8 and 10 when three warm ones came before
    block = Block(
        cpu_seconds=times, wall_seconds=times, warm_cpu_seconds=[9.0] * 3, switch_cpu_seconds=0.0, traced_steps=[]
    )
    assert traced_quotients(block, traced_steps=[2, 8, 10], num_warm=3) == [3.0, 2.0]
    assert traced_quotients(block, traced_steps=[4, 13], num_warm=3) == []  # no neighbour on one side


def test_one_wild_reading_is_not_taken_for_the_peak_of_a_tree() -> None:
    assert largest_median([100, 110, 900, 120, 130, 125]) == 130


def test_errors_and_added_memory_are_differences_of_the_same_round() -> None:
    plain = [Run(true_bytes=size, reported_bytes=None, named_share=None) for size in (100, 200, 300)]
    tool = [Run(true_bytes=size + 7, reported_bytes=size, named_share=None) for size in (100, 200, 300)]
    assert errors_bytes(tool) == [-7, -7, -7]
    assert errors_bytes(plain) == []
    assert added_bytes(tool, plain) == [7, 7, 7]
    assert added_bytes(plain, plain) == [-100, 0, 100]


def test_publishing_replaces_the_old_results_and_nothing_else(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("top\n<!-- results: begin -->\nold\n<!-- results: end -->\nbottom\n", encoding="utf-8")
    for text in ("first", "second"):
        publish(page, text)
    expected = "top\n<!-- results: begin -->\n\nsecond\n<!-- results: end -->\nbottom\n"
    assert page.read_text(encoding="utf-8") == expected


def test_publishing_into_a_page_without_a_place_is_refused_and_leaves_it_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("no place", encoding="utf-8")
    with pytest.raises(ValueError, match="no place for the results"):
        publish(page, "text")
    assert page.read_text(encoding="utf-8") == "no place"
