"""The sampler looks less often beside marked steps, and where a look costs much."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import memfit
from memfit.measure.sampler.ticks import JUDGE_US, LONGEST_ASLEEP_US, LONGEST_STEP_US, MOST_SLOWED, OWN_SHARE, Pace
from memfit.records.run import Settings, settings_for

USUAL_NS, EASED_NS = 10_000_000, 100_000_000
STRETCHES = st.lists(
    st.tuples(st.integers(JUDGE_US, 4 * JUDGE_US), st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=30
)


@given(STRETCHES)
def test_the_sampler_is_eased_beside_one_process_whose_last_step_is_not_long_ago(stretches: list[tuple[int, int, int]]):
    pace, now_us, num_steps, waited_us = Pace(USUAL_NS, EASED_NS), 0, 0, 0
    for spent_us, made, num_processes in stretches:
        now_us, num_steps = now_us + spent_us, num_steps + made
        waited_us = 0 if made else waited_us + min(spent_us, LONGEST_ASLEEP_US)
        assert pace.is_due(now_us)
        pace.judge(now_us, num_steps, num_processes)
        is_easy = num_processes == 1 and num_steps > 0 and waited_us <= LONGEST_STEP_US
        assert pace.interval_ns == (EASED_NS if is_easy else USUAL_NS)
        assert not pace.is_due(now_us + JUDGE_US - 1)


def test_a_sampler_that_was_stopped_for_a_while_has_not_waited_for_steps_meanwhile():
    pace = Pace(USUAL_NS, EASED_NS)
    pace.judge(JUDGE_US, 10, 1)
    pace.judge(3600 * 1_000_000, 10, 1)
    assert pace.is_eased


@given(st.integers(1, 10**9), st.one_of(st.none(), st.integers(1, 10**9)), st.integers(0, 10**9))
def test_no_rule_makes_the_sampler_look_more_often(usual_ns: int, eased_ns: int | None, cost_ns: int):
    pace = Pace(usual_ns, eased_ns)
    pace.spent(cost_ns, 1)
    pace.judge(JUDGE_US, 10**6, 1)
    assert pace.interval_ns >= usual_ns
    pace.spent(2 * cost_ns, 2)
    pace.judge(10 * LONGEST_STEP_US, 10**6, 2)
    assert pace.interval_ns >= usual_ns
    if eased_ns is None:
        assert not pace.is_due(10**12)


@pytest.mark.parametrize("cost_us", [5, 40, 100, 200, 2000])
def test_the_sampler_keeps_to_its_share_of_a_core_where_a_look_costs_much(cost_us: int):
    """By a made clock: every look takes that much CPU time, and looks come at the interval chosen."""
    pace, now_ns, cpu_ns, num_ticks = Pace(USUAL_NS, EASED_NS), 0, 0, 0
    begin = (0, 0)
    while now_ns < 60 * 10**9:
        now_ns, cpu_ns, num_ticks = now_ns + pace.interval_ns, cpu_ns + cost_us * 1000, num_ticks + 1
        if pace.is_due(now_ns // 1000):
            pace.spent(cpu_ns, num_ticks)
            pace.judge(now_ns // 1000, 0, 3)
        if now_ns < 10 * 10**9:
            begin = (now_ns, cpu_ns)
    share = (cpu_ns - begin[1]) / (now_ns - begin[0])
    assert share <= 1.01 * max(OWN_SHARE, cost_us * 1000 / (MOST_SLOWED * USUAL_NS))
    assert pace.interval_ns == USUAL_NS or share > 0.9 * OWN_SHARE, "it looks no less often than it must"


def test_an_interval_that_is_asked_for_is_kept_and_only_the_usual_one_is_eased():
    assert settings_for(0.01) == Settings(interval_seconds=0.01)
    assert settings_for(None).eased_interval_seconds == 0.2


STEPS = """
import time
import memfit_inside as inside
block = bytearray(64 << 20)
for number in range(400):
    inside.mark_forward()
    inside.mark_step()
    if number == 300:
        del block
    time.sleep(0.005)
end = time.monotonic() + 2.0
while time.monotonic() < end:
    time.sleep(0.01)
"""


def samples_per_second(record: memfit.RunRecord, low_share: float, high_share: float) -> float:
    first, last = float(record.steps.end_seconds[0]), float(record.steps.end_seconds[-1])
    low, high = first + low_share * (last - first), first + high_share * (last - first)
    times = record.samples.time_seconds
    return float(((times >= low) & (times < high)).sum()) / (high - low)


@pytest.mark.slow
@pytest.mark.parametrize(("interval", "is_eased"), [(None, True), (0.01, False)])
def test_short_steps_are_sampled_seldom_but_each_has_its_exact_peak(
    tmp_path: Path, interval: float | None, is_eased: bool
):
    done = memfit.measure_command(
        [sys.executable, "-c", STEPS], output=tmp_path / "run", settings=settings_for(interval)
    )
    record = done.read()
    steps = record.steps
    assert steps.total == 400
    before, after = steps.peak_bytes[steps.step <= 300], steps.peak_bytes[steps.first_step > 302]
    assert before.min() - after.max() > 60 << 20
    within, afterwards = samples_per_second(record, 0.4, 1.0), record.samples.time_seconds
    assert (within < 30) == is_eased
    since_seconds = afterwards - float(record.steps.end_seconds[-1])
    assert ((since_seconds > 1.2) & (since_seconds < 1.9)).sum() > 10  # the steps have stopped: the usual pace is back
