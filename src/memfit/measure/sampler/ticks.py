"""Reads every process at a steady rate with little CPU; standard library only.

What a sampler costs is waking up (25-45 us of CPU each time, most of it in the kernel) and running code that has left
the caches meanwhile. So a tick only reads and keeps the raw text; the text is understood a batch at a time. A
plain sleep is a third cheaper than waiting for descriptors with a timeout; what must end it early is a signal, whose
handler raises `Woken`, but only while asleep.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from types import FrameType
from typing import NamedTuple

LONG_SLEEP_NS = 500_000_000
"""With a long interval the sleep is cut into pieces, so that other work goes on in between."""


class Woken(Exception):
    """A signal ended the sleep."""


class Reading(NamedTuple):
    """What one process answered at one tick, not yet understood."""

    time_ns: int
    deadline_ns: int
    pid: int
    answer: bytes | OSError


class Ticks:
    """A steady beat on the monotonic clock, and the sleep in between."""

    def __init__(self, interval_ns: int) -> None:
        self.interval_ns = interval_ns
        self.num_ticks = self.num_late = self.late_high_ns = 0
        self._deadline_ns = 0
        self._asleep = False
        self._woken = False

    def wake_on(self, *numbers: signal.Signals) -> None:
        """Signals that end a sleep; one that comes while awake ends the next."""
        for number in numbers:
            signal.signal(number, self._wake)

    def _wake(self, _number: int, _frame: FrameType | None) -> None:
        self._woken = True
        if self._asleep:
            self._asleep = False
            raise Woken

    def start(self) -> None:
        """The first tick is due now."""
        self._deadline_ns = time.monotonic_ns()

    def watch(self, files: list[tuple[int, int]], until_ns: int) -> list[Reading]:
        """Read (pid, open statm) at every tick until `until_ns` has passed, at least once; a signal ends it early.

        With an interval longer than half a second it also returns, without a reading, after every half second.
        """
        readings: list[Reading] = []
        pread, now = os.pread, time.monotonic_ns
        while self._sleep():
            time_ns, deadline_ns = now(), self._deadline_ns
            for pid, descriptor in files:
                try:
                    answer = pread(descriptor, 128, 0)
                except OSError as error:
                    answer = error
                readings.append(Reading(time_ns, deadline_ns, pid, answer))
            self._count(time_ns - deadline_ns)
            if time_ns >= until_ns:
                break
        return readings

    def _sleep(self) -> bool:
        """Sleep to the next deadline; False when it was not reached."""
        left_ns = self._deadline_ns - time.monotonic_ns()
        if left_ns <= 0:
            return not self._take_wake()
        try:
            self._asleep = True
            if not self._woken:
                time.sleep(min(left_ns, LONG_SLEEP_NS) / 1e9)
            self._asleep = False
        except Woken:
            pass
        return not self._take_wake() and left_ns <= LONG_SLEEP_NS

    def _take_wake(self) -> bool:
        woken, self._woken = self._woken, False
        self._asleep = False
        return woken

    def _count(self, late_ns: int) -> None:
        """One tick is done: the next deadline; those that were missed are left out."""
        self.num_ticks += 1
        self._deadline_ns += self.interval_ns
        if late_ns > self.late_high_ns:
            self.late_high_ns = late_ns
        if late_ns > self.interval_ns:
            self.num_late += 1
            self._deadline_ns += late_ns // self.interval_ns * self.interval_ns


# How often must the sampler look? Standard library only.
#
# Waking up a hundred times a second costs a job more than the sampler's own time: another core leaves its sleep, and
# shares caches, power and sometimes its arithmetic units with the one that trains. Two rules keep that small on any
# machine, wherever the user has not asked for an interval and no guard depends on it:
#
#   - Beside a single process that marks steps with exact peaks, samples only draw the curve in between, so the sampler
#     looks at the eased interval. It is back at its usual pace within a second after the steps have stopped. Steps
#     without a peak of their own do not count.
#   - Elsewhere it takes no more than a small share of one core: where a look costs much, it looks less often.

JUDGE_US = 250_000
"""Steps and costs are judged over stretches of this length."""
LONGEST_STEP_US = 600_000
"""Without a step for this long, the usual pace is back."""
LONGEST_ASLEEP_US = 300_000
"""A sampler that was stopped, or a machine that was asleep, has not waited for steps meanwhile."""
OWN_SHARE = 0.005
"""What the sampler may take of one core at its usual pace,"""
MOST_SLOWED = 5
"""unless it would have to look this many times less often."""


class Pace:
    """Chooses between the usual interval and the eased one."""

    def __init__(self, usual_ns: int, eased_ns: int | None) -> None:
        self.interval_ns = self._usual_ns = usual_ns
        self._eased_ns = eased_ns if eased_ns is not None and eased_ns > usual_ns else None
        self.is_eased = False
        self._since_us = self._waited_us = 0
        self._num_steps = 0
        self._cpu_ns = self._num_ticks = 0
        self._slowed_ns = usual_ns

    def is_due(self, now_us: int) -> bool:
        """Whether a stretch is over, so that counting the steps is worth its price."""
        return self._eased_ns is not None and now_us - self._since_us >= JUDGE_US

    def judge(self, now_us: int, num_steps: int, num_processes: int) -> None:
        """Choose the interval of the next stretch by when the last step with an exact peak ended."""
        waited_us = self._waited_us + min(now_us - self._since_us, LONGEST_ASLEEP_US)
        self._waited_us = 0 if num_steps > self._num_steps else min(waited_us, 2 * LONGEST_STEP_US)
        self._since_us = now_us
        self.is_eased = num_processes == 1 and num_steps > 0 and self._waited_us <= LONGEST_STEP_US
        self._num_steps = num_steps
        self.interval_ns = self._eased_ns if self.is_eased and self._eased_ns is not None else self._slowed_ns

    def spent(self, cpu_ns: int, num_ticks: int) -> None:
        """Keep to the share of one core: what the sampler has taken until now, and in how many looks."""
        if self.is_eased or num_ticks <= self._num_ticks:
            self._cpu_ns, self._num_ticks = cpu_ns, num_ticks
            return
        each_ns = (cpu_ns - self._cpu_ns) / (num_ticks - self._num_ticks)
        self._cpu_ns, self._num_ticks = cpu_ns, num_ticks
        wanted_ns = min(max(each_ns / OWN_SHARE, self._usual_ns), MOST_SLOWED * self._usual_ns)
        self._slowed_ns += int(wanted_ns - self._slowed_ns) // 4


def step_aside(is_eased: bool) -> None:
    """While eased, let this process wake together with others, and never push the job off its core."""
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_BATCH if is_eased else os.SCHED_OTHER, os.sched_param(0))
    with contextlib.suppress(OSError), open("/proc/self/timerslack_ns", "wb", buffering=0) as stream:
        stream.write(b"5000000" if is_eased else b"0")
