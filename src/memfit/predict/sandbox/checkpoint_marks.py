"""Checkpoints that a predicted script saves: a file holds one line with a number, not the tensors; for both engines."""

from __future__ import annotations

import os
from typing import IO, cast

MARK = b"memfit: a checkpoint that was not written, number "


def leave_mark(file: object, number: int) -> None:
    """Write the line that stands for a checkpoint into a path or an open file."""
    line = MARK + str(number).encode() + b"\n"
    if isinstance(file, (str, os.PathLike)):
        with open(file, "wb") as stream:
            stream.write(line)
    else:
        cast("IO[bytes]", file).write(line)


def number_in(file: object) -> int | None:
    """Which checkpoint of this run a file stands for; None for any other file, which is left where it was read."""
    if isinstance(file, (str, os.PathLike)):
        with open(file, "rb") as stream:
            line = stream.readline(len(MARK) + 20)
    else:
        opened = cast("IO[bytes]", file)
        place = opened.tell()
        line = opened.readline(len(MARK) + 20)
        opened.seek(place)
    return int(line.removeprefix(MARK)) if line.startswith(MARK) else None
