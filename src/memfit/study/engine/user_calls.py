"""Calls of a user's own class, in a thread of its own, so that none keeps the coordinator from its work.

A class may take long, or for ever: trials whose time is up are ended meanwhile, others are heard of, and the study can
be ended. One call at a time and in order, as NNI makes them. What takes no time is over when `ended` comes back, so
that nothing changes for it. The thread is a daemon: a call that never ends does not keep the process.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

AT_ONCE_SECONDS = 0.1
"""What is over by then is waited for."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A call is over."""

    value: object = None
    error: BaseException | None = None


class UserCalls:
    """Makes one call after the other."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._ends: queue.SimpleQueue[Ended] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._began: float | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a call was begun whose end was not taken yet."""
        return self._began is not None

    @property
    def seconds(self) -> float:
        """How long the call takes already."""
        return 0.0 if self._began is None else time.monotonic() - self._began

    def begin(self, job: Callable[[], object]) -> None:
        """Begin a call; there must be no other."""
        assert self._began is None
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="memfit-user-class", daemon=True)
            self._thread.start()
        self._began = time.monotonic()
        self._jobs.put(job)

    def ended(self, most_seconds: float = AT_ONCE_SECONDS) -> Ended | None:
        """The end of the call, once, or None when it is not over within so long; raises what the class raised."""
        try:
            end = self._ends.get(timeout=most_seconds)
        except queue.Empty:
            return None
        self._began = None
        if end.error is not None:
            raise end.error
        return end

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            try:
                end = Ended(value=job())
            except BaseException as error:
                end = Ended(error=error)
            self._ends.put(end)
