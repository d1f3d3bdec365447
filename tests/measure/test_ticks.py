"""Does the sampler's beat keep its time, miss no wake-up, and say how late it was?"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from memfit.measure.sampler.ticks import Ticks

MS = 1_000_000


@pytest.fixture
def statm() -> Iterator[list[tuple[int, int]]]:
    descriptor = os.open("/proc/self/statm", os.O_RDONLY)
    yield [(os.getpid(), descriptor)]
    os.close(descriptor)


@pytest.fixture
def woken_ticks() -> Iterator[Callable[[int], Ticks]]:
    """Ticks that SIGUSR1 wakes; the old handler comes back."""
    before = signal.getsignal(signal.SIGUSR1)

    def make(interval_ns: int) -> Ticks:
        ticks = Ticks(interval_ns)
        ticks.wake_on(signal.SIGUSR1)
        ticks.start()
        return ticks

    yield make
    signal.signal(signal.SIGUSR1, before)


def test_every_reading_belongs_to_a_deadline_on_the_grid(statm):
    ticks = Ticks(2 * MS)
    ticks.start()
    readings = ticks.watch(statm, time.monotonic_ns() + 100 * MS)
    first = readings[0].deadline_ns
    assert len(readings) == ticks.num_ticks > 3
    assert all((reading.deadline_ns - first) % (2 * MS) == 0 for reading in readings)
    assert all(reading.time_ns >= reading.deadline_ns for reading in readings)
    assert len({reading.deadline_ns for reading in readings}) == len(readings)


def test_ticks_that_were_missed_are_left_out_and_the_late_one_is_counted(statm):
    ticks = Ticks(5 * MS)
    ticks.start()
    ticks.watch(statm, 0)
    time.sleep(0.05)
    (late,) = ticks.watch(statm, 0)
    assert late.time_ns - late.deadline_ns > 5 * MS
    assert (ticks.num_ticks, ticks.num_late) == (2, 1)
    assert ticks.late_high_ns >= 40 * MS
    (after,) = ticks.watch(statm, 0)
    assert after.deadline_ns > late.time_ns


def test_a_signal_ends_a_long_sleep_at_once(woken_ticks, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("memfit.measure.sampler.ticks.LONG_SLEEP_NS", 60_000 * MS)
    ticks = woken_ticks(3600 * 1000 * MS)
    ticks.watch([], 0)
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    began = time.monotonic()
    assert ticks.watch([], 0) == []
    assert 0.05 < time.monotonic() - began < 30


def test_a_signal_that_comes_while_awake_ends_the_next_sleep(woken_ticks, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("memfit.measure.sampler.ticks.LONG_SLEEP_NS", 60_000 * MS)
    ticks = woken_ticks(3600 * 1000 * MS)
    ticks.watch([], 0)
    signal.raise_signal(signal.SIGUSR1)
    began = time.monotonic()
    assert ticks.watch([], 0) == []
    assert time.monotonic() - began < 30


def test_signals_at_any_moment_never_escape_as_an_exception(woken_ticks, statm):
    ticks = woken_ticks(MS // 2)
    until = time.monotonic() + 0.5
    stop = threading.Event()

    def pester() -> None:
        while not stop.is_set():
            os.kill(os.getpid(), signal.SIGUSR1)

    thread = threading.Thread(target=pester)
    thread.start()
    try:
        while time.monotonic() < until:
            ticks.watch(statm, time.monotonic_ns() + MS)
    finally:
        stop.set()
        thread.join()
    assert ticks.num_ticks > 0


def test_a_file_that_cannot_be_read_is_a_reading_too(tmp_path: Path):
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        ticks = Ticks(MS)
        ticks.start()
        (reading,) = ticks.watch([(1, descriptor)], 0)
    finally:
        os.close(descriptor)
    assert isinstance(reading.answer, OSError)
