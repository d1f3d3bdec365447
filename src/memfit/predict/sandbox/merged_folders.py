"""Entries of a folder that lies in two places: what `os.scandir` gives, under the name by which it was asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator


class Entry(os.PathLike[str]):
    """As `os.DirEntry`."""

    def __init__(self, entry: os.DirEntry[str], path: str) -> None:
        self._entry = entry
        self.name, self.path = entry.name, path

    def __fspath__(self) -> str:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is a folder."""
        return self._entry.is_dir(follow_symlinks=follow_symlinks)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is a file."""
        return self._entry.is_file(follow_symlinks=follow_symlinks)

    def is_symlink(self) -> bool:
        """Whether it is a link."""
        return self._entry.is_symlink()

    def is_junction(self) -> bool:
        """Whether it is a junction, which only Windows has."""
        return False

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """What `os.stat` says."""
        return self._entry.stat(follow_symlinks=follow_symlinks)

    def inode(self) -> int:
        """Its number."""
        return self._entry.inode()


class Listing:
    """As what `os.scandir` returns: an iterator and a context."""

    def __init__(self, entries: list[Entry]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[Entry]:
        return self

    def __next__(self) -> Entry:
        return next(self._entries)

    def __enter__(self) -> Listing:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing is left open."""
        self._entries = iter(())
