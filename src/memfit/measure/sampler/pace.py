"""How often must the sampler look? Standard library only.

Waking up a hundred times a second costs a job more than the sampler's own time: another core leaves its sleep, and
shares caches, power and sometimes its arithmetic units with the one that trains. Two rules keep that small on any
machine, wherever the user has not asked for an interval and no guard depends on it:

  - Beside a single process that marks steps with exact peaks, samples only draw the curve in between, so the sampler
    looks at the eased interval. It is back at its usual pace within a second after the steps have stopped. Steps
    without a peak of their own do not count.
  - Elsewhere it takes no more than a small share of one core: where a look costs much, it looks less often.
"""

from __future__ import annotations

import contextlib
import os

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
