"""Renders rich text for this terminal, pipe or file.

Width and colour are decided here once: colour only on a terminal and never with NO_COLOR; letters that the stream
cannot write are replaced by plain ones.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
from collections.abc import Iterator
from typing import Protocol, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table

from memfit.errors import NoOutput
from memfit.records.files.only_text import only_text

PIPE_WIDTH = 80
MAX_WIDTH = 120
MIN_WIDTH = 40
_CONTROLS = {code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if code != ord("\n")}
_PLAIN = str.maketrans(
    {
        "█": "#", "▇": "#", "▆": "#", "▅": "=", "▄": "=", "▃": "-", "▂": "-", "▁": ".", "░": ":", "▒": ":",
        "✓": "+", "✗": "x", "±": "+/-", "…": "~", "•": "-", "─": "-", "└": "+", "│": "|", "┤": "+", "≈": "~", "·": "-",
    }
)  # fmt: skip


class _Clean:
    """Drops control characters: a command line or a note must not steer the reader's terminal."""

    def __init__(self, renderable: RenderableType) -> None:
        self.renderable = renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in console.render(self.renderable, options):
            yield segment if segment.control else segment._replace(text=segment.text.translate(_CONTROLS))


def render(renderable: RenderableType, width: int, color: bool) -> str:
    """Text of exactly this width, with or without escape codes, without trailing blanks."""
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        no_color=not color,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    with console.capture() as capture:
        console.print(_Clean(renderable))
    lines = [line.rstrip() for line in capture.get().splitlines()]
    return "\n".join(lines).strip("\n") + "\n"


def unwrapped_console(stream: TextIO, width: int, color: bool) -> Console:
    """A console on a stream that leaves long lines to the terminal to wrap."""
    return Console(
        file=stream, width=width, highlight=False, soft_wrap=True, force_terminal=color, no_color=not color,
        color_system="standard" if color else None, legacy_windows=False,
    )  # fmt: skip


class Compose(Protocol):
    """Makes the text of a record for a width in characters, with colour or without."""

    def __call__(self, *, width: int, color: bool) -> str: ...


def write_text(compose: Compose, stream: TextIO | None = None) -> None:
    """Compose for this stream's width and colour, and write it."""
    stream = _opened(stream)
    on_terminal = stream.isatty()
    color = on_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "") != "dumb"
    text = compose(width=_width(on_terminal), color=bool(color))
    _write(stream, writable(text, stream.encoding or "utf-8"))


def on_terminal() -> bool:
    """Whether the standard output is a terminal: only there is anything shortened."""
    return sys.stdout is not None and sys.stdout.isatty()


def write_json(raw: bytes, stream: TextIO | None = None) -> None:
    """Write one JSON document and a line end."""
    _write(_opened(stream), raw.decode() + "\n")


def _write(stream: TextIO, text: str) -> None:
    """Write all of it now; a reader that has gone away is the caller's affair, a full disk one clear error."""
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _forget(stream)
        found = error.strerror or str(error)
        raise NoOutput("the standard output cannot be written", found=found, hint="free some space") from None


def _forget(stream: TextIO) -> None:
    """Drop what could not be written, which Python would try again, and complain of, at its end."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _opened(stream: TextIO | None) -> TextIO:
    """The stream asked for, or the standard output."""
    chosen = sys.stdout if stream is None else stream
    if chosen is None:
        raise NoOutput("there is no standard output to write to", found="it is closed", hint="redirect it to a file")
    return chosen


def _width(on_terminal: bool) -> int:
    fallback = (80, 24) if on_terminal else (PIPE_WIDTH, 24)
    if not on_terminal and not os.environ.get("COLUMNS"):
        return PIPE_WIDTH
    return min(max(shutil.get_terminal_size(fallback).columns, MIN_WIDTH), MAX_WIDTH)


def writable(text: str, encoding: str) -> str:
    """The text with letters this encoding lacks replaced by plain ones."""
    text = only_text(text)
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return text.translate(_PLAIN).encode("ascii", "replace").decode("ascii")
    return text


def table(*heads: str) -> Table:
    """A table without lines; a head that starts with '>' is aligned right."""
    made = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", show_edge=False)
    for head in heads:
        right = head.startswith(">")
        made.add_column(head.lstrip(">"), justify="right" if right else "left", no_wrap=right, overflow="fold")
    return made
