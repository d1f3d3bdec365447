"""Progress of work whose share is known: one line that says what is at hand, how far it is, and what is left."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

from memfit.show.progress.line import ProgressLine
from memfit.units import format_seconds


class ShareLine:
    """Draws the line on a terminal; nothing elsewhere."""

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._line = ProgressLine(stream)
        self._clock = clock
        self._start_seconds = clock()
        self._zero_seconds = 0.0

    def show(self, what: str, share_done: float) -> None:
        """Say what is at hand; `share_done` is the part of all work that is over, from 0 to 1."""
        if not share_done:
            self._zero_seconds = self.took_seconds  # what came before says nothing about the speed of the rest
        share_seconds = self.took_seconds - self._zero_seconds
        self._line.draw(progress_line(what, share_done, self.took_seconds, share_seconds))

    @property
    def took_seconds(self) -> float:
        """Since it began."""
        return self._clock() - self._start_seconds

    def close(self) -> None:
        """Take the line away."""
        self._line.clear()


def progress_line(what: str, share_done: float, took_seconds: float, share_seconds: float) -> str:
    """'vgg16, 12 GB/s | 42% | 31.0 s | about 43.0 s left'; the share took `share_seconds`."""
    parts = [what, f"{share_done:.0%}", format_seconds(took_seconds)]
    if share_done > 0.02:
        parts.append(f"about {format_seconds(share_seconds * (1 / share_done - 1))} left")
    return " | ".join(parts)
