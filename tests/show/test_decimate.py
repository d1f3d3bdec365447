"""Do peaks survive decimation, whatever the data and the budget?"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.show.page.data import pack, unpack
from memfit.show.views.decimate import coarsen, decimate, highest_rows, pyramid

VALUES = st.lists(st.integers(0, 2**45), min_size=1, max_size=300).map(lambda values: np.array(values, dtype=np.int64))
ROWS = st.integers(1, 400)


def times_of(values: np.ndarray) -> np.ndarray:
    return np.arange(len(values)) * 0.01


@given(values=VALUES, max_rows=ROWS)
def test_the_highest_and_lowest_value_survive_any_decimation(values: np.ndarray, max_rows: int):
    level = decimate(times_of(values), values, max_rows)
    assert level.high.max() == values.max()
    assert level.low.min() == values.min()


@given(values=VALUES, max_rows=ROWS)
def test_the_budget_of_rows_is_kept_and_times_stay_in_order(values: np.ndarray, max_rows: int):
    level = decimate(times_of(values), values, max_rows)
    assert 1 <= len(level) <= max_rows
    assert level.time_seconds[0] == 0
    assert np.all(np.diff(level.time_seconds) > 0)


@given(values=VALUES, max_rows=ROWS)
def test_every_sample_lies_between_the_low_and_high_of_its_row(values: np.ndarray, max_rows: int):
    level = decimate(times_of(values), values, max_rows)
    row = np.searchsorted(level.time_seconds, times_of(values), side="right") - 1
    assert np.all(level.low[row] <= values)
    assert np.all(values <= level.high[row])


@given(values=VALUES, max_rows=ROWS)
def test_every_low_and_high_is_a_value_of_its_own_row(values: np.ndarray, max_rows: int):
    level = decimate(times_of(values), values, max_rows)
    row = np.searchsorted(level.time_seconds, times_of(values), side="right") - 1
    for number in range(len(level)):
        own = values[row == number]
        assert level.high[number] in own
        assert level.low[number] in own


@given(values=VALUES, factor=st.integers(2, 9))
def test_every_level_of_a_pyramid_has_the_same_highest_value(values: np.ndarray, factor: int):
    levels = pyramid(times_of(values), values, max_rows=128, min_rows=4, factor=factor)
    assert {int(level.high.max()) for level in levels} == {int(values.max())}
    assert {int(level.low.min()) for level in levels} == {int(values.min())}
    assert [len(level) for level in levels] == sorted((len(level) for level in levels), reverse=True)


def test_coarsening_twice_is_coarsening_once_by_the_product():
    values = np.random.default_rng(0).integers(0, 1000, 240)
    once = coarsen(decimate(times_of(values), values, 240), 12)
    twice = coarsen(coarsen(decimate(times_of(values), values, 240), 4), 3)
    assert np.array_equal(once.high, twice.high)
    assert np.array_equal(once.low, twice.low)


def test_an_empty_curve_stays_empty_and_a_budget_of_zero_is_refused():
    assert len(decimate(np.zeros(0), np.zeros(0), 10)) == 0
    with pytest.raises(ValueError, match="at least one row"):
        decimate(np.zeros(3), np.zeros(3), 0)


@given(values=st.lists(st.one_of(st.just(float("nan")), st.integers(0, 10**12).map(float)), max_size=200), most=ROWS)
def test_the_step_with_the_highest_peak_is_always_among_those_drawn(values: list[float], most: int):
    column = np.array(values, dtype=float)
    rows = highest_rows(column, most)
    assert len(rows) <= max(most, 0) or len(column) <= most
    assert np.all(np.diff(rows) > 0)
    if np.any(~np.isnan(column)):
        assert np.nanmax(column[rows]) == np.nanmax(column)


@given(values=st.lists(st.one_of(st.just(float("nan")), st.integers(0, 2**44).map(float)), max_size=50))
def test_packed_numbers_come_back_within_their_unit_and_missing_ones_stay_missing(values: list[float]):
    column = np.array(values, dtype=float)
    packed = pack(column)
    back = unpack(packed)
    assert np.array_equal(np.isnan(back), np.isnan(column))
    assert np.all(np.abs(back - column)[~np.isnan(column)] <= packed["unit"] / 2)
    if np.nanmax(column, initial=0) < 2**32 - 1:
        assert packed["unit"] == 1
