"""Writes a file whole or not at all, and never overwrites what a user made without being asked."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from memfit.errors import RunExists, StorageError


def check_new(path: str | Path, *, overwrite: bool) -> Path:
    """The path, if nothing is there or it may be replaced."""
    path = Path(path)
    if path.exists() and not overwrite:
        raise RunExists(f"{path} is already there", found="a file or folder", hint="another name, or -f to replace it")
    if not path.parent.is_dir():
        raise StorageError(
            f"{path} cannot be written", found=f"no folder {path.parent}", hint="create the folder first"
        )
    return path


def write_bytes(path: Path, content: bytes) -> Path:
    """Write a whole file, or say why not."""
    with whole_file(path) as stream:
        stream.write(content)
    return path


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file that appears under its name when it is complete, and not at all on a full disk; a device is written to."""
    try:
        if path.exists() and not path.is_file():
            with open(path, "wb") as stream:
                yield stream
            return
        target = Path(os.path.realpath(path))
        draft = target.with_name(f".{target.name}.{os.getpid()}.part")
        try:
            with open(draft, "wb") as stream:
                yield stream
            os.replace(draft, target)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
    except OSError as error:
        hint = "free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "choose another place"
        raise StorageError(f"{path} cannot be written", found=error.strerror or str(error), hint=hint) from None
