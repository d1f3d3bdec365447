"""Cells of a grid on disk as they are done, so that an interrupted grid goes on where it stopped."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from memfit.records.grid import GridCell
from memfit.regular_file import read_regular

NAME = "cells.jsonl"


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    """What the cell depends on: job, device, engine, versions. A cell of another key is not taken."""
    cell: GridCell


class KeptCells:
    """A file with one line per cell; a line that a killed process left half-written is dropped."""

    def __init__(self, folder: Path | None, key: str) -> None:
        self._path = None if folder is None else folder / NAME
        self._key = key

    def read(self) -> dict[tuple[str, str], GridCell]:
        """The finished cells of an earlier run of the same grid, by optimizer and technique."""
        if self._path is None or not self._path.exists():
            return {}
        found: dict[tuple[str, str], GridCell] = {}
        for line in read_regular(self._path).splitlines():
            try:
                kept = msgspec.json.decode(line, type=_Kept)
            except (ValueError, RecursionError):
                continue
            if kept.key == self._key:
                found[kept.cell.optimizer, kept.cell.technique] = kept.cell
        return found

    def add(self, cell: GridCell) -> None:
        """Write a cell down, so that it outlives this process."""
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        line = msgspec.json.encode(_Kept(key=self._key, cell=cell)) + b"\n"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, b"\n" + line)
        finally:
            os.close(descriptor)
