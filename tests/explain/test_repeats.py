"""Does a comparison of repeats keep to its false alarms under ugly noise, and see what it says it sees?"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memfit.explain.run.repeats import FALSE_ALARMS, MIN_REPEATS, POWER, compare_means, confidence_for, interleaved

NUM_COMPARISONS = 1500
Noise = Callable[[np.random.Generator, int], np.ndarray]


def bimodal(share: float) -> Noise:
    """Two modes 7.5 % apart, as glibc's moving threshold makes them."""
    return lambda rng, n: 100 + 7.5 * (rng.random(n) < share) + rng.normal(0, 0.1, n)


def sticky_modes(rng: np.random.Generator, n: int) -> np.ndarray:
    """The mode changes only now and then."""
    changes = np.cumsum(rng.random(n) < 0.3) % 2
    return 100 + 7.5 * (changes ^ rng.integers(2)) + rng.normal(0, 0.1, n)


NOISES: dict[str, Noise] = {
    "normal": lambda rng, n: rng.normal(100, 1, n),
    "two modes, equal": bimodal(0.5),
    "two modes, one rare": bimodal(0.1),
    "two modes that last": sticky_modes,
    "drift": lambda rng, n: rng.normal(100, 1, n) + rng.normal(0, 1) * np.arange(n),
    "random walk": lambda rng, n: rng.normal(100, 0.3, n) + np.cumsum(rng.normal(0, 1, n)),
    "step": lambda rng, n: rng.normal(100, 0.3, n) + 5 * (np.arange(n) >= rng.integers(n)),
    "heavy tails": lambda rng, n: 100 + rng.standard_t(2, n),
    "skewed": lambda rng, n: 100 + rng.exponential(1, n),
}


def alarm_rate(noise: Noise, *, num_repeats: int, num_rows: int, shift: float = 0.0, seed: int = 5) -> float:
    """The share of comparisons in which any of `num_rows` independent rows is called different."""
    rng = np.random.default_rng(seed)
    is_second = np.array([label == "B" for label in interleaved(num_repeats)])
    confidence = confidence_for(num_rows)
    alarms = 0
    for _ in range(NUM_COMPARISONS // num_rows):
        for _ in range(num_rows):
            values = noise(rng, len(is_second)) + shift * is_second
            found = compare_means(values[~is_second], values[is_second], confidence)
            if abs(found.difference) > found.half_width:
                alarms += 1
                break
    return alarms / (NUM_COMPARISONS // num_rows)


@pytest.mark.parametrize("name", NOISES)
def test_equal_commands_are_called_different_in_at_most_one_of_twenty_tables(name: str):
    """A table of three rows; 0.02 is three standard errors of the simulated rate, plus a margin."""
    assert alarm_rate(NOISES[name], num_repeats=MIN_REPEATS, num_rows=3) <= FALSE_ALARMS + 0.02


def test_more_rows_or_more_repeats_do_not_raise_the_false_alarms():
    assert alarm_rate(NOISES["normal"], num_repeats=4, num_rows=9) <= FALSE_ALARMS + 0.06
    assert alarm_rate(NOISES["normal"], num_repeats=8, num_rows=3) <= FALSE_ALARMS + 0.03


@pytest.mark.parametrize(("num_repeats", "num_rows"), [(4, 9), (8, 1), (8, 5)])
def test_two_equal_modes_exceed_the_false_alarms_by_no_more_than_what_is_documented(num_repeats: int, num_rows: int):
    """Up to 8 % where every row has modes of its own; the rest is four standard errors of the simulated rate."""
    num_tables = NUM_COMPARISONS // num_rows
    margin = 4 * (0.08 * 0.92 / num_tables) ** 0.5
    assert alarm_rate(NOISES["two modes, equal"], num_repeats=num_repeats, num_rows=num_rows) <= 0.08 + margin


@pytest.mark.parametrize("name", ["normal", "skewed", "drift"])
def test_a_difference_as_large_as_what_is_resolved_is_seen_in_about_nine_of_ten(name: str):
    rng, noise = np.random.default_rng(3), NOISES[name]
    is_second = np.array([label == "B" for label in interleaved(MIN_REPEATS)])
    usual = []
    for _ in range(400):
        values = noise(rng, len(is_second))
        usual.append(compare_means(values[~is_second], values[is_second], confidence_for(9)).resolves)
    seen = alarm_rate(noise, num_repeats=MIN_REPEATS, num_rows=1, shift=float(np.median(usual)))
    assert seen >= POWER - 0.05


def test_five_per_cent_are_found_beside_the_noise_of_pinned_thresholds_and_hidden_by_two_modes():
    stable: Noise = lambda rng, n: rng.normal(100, 0.3, n)  # noqa: E731
    is_second = np.array([label == "B" for label in interleaved(MIN_REPEATS)])
    rng = np.random.default_rng(1)
    found = {"stable": 0, "modes": 0}
    for _ in range(300):
        for name, noise in (("stable", stable), ("modes", bimodal(0.5))):
            values = noise(rng, len(is_second)) + 5 * is_second
            result = compare_means(values[~is_second], values[is_second], confidence_for(9))
            found[name] += abs(result.difference) > result.half_width
    assert found["stable"] >= 297
    assert found["modes"] <= 60


VALUES = st.lists(st.floats(0, 1e9), min_size=4, max_size=8).map(np.array)


@settings(max_examples=60, deadline=None)
@given(first=VALUES, second=VALUES)
def test_exchanging_the_groups_turns_the_difference_around_and_keeps_the_widths(first: np.ndarray, second: np.ndarray):
    there, back = compare_means(first, second, 0.99), compare_means(second, first, 0.99)
    assert there.difference == -back.difference
    assert there.half_width == pytest.approx(back.half_width)
    assert there.resolves >= there.half_width >= 0
    wider = compare_means(first, second, 0.999)
    assert wider.half_width >= there.half_width


@given(st.integers(1, 30))
def test_the_order_holds_each_side_equally_often_and_cancels_a_drift(num_repeats: int):
    order = interleaved(num_repeats)
    places = {label: [n for n, mine in enumerate(order) if mine == label] for label in ("A", "B")}
    assert len(places["A"]) == len(places["B"]) == num_repeats
    assert abs(sum(places["A"]) - sum(places["B"])) <= 1


def test_repeats_that_never_vary_have_no_noise():
    found = compare_means(np.full(4, 7.0), np.full(4, 9.0), 0.99)
    assert (found.difference, found.half_width, found.resolves) == (2.0, 0.0, 0.0)
