"""The sampler looks less often beside short marked steps, and only there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import memfit
from memfit.measure.pace import JUDGE_US, SHORT_STEP_US, Pace
from memfit.records.run import Settings, settings_for

USUAL_NS, EASED_NS = 10_000_000, 100_000_000
STRETCHES = st.lists(
    st.tuples(st.integers(JUDGE_US, 4 * JUDGE_US), st.integers(0, 200), st.integers(0, 4)), min_size=1, max_size=20
)


@given(STRETCHES)
def test_every_stretch_is_judged_by_its_own_steps_and_processes_alone(stretches: list[tuple[int, int, int]]):
    pace, now_us, num_steps = Pace(USUAL_NS, EASED_NS), 0, 0
    for spent_us, made, num_processes in stretches:
        now_us, num_steps = now_us + spent_us, num_steps + made
        assert pace.is_due(now_us)
        pace.judge(now_us, num_steps, num_processes)
        is_easy = num_processes == 1 and made > 0 and spent_us / made <= SHORT_STEP_US
        assert pace.interval_ns == (EASED_NS if is_easy else USUAL_NS)
        assert not pace.is_due(now_us + JUDGE_US - 1)


@given(st.integers(1, 10**9), st.one_of(st.none(), st.integers(1, 10**9)))
def test_easing_never_makes_the_sampler_look_more_often(usual_ns: int, eased_ns: int | None):
    pace = Pace(usual_ns, eased_ns)
    pace.judge(JUDGE_US, 10**6, 1)
    assert pace.interval_ns >= usual_ns
    if eased_ns is None:
        assert not pace.is_due(10**12)
        assert pace.interval_ns == usual_ns


def test_an_interval_that_is_asked_for_is_kept_and_only_the_usual_one_is_eased():
    assert settings_for(0.01) == Settings(interval_seconds=0.01)
    assert settings_for(None).eased_interval_seconds == 0.1


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
end = time.monotonic() + 1.6
while time.monotonic() < end:
    time.sleep(0.01)
"""


def samples_per_second(record: memfit.RunRecord, low_share: float, high_share: float) -> float:
    first, last = float(record.steps.end_seconds[0]), float(record.steps.end_seconds[-1])
    low, high = first + low_share * (last - first), first + high_share * (last - first)
    times = record.samples.time_seconds
    return float(((times >= low) & (times < high)).sum()) / (high - low)


@pytest.mark.parametrize(("interval", "is_eased"), [(None, True), (0.01, False)])
def test_short_steps_are_sampled_seldom_but_each_has_its_exact_peak(
    tmp_path: Path, interval: float | None, is_eased: bool
):
    done = memfit.measure_command(
        [sys.executable, "-c", STEPS], output=tmp_path / "run", settings=settings_for(interval)
    )
    record = done.read()
    assert len(record.steps) == 400
    peaks = record.steps.peak_bytes
    assert peaks[250] - peaks[350] > 60 << 20
    within, afterwards = samples_per_second(record, 0.4, 1.0), record.samples.time_seconds
    assert (within < 30) == is_eased
    since_seconds = afterwards - float(record.steps.end_seconds[-1])
    assert ((since_seconds > 1.0) & (since_seconds < 1.5)).sum() > 15  # the steps have stopped: the usual pace is back
