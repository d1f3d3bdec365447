"""Detects tensors that Python's garbage collector frees at a moment of its own: they hang in reference cycles.

A model that refers to itself (through a trainer, a bound method, a closure) outlives its last name until the collector
comes by, and that depends on how many objects were made since: a real run makes others than a prediction. What a script
frees by calling `gc.collect` is freed at that place in both.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from unittest.mock import patch

from memfit.units import format_bytes

WORTH_SAYING = 0.001
"""Of the most that was alive when the collector came: less is within the band of the figures."""


class GarbageCollection:
    """What the collector frees while a job runs: by how much the bytes of living tensors fall while it works."""

    def __init__(self, live_bytes: Callable[[], int]) -> None:
        self._live_bytes = live_bytes
        self._most_bytes = self._highest_bytes = self._num_asked_for = 0
        self._before_bytes: int | None = None

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Within, it is noticed when the collector works."""
        collect = gc.collect

        def collect_at_once(*args: int, **kwargs: int) -> int:
            self._num_asked_for += 1
            try:
                return collect(*args, **kwargs)
            finally:
                self._num_asked_for -= 1

        gc.callbacks.append(self._noticed)
        try:
            with patch.object(gc, "collect", collect_at_once):
                yield
        finally:
            gc.callbacks.remove(self._noticed)

    def _noticed(self, phase: str, info: object) -> None:
        if phase == "start":
            self._before_bytes = None if self._num_asked_for else self._live_bytes()
            return
        before_bytes, self._before_bytes = self._before_bytes, None
        if before_bytes is not None:
            self._most_bytes = max(self._most_bytes, before_bytes - self._live_bytes())
            self._highest_bytes = max(self._highest_bytes, before_bytes)

    @property
    def text(self) -> str:
        """What there is to say; empty where the collector freed nothing that matters."""
        if self._most_bytes <= WORTH_SAYING * self._highest_bytes:
            return ""
        freed = format_bytes(self._most_bytes)
        return (
            f"tensors of {freed} hung in reference cycles until Python's garbage collector came by, which it does at "
            "another moment in a real run; gc.collect() before the next model is made frees them at once"
        )
