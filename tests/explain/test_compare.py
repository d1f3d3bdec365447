"""Is a difference called large only when repeats would not show it?"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memfit.explain.run.difference import Subject, compare_groups, diff_runs
from memfit.explain.run.ledger import explain_peak
from memfit.explain.run.noise import (
    DEFAULT_ALLOCATOR_RATIO,
    STABLE_ALLOCATOR_RATIO,
    median_noise,
    noise_interval,
)
from memfit.records.difference import Comparison, Difference
from memfit.records.run import GpuProcess, RunRecord
from memfit.runfolder.reader import read_run
from memfit.testing.made_records.runs import MadeRun, write_made_run
from memfit.units import MIB


def run_of(folder: Path, **plan) -> RunRecord:
    return read_run(write_made_run(folder, MadeRun(**plan)))


def row_of(comparison: Comparison, name: str) -> Difference:
    return next(row for row in comparison.differences if row.name == name)


def pair(tmp_path: Path, first: dict, second: dict) -> Comparison:
    return diff_runs(run_of(tmp_path / "a", **first), run_of(tmp_path / "b", **second))


def test_a_run_compared_with_itself_never_differs(tmp_path: Path):
    run = run_of(tmp_path, num_workers=2, energy="measured", ledger=True)
    subject = Subject(run=run, ledgers=explain_peak(run))
    comparison = compare_groups([subject], [subject])
    assert {row.verdict for row in comparison.differences} <= {"within the noise", "cannot tell"}
    assert all(row.change.value == 0 for row in comparison.differences)
    assert row_of(comparison, "peak").verdict == "within the noise"


def test_exchanging_the_sides_turns_every_change_around_and_keeps_the_verdicts(tmp_path: Path):
    a, b = run_of(tmp_path / "a", seed=1), run_of(tmp_path / "b", seed=2, step_rise_bytes=260 * MIB, num_workers=1)
    there, back = diff_runs(a, b), diff_runs(b, a)
    for row in there.differences:
        twin = row_of(back, row.name)
        assert twin.verdict == row.verdict
        if row.change.value is not None:
            assert twin.change.value == -row.change.value


def test_five_per_cent_is_noise_by_default_and_a_finding_when_stable(tmp_path: Path):
    larger = {"base_bytes": 322 * MIB, "step_rise_bytes": 161 * MIB, "seed": 9}
    default = row_of(pair(tmp_path / "1", {}, larger), "peak")
    assert default.verdict == "within the noise"
    assert "--stable" in default.reason
    stable = row_of(pair(tmp_path / "2", {"stable": True}, {"stable": True, **larger}), "peak")
    assert stable.verdict == "larger than the noise"
    assert stable.change.value == pytest.approx(23 * MIB, rel=0.1)


def test_one_stable_side_does_not_make_the_other_stable(tmp_path: Path):
    comparison = pair(tmp_path, {"stable": True}, {"base_bytes": 322 * MIB})
    assert row_of(comparison, "peak").verdict == "within the noise"
    assert any(note.startswith("stable:") for note in comparison.notes)


def test_the_change_lies_in_the_middle_of_its_noise_interval(tmp_path: Path):
    for row in pair(tmp_path, {}, {"seed": 1, "step_rise_bytes": 400 * MIB}).differences:
        if row.noise is not None and row.change.value is not None:
            assert row.change.low == pytest.approx(row.change.value - row.noise)
            assert row.change.high == pytest.approx(row.change.value + row.noise)
            assert (row.verdict == "larger than the noise") == (abs(row.change.value) > row.noise)


def test_a_run_that_was_cut_short_cannot_be_called_smaller(tmp_path: Path):
    cut = {"ending": "killed", "base_bytes": 150 * MIB, "stable": True}
    row = row_of(pair(tmp_path, cut, {"stable": True}), "peak")
    assert row.verdict == "cannot tell"
    assert "cut short" in row.reason


def test_a_run_that_was_cut_short_and_is_still_larger_is_larger(tmp_path: Path):
    cut = {"ending": "over the limit", "base_bytes": 500 * MIB, "stable": True}
    assert row_of(pair(tmp_path, cut, {"stable": True}), "peak").verdict == "larger than the noise"


def test_too_few_steps_give_no_verdict_on_the_step(tmp_path: Path):
    row = row_of(pair(tmp_path, {"seconds": 3.0, "step_seconds": 0.3}, {}), "median step time")
    assert row.verdict == "cannot tell"
    assert "steady steps" in row.reason


def test_energy_of_single_runs_is_shown_without_a_verdict(tmp_path: Path):
    row = row_of(pair(tmp_path, {"energy": "measured"}, {"energy": "measured"}), "energy, dram-0, per step")
    assert row.verdict == "cannot tell"
    assert "--repeat" in row.reason


@pytest.mark.parametrize("name", ["mean", "duration", "median step time"])
def test_one_run_each_gives_no_verdict_on_what_only_repeats_can_show(tmp_path: Path, name: str):
    slower = {"seconds": 20.0, "step_seconds": 0.5, "stable": True}
    row = row_of(pair(tmp_path, {"stable": True}, slower), name)
    assert row.verdict == "cannot tell"
    assert "--repeat" in row.reason
    assert row.noise is None


def test_two_repeats_each_give_no_verdict_on_time_either(tmp_path: Path):
    a, b = group(tmp_path, "a", [429, 430]), group(tmp_path, "b", [440, 441])
    assert row_of(compare_groups(a, b), "duration").verdict == "cannot tell"


def test_tensor_lines_are_counted_exactly_so_any_difference_counts(tmp_path: Path):
    run = run_of(tmp_path, ledger=True)
    (ledger,) = explain_peak(run)
    comparison = compare_groups([Subject(run=run, ledgers=(ledger,))], [Subject(run=run, ledgers=(ledger,))])
    row = row_of(comparison, "tensors: activation")
    assert row.noise == 0
    assert row.verdict == "within the noise"


def test_what_else_differs_is_said(tmp_path: Path):
    notes = " ".join(pair(tmp_path, {}, {"command": ("python", "other.py"), "interval_seconds": 0.02}).notes)
    assert "other.py" in notes
    assert "0.02" in notes


# ---- groups of repeats -----------------------------------------------------------------------------------------------


def group(tmp_path: Path, label: str, peaks_mib: list[int]) -> list[Subject]:
    """Runs whose peaks are exactly these."""
    return [
        Subject(run=run_of(tmp_path / f"{label}{n}", seconds=3.0, base_bytes=(peak - 160) * MIB, jitter_bytes=0))
        for n, peak in enumerate(peaks_mib)
    ]


def test_four_separated_repeats_per_side_beat_the_assumption_about_the_allocator(tmp_path: Path):
    a, b = group(tmp_path, "a", [429, 430, 431, 430]), group(tmp_path, "b", [440, 441, 440, 442])
    row = row_of(compare_groups(a, b), "peak")
    assert row.verdict == "larger than the noise"
    assert "Welch" in row.reason
    assert row.resolves is not None
    assert row.noise is not None
    assert row.noise < row.resolves < 10 * MIB
    assert row_of(compare_groups(a[:1], b[:1]), "peak").verdict == "within the noise"


def test_two_modes_on_both_sides_are_no_difference(tmp_path: Path):
    a, b = group(tmp_path, "a", [429, 461, 429, 461]), group(tmp_path, "b", [461, 461, 429, 461])
    assert row_of(compare_groups(a, b), "peak").verdict == "within the noise"


def test_two_lucky_repeats_do_not_hide_the_allocators_two_modes(tmp_path: Path):
    a, b = group(tmp_path, "a", [429, 429]), group(tmp_path, "b", [455, 455])
    assert row_of(compare_groups(a, b), "peak").verdict == "within the noise"


def test_the_spread_of_a_few_repeats_widens_the_noise(tmp_path: Path):
    a, b = group(tmp_path, "a", [300, 400]), group(tmp_path, "b", [430, 440])
    row = row_of(compare_groups(a, b), "peak")
    assert row.noise == 100 * MIB
    assert row.resolves is None
    assert row.verdict == "within the noise"


# ---- the noise itself ------------------------------------------------------------------------------------------------


def test_the_noise_interval_says_which_allocator_it_assumes(tmp_path: Path):
    default, stable = noise_interval(run_of(tmp_path / "a")), noise_interval(run_of(tmp_path / "b", stable=True))
    assert default is not None
    assert default.decisive is not None
    assert default.half_width == pytest.approx(DEFAULT_ALLOCATOR_RATIO * (default.low + default.high) / 2)
    assert default.decisive.source == "assumed"
    assert stable is not None
    assert stable.half_width == pytest.approx(STABLE_ALLOCATOR_RATIO * (stable.low + stable.high) / 2)


def test_an_unknown_peak_has_no_noise(tmp_path: Path):
    folder = write_made_run(tmp_path)
    for name in ("samples.bin", "events.jsonl"):
        (folder / name).unlink()
    assert noise_interval(read_run(folder)) is None


VALUES = st.lists(st.floats(0, 1e9), min_size=5, max_size=60).map(np.array)


@settings(max_examples=40, deadline=None)
@given(values=VALUES)
def test_the_noise_of_steps_is_repeatable_and_never_wider_than_their_range(values: np.ndarray):
    first, second = median_noise(values), median_noise(values)
    assert first == second
    assert first is not None
    assert 0 <= first.half_width <= np.ptp(values) + 1e-6


def test_the_bootstrap_interval_covers_the_true_median_about_as_often_as_it_says():
    rng = np.random.default_rng(7)
    covered = 0
    for _ in range(200):
        values = rng.normal(100, 10, 60)
        source = median_noise(values)
        assert source is not None
        covered += abs(np.median(values) - 100) <= source.half_width
    assert 180 <= covered <= 200


@pytest.mark.parametrize("processes", [(), (GpuProcess(pid=7, num_bytes=None),)])
def test_gpu_memory_that_the_driver_does_not_tell_is_unknown_and_not_zero(
    tmp_path: Path, processes: tuple[GpuProcess, ...]
):
    """Inside a container NVML names no process of the job: two runs then had the same peak of 0 bytes."""
    known = read_run(write_made_run(tmp_path, MadeRun(seconds=3.0, gpu=True)))
    unnamed = tuple(msgspec.structs.replace(reading, processes=processes) for reading in known.gpus)
    unknown = dataclasses.replace(known, gpus=unnamed)
    assert not [each for each in diff_runs(unknown, unknown).differences if each.name == "GPU 0 peak"]
    row = row_of(diff_runs(known, unknown), "GPU 0 peak")
    assert row.first.value is not None
    assert (row.second.value, row.verdict) == (None, "cannot tell")
    assert "container" in row.second.reason
