"""One line at the bottom of a terminal that is drawn over and over, and taken away again."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TextIO


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
