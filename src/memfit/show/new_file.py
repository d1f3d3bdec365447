"""May this file be written? What a user made is never overwritten by surprise."""

from __future__ import annotations

from pathlib import Path

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
    try:
        path.write_bytes(content)
    except OSError as error:
        raise StorageError(f"{path} cannot be written", found=str(error), hint="choose another place") from None
    return path
