"""How often must the sampler look? Standard library only.

Waking up a hundred times a second costs a job more than the sampler's own time: another core leaves its sleep, and
shares caches, power and sometimes its arithmetic units with the one that trains. Beside a single process that marks
short steps, each with its exact peak, the samples in between tell nothing new, so the sampler looks less often; it is
back at its usual pace within a second after the steps have stopped. Steps without a peak of their own do not count.
"""

from __future__ import annotations

SHORT_STEP_US = 50_000
JUDGE_US = 250_000
"""Steps are counted over stretches of this length."""


class Pace:
    """Chooses between the usual interval and the eased one."""

    def __init__(self, usual_ns: int, eased_ns: int | None) -> None:
        self.interval_ns = self._usual_ns = usual_ns
        self._eased_ns = eased_ns if eased_ns is not None and eased_ns > usual_ns else None
        self._since_us = 0
        self._num_steps = 0

    def is_due(self, now_us: int) -> bool:
        """Whether a stretch is over, so that counting the steps is worth its price."""
        return self._eased_ns is not None and now_us - self._since_us >= JUDGE_US

    def judge(self, now_us: int, num_steps: int, num_processes: int) -> None:
        """Choose the interval of the next stretch by the steps with an exact peak in this one."""
        made, spent_us = num_steps - self._num_steps, now_us - self._since_us
        is_easy = num_processes == 1 and made * SHORT_STEP_US >= spent_us
        self.interval_ns = self._eased_ns if is_easy and self._eased_ns is not None else self._usual_ns
        self._since_us, self._num_steps = now_us, num_steps
