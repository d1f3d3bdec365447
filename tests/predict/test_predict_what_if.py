"""Do sweeps, fits and savings obey their laws?"""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.predict.levels.savings import block_of, largest_fitting, savings_of, sweep_peaks, values_between
from memfit.records.timeline import LiveSpan, PhaseMark, Timeline


def span(
    start: int, end: int | None, num_bytes: int, category: str, phase: str = "forward", module: str = ""
) -> LiveSpan:
    return LiveSpan(start=start, end=end, num_bytes=num_bytes, category=category, phase=phase, module=module)  # pyright: ignore[reportArgumentType]


@given(st.integers(1, 10_000), st.integers(0, 10_000))
def test_the_largest_fitting_value_fits_and_the_next_does_not(start: int, limit: int):
    best = largest_fitting(lambda value: value <= limit, start)
    assert best == (limit if limit >= 1 else None)


@given(st.integers(1, 100), st.integers(1, 1000), st.integers(0, 10_000))
def test_a_straight_line_is_traced_only_three_times(low: int, slope: int, offset: int):
    traced: list[int] = []
    values = values_between(low, low + 500)

    def peak_at(value: int) -> int:
        traced.append(value)
        return offset + slope * value

    peaks = sweep_peaks(peak_at, values)
    assert {value: peak for value, (peak, _) in peaks.items()} == {v: offset + slope * v for v in values}
    assert len(traced) <= 3


@given(st.integers(2, 400))
def test_a_bent_line_is_never_off_by_more_than_its_tolerance_at_traced_points(bend: int):
    def peak(value: int) -> int:
        return max(10_000, 100 * value) if value < bend else 100 * bend + 900 * (value - bend)

    for value, (found, how) in sweep_peaks(peak, values_between(1, 512)).items():
        if how == "traced":
            assert found == peak(value)


def test_a_change_that_saves_nothing_is_not_offered():
    timeline = Timeline(spans=(span(0, None, 100, "parameter", "setup"),), num_events=1)
    assert savings_of(timeline, "cpu") == ()


def test_dropping_the_state_saves_its_bytes_when_the_peak_stays_where_it_is():
    spans = (
        span(0, None, 100, "parameter", "setup"),
        span(1, None, 200, "optimizer state", "update"),
        span(2, 3, 50, "activation"),
    )
    savings = {s.change: s.saved_bytes for s in savings_of(Timeline(spans=spans, num_events=4), "cpu")}
    assert savings["an optimizer without state (plain SGD)"] == 200
    assert savings["half the batch"] == 25


def test_recomputing_keeps_one_block_and_the_results_of_the_others():
    spans = tuple(
        span(i, 10 + i, 10 * (1 + i % 2), "activation", module=f"blocks.{i // 2}.layer") for i in range(6)
    )  # three blocks, each with an inner tensor of 10 and a result of 20
    timeline = Timeline(spans=spans, num_events=20, phases=(PhaseMark(start=0, step=1, phase="forward"),))
    saving = {s.change: s.saved_bytes for s in savings_of(timeline, "cpu")}
    assert saving["recomputing the blocks in the backward (activation checkpointing)"] == 20


@pytest.mark.parametrize(
    ("module", "block"),
    [("blocks.3.qkv", "blocks.3"), ("model.layers.0.mlp.up", "model.layers.0"), ("head", ""), ("4", "")],
)
def test_a_block_ends_at_the_first_number(module: str, block: str):
    assert block_of(module) == block


@pytest.mark.parametrize(("dtype", "saved"), [("float32", 400), ("bfloat16", 0), ("bool", 0), ("", 0)])
def test_half_precision_halves_only_what_is_in_single_precision(dtype: str, saved: int):
    spans = (
        span(0, None, 100, "parameter", "setup"),
        msgspec.structs.replace(span(1, 2, 800, "activation"), dtype=dtype),
    )
    found = {s.change: s.saved_bytes for s in savings_of(Timeline(spans=spans, num_events=3), "cpu")}
    assert found.get("activations in half precision", 0) == saved
