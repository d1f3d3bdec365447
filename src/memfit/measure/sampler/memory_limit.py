"""Memory limit of a job: when it is exceeded, and how the job is ended; standard library only.

First SIGTERM to the job's group, so that it can save what it has; SIGKILL when the grace period is over or the memory
keeps growing.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable

RUNAWAY_RATIO = 1.25
"""Memory this far above the limit is not waited for."""


class Guard:
    """Decides; the sampler acts and records."""

    def __init__(self, limit_bytes: int, grace_seconds: float) -> None:
        self.limit_bytes = limit_bytes
        self.grace_us = int(grace_seconds * 1e6)
        self.acting = False
        self._kill_after_us = 0
        self._killed = False

    def is_over(self, tree_bytes: int) -> bool:
        """Whether the tree has passed the limit."""
        return tree_bytes > self.limit_bytes

    def decide(self, tree_bytes: int, now_us: int) -> list[tuple[str, dict[str, int]]]:
        """What to do at this tick: nothing, the first signal (with the facts to record), or the last one."""
        if not self.acting:
            if not self.is_over(tree_bytes):
                return []
            self.acting = True
            self._kill_after_us = now_us + self.grace_us
            return [("limit", {"limit_bytes": self.limit_bytes, "signal": int(signal.SIGTERM)})]
        runaway = tree_bytes > self.limit_bytes * RUNAWAY_RATIO
        if not self._killed and (runaway or now_us >= self._kill_after_us):
            self._killed = True
            return [("kill", {"signal": int(signal.SIGKILL)})]
        return []


def send_to_all(number: int, group: int, pids: Iterable[int]) -> None:
    """Signal the whole group, and descendants that have left it."""
    with contextlib.suppress(OSError):
        os.killpg(group, number)
    for pid in list(pids):
        with contextlib.suppress(OSError):
            if os.getpgid(pid) != group:
                os.kill(pid, number)
    if number != signal.SIGKILL:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGCONT)
