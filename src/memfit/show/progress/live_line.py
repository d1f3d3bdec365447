"""One quiet line at the bottom of the terminal while the job runs.

The job writes to the same terminal, so the line gets a row of its own: the scrolling region is shortened by one and
the last row is left to us. A program that switches the terminal to raw mode (an editor, a debugger) gets the whole
screen back for as long as it does.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TextIO

from memfit.records.run_parts.live import LiveState
from memfit.units import format_bytes, format_seconds

SAVE, RESTORE = "\x1b7", "\x1b8"


def live_text(live: LiveState, width: int) -> str:
    """'memfit 12.4 s | 461.2 MiB now | 480.0 MiB peak | step 120 forward, 41.2/s | 100 samples/s'."""
    parts = [
        f"memfit {format_seconds(live.seconds)}",
        f"{format_bytes(live.tree_bytes)} now",
        f"{format_bytes(live.peak_bytes)} peak",
    ]
    if live.step is not None:
        rate = live.steps_per_second
        parts.append(f"step {live.step} {live.phase or ''}".rstrip() + (f", {rate:.1f}/s" if rate else ""))
    if live.num_processes > 1:
        parts.append(f"{live.num_processes} processes")
    parts.append(f"{live.num_ticks / max(live.seconds, 1e-9):.0f} samples/s")
    return " | ".join(parts)[: max(0, width - 1)]


class LiveLine:
    """Draws the line; None of it when there is no terminal."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._rows = 0
        self.enabled = self._stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"

    def update(self, live: LiveState) -> None:
        """Draw the newest state."""
        if not self.enabled:
            return
        size = self._size()
        if size is None or self._is_raw():
            self.close()
            return
        columns, rows = size
        if rows != self._rows:
            self._reserve(rows)
        self._write(f"{SAVE}\x1b[{rows};1H\x1b[2K\x1b[2m{live_text(live, columns)}\x1b[0m{RESTORE}")

    def close(self) -> None:
        """Give the row back."""
        if self._rows:
            self._write(f"{SAVE}\x1b[r\x1b[{self._rows};1H\x1b[2K{RESTORE}")
            self._rows = 0

    def _reserve(self, rows: int) -> None:
        """Make the last row ours; one step down first, so that what stands there scrolls up instead of being hidden."""
        self._write(f"\x1bD{SAVE}\x1b[1;{rows - 1}r{RESTORE}\x1b[1A")
        self._rows = rows

    def _size(self) -> tuple[int, int] | None:
        with contextlib.suppress(OSError):
            columns, rows = os.get_terminal_size(self._stream.fileno())
            return (columns, rows) if rows > 4 and columns > 20 else None
        return None

    def _is_raw(self) -> bool:
        import termios

        with contextlib.suppress(termios.error, OSError):
            return not termios.tcgetattr(self._stream.fileno())[3] & termios.ICANON
        return True

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
            self._stream.flush()
