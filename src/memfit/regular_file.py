"""Opens files that others may have put there: regular files only, without waiting, up to a size.

A FIFO would wait for a writer, /dev/zero never ends, a device may act on being opened, a sparse file claims any size.
Everything that cannot be read is an `OSError` with a sentence in `strerror`, so that a reader needs one `except`.
Standard library only.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

MIB = 1024**2
SETTINGS_BYTES = 64 * MIB
"""Plans, predictions, studies, settings: written by hand or by memfit, read whole."""

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


def read_regular(path: str | os.PathLike[str], *, most_bytes: int = SETTINGS_BYTES) -> bytes:
    """The whole content; a larger file is refused."""
    content, is_whole = read_beginning(path, most_bytes=most_bytes)
    if not is_whole:
        raise OSError(errno.EFBIG, f"larger than {most_bytes // MIB} MiB, the most that is read of it", str(path))
    return content


def read_beginning(path: str | os.PathLike[str], *, most_bytes: int) -> tuple[bytes, bool]:
    """The content up to a size, and whether that is all of it."""
    with open_regular(path) as stream:
        content = stream.read(most_bytes)
        return content, not stream.read(1)


def describe_error(error: OSError) -> str:
    """Why a file could not be read, without its path."""
    return error.strerror or str(error)


def _check_regular(status: os.stat_result, path: str | os.PathLike[str]) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
        number = errno.EISDIR if stat.S_ISDIR(status.st_mode) else errno.EINVAL
        raise OSError(number, f"{kind}, not a regular file", str(Path(path)))
