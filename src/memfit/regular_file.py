"""Opens files that others may have put there: regular files only, without waiting, up to a size.

A FIFO would wait for a writer, /dev/zero never ends, a device may act on being opened, a sparse file claims any size.
A record is appended to, so that a whole page of zeros was never written: it is a hole, made by a crash of the machine
or on purpose, and what is read ends there.
Everything that cannot be read is an `OSError` with a sentence in `strerror`, so that a reader needs one `except`.
Standard library only.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

MIB = 1024**2
SETTINGS_BYTES = 64 * MIB
"""Plans, predictions, studies, settings: written by hand or by memfit, read whole."""

PAGE_BYTES = 4096
"""Zeros of this length, at a multiple of it, are a hole."""
_ZEROS = bytes(PAGE_BYTES)
_CHUNK_BYTES = MIB

Ended = Literal["end", "size", "zeros"]

_KINDS = {
    stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe (FIFO)", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}  # fmt: skip


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file (or a link to one) for reading bytes; anything else is refused before it is opened."""
    _check_regular(os.stat(path), path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        _check_regular(os.fstat(descriptor), path)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """What was read of a file from its start."""

    content: bytes
    ended_by: Ended
    """Why reading ended: that is all, the file is larger than is read of it, or a page of zeros follows."""


def read_regular(path: str | os.PathLike[str], *, most_bytes: int = SETTINGS_BYTES) -> bytes:
    """The whole content; a larger file, or one with a page of zeros in it, is refused."""
    with open_regular(path) as stream:
        is_larger = os.fstat(stream.fileno()).st_size > most_bytes
        read = Beginning(content=b"", ended_by="size") if is_larger else _read_from(stream, most_bytes)
    if read.ended_by == "size":
        raise OSError(errno.EFBIG, f"larger than {most_bytes // MIB} MiB, the most that is read of it", str(path))
    if read.ended_by == "zeros":
        raise OSError(errno.EINVAL, f"zeros from byte {len(read.content)} on, where text is expected", str(path))
    return read.content


def read_beginning(path: str | os.PathLike[str], *, most_bytes: int) -> Beginning:
    """The content up to a size or to the first page of zeros."""
    with open_regular(path) as stream:
        return _read_from(stream, most_bytes)


def find_zeros(stream: BinaryIO, most_bytes: int) -> int | None:
    """Where the first page of zeros begins, if before a size; the stream is put back to its start."""
    num_bytes, ended_by = _look_through(stream, most_bytes)
    return num_bytes if ended_by == "zeros" else None


def _read_from(stream: BinaryIO, most_bytes: int) -> Beginning:
    """Looked through before it is read, so that memory holds it once and no more is asked for than there is."""
    num_bytes, ended_by = _look_through(stream, most_bytes)
    return Beginning(content=stream.read(num_bytes), ended_by=ended_by)


def _look_through(stream: BinaryIO, most_bytes: int) -> tuple[int, Ended]:
    """How many bytes there are to read, and what comes behind them; the stream is put back to its start."""
    try:
        place = 0
        while chunk := stream.read(min(_CHUNK_BYTES, most_bytes + 1 - place)):
            pages = range(0, len(chunk), PAGE_BYTES)
            zeros_at = next((at for at in pages if chunk[at : at + PAGE_BYTES] == _ZEROS), None)
            if zeros_at is not None:
                return place + zeros_at, "zeros"
            place += len(chunk)
        return (most_bytes, "size") if place > most_bytes else (place, "end")
    finally:
        stream.seek(0)


def describe_error(error: OSError) -> str:
    """Why a file could not be read, without its path."""
    return error.strerror or str(error)


def _check_regular(status: os.stat_result, path: str | os.PathLike[str]) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
        number = errno.EISDIR if stat.S_ISDIR(status.st_mode) else errno.EINVAL
        raise OSError(number, f"{kind}, not a regular file", str(Path(path)))
