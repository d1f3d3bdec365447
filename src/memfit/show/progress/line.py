"""One line at the bottom of a terminal that is drawn over and over, and taken away again.

Progress of work whose share is known: one line that says what is at hand, how far it is, and what is left.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from typing import TextIO

from memfit.units import format_seconds


class ProgressLine:
    """The line of a command that has the terminal to itself; nothing is drawn where there is none."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self.is_drawable = self._stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._is_drawn = False

    def draw(self, text: str) -> None:
        """Put this text in place of the one before, cut to the width of the terminal."""
        if self.is_drawable:
            self.write(f"\r\x1b[2K\x1b[2m{text[: self._columns() - 1]}\x1b[0m")
            self._is_drawn = True

    def clear(self) -> None:
        """Take the line away."""
        if self._is_drawn:
            self.write("\r\x1b[2K")
            self._is_drawn = False

    def write(self, text: str) -> None:
        """Write as it is; a terminal that went away is no reason to stop."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
            self._stream.flush()

    def _columns(self) -> int:
        with contextlib.suppress(OSError, ValueError):
            return os.get_terminal_size(self._stream.fileno()).columns
        return 80


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
