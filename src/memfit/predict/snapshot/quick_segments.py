"""Segments of a large snapshot, read without its events: they stand first in the file.

PyTorch writes one dictionary whose first entry is the list of segments. Python's own unpickler, the one written in
Python, is stopped when that list is whole. It refuses every name of a class or function, and holds no more than was
read of the file. Known limit: a file that is packed, or laid out otherwise, is not read this way.
"""

from __future__ import annotations

import pickle
import time
from pathlib import Path

from memfit.errors import MemfitError, RecordError
from memfit.predict.snapshot.reader import snapshot_of
from memfit.records.cuda.snapshot import Snapshot
from memfit.regular_file import open_regular

MOST_SECONDS = 4.0
"""What takes longer is left to the reader of the whole file."""


class _Whole(Exception):
    """The list of segments is complete."""

    def __init__(self, segments: list[object]) -> None:
        self.segments = segments


class _SegmentsOnly(pickle._Unpickler):
    """Stops behind the first entry of the outermost dictionary (CPython 3.11 to 3.14: `pickle._Unpickler`)."""

    deadline = 0.0
    count = 0

    def find_class(self, module: str, name: str) -> object:  # pyright: ignore[reportIncompatibleMethodOverride]
        raise RecordError("the snapshot names something to run and was not read", found=f"{module}.{name}")

    def persistent_load(self, pid: object) -> object:  # pyright: ignore[reportIncompatibleMethodOverride]
        raise RecordError("the snapshot refers to something outside of it", found=repr(pid)[:80])

    def _text(self, text: str) -> None:
        self.count += 1
        if self.count % 4096 == 0 and time.monotonic() > self.deadline:
            raise TimeoutError
        stack = self.stack  # pyright: ignore[reportAttributeAccessIssue]
        if len(stack) == 2 and stack[0] == "segments" and isinstance(stack[1], list):
            raise _Whole(stack[1])
        self.append(text)  # pyright: ignore[reportAttributeAccessIssue]

    def _short(self) -> None:
        size = self.read(1)[0]  # pyright: ignore[reportAttributeAccessIssue]
        self._text(str(self.read(size), "utf-8", "surrogatepass"))  # pyright: ignore[reportAttributeAccessIssue]

    def _long(self) -> None:
        size = int.from_bytes(self.read(4), "little")  # pyright: ignore[reportAttributeAccessIssue]
        self._text(str(self.read(size), "utf-8", "surrogatepass"))  # pyright: ignore[reportAttributeAccessIssue]

    dispatch = {  # noqa: RUF012  # pyright: ignore[reportAssignmentType]
        **pickle._Unpickler.dispatch,
        pickle.SHORT_BINUNICODE[0]: _short,
        pickle.BINUNICODE[0]: _long,
    }


def read_segments(path: str | Path) -> Snapshot | None:
    """The segments at the end of a recording, without any event; None where they cannot be had this way."""
    try:
        with open_regular(path) as stream:
            reader = _SegmentsOnly(stream)
            reader.deadline = time.monotonic() + MOST_SECONDS
            reader.load()
    except _Whole as found:
        return snapshot_of(str(path), {"segments": found.segments, "device_traces": []}, stream_size(path))
    except MemfitError:
        raise
    except Exception:
        return None
    return None


def stream_size(path: str | Path) -> int:
    """Bytes of the file: no snapshot has more blocks than bytes."""
    return Path(path).stat().st_size
