"""Data sets in the terminal: their list, and the progress of a download."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from memfit.records.machine.data_status import DataStatus
from memfit.show.text_output import render
from memfit.units import format_bytes

_STYLES = {"here": "green", "not here": "dim", "incomplete": "yellow", "damaged": "red"}
_REFRESH_SECONDS = 0.2


def data_text(statuses: tuple[DataStatus, ...], *, width: int = 80, color: bool = False) -> str:
    """The data sets as a table."""
    grid = Table.grid(padding=(0, 2))
    for status in statuses:
        state = Text(status.state, style=_STYLES[status.state])
        grid.add_row(Text(status.name, style="bold"), state, format_bytes(status.num_bytes), _what(status))
    return render(grid, width, color)


def _what(status: DataStatus) -> RenderableType:
    if status.state == "here":
        return Text(f"{status.title}\n{status.folder}")
    return Text(f"{status.title}\nmemfit data fetch {status.name}")


class FetchLine:
    """One line that follows a download on a terminal; sentences go above it. Silent when asked to be."""

    def __init__(self, name: str, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self._name, self._quiet, self._stream = name, quiet, stream or sys.stderr
        self._has_line = False
        self._last = 0.0
        self._is_terminal = self._stream.isatty()

    def say(self, sentence: str) -> None:
        """A sentence of its own."""
        if not self._quiet:
            self.clear()
            print(f"{self._name}: {sentence}", file=self._stream, flush=True)

    def progress(self, have_bytes: int, total_bytes: int | None) -> None:
        """Bytes that have come; drawn a few times per second."""
        now = time.monotonic()
        if self._quiet or not self._is_terminal or (now - self._last < _REFRESH_SECONDS and have_bytes != total_bytes):
            return
        self._last = now
        total = f" of {format_bytes(total_bytes)} ({have_bytes * 100 // total_bytes} %)" if total_bytes else ""
        self._stream.write(f"\r\x1b[K{self._name}: {format_bytes(have_bytes)}{total}")
        self._stream.flush()
        self._has_line = True

    def clear(self) -> None:
        """Take the line away."""
        if self._has_line:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._has_line = False
