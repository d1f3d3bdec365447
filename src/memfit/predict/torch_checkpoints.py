"""Checkpoints while a script is predicted: what `torch.save` keeps, and what `torch.load` gives back in the same run.

Nothing is saved but a line that says which checkpoint it was, so that the file exists, can be renamed and listed, and
is found again. Kept is a pickle with the geometry of every storage (torch_copies), and its values where they are known:
a checkpoint keeps no tensor alive, and loading it makes tensors as loading a real one would. A file that was there
before is loaded by torch itself.
"""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable
from typing import Any

import torch

from memfit.predict.torch_copies import forget_stored, read_to, reduced

MARK = b"memfit: a checkpoint that was not written, number "


class Checkpoints:
    """Stands in for `torch.save` and `torch.load`."""

    def __init__(self, note: Callable[[str, str], None]) -> None:
        self._note = note
        self._load = torch.load
        self._saved: list[bytes] = []

    def save(self, value: Any, file: Any, *args: Any, **kwargs: Any) -> None:
        """Remember geometry, and leave a line in the file."""
        self._note("script", "a checkpoint was not written")
        self._saved.append(pickled(value))
        line = MARK + str(len(self._saved) - 1).encode() + b"\n"
        if isinstance(file, (str, os.PathLike)):
            with open(file, "wb") as stream:
                stream.write(line)
        else:
            file.write(line)

    def load(self, file: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Tensors as they were saved, or whatever torch finds in the file."""
        number = self._number_in(file)
        if number is None:
            return self._load(file, map_location, *args, **kwargs)
        with read_to(map_location):
            return pickle.loads(self._saved[number])

    def _number_in(self, file: Any) -> int | None:
        if isinstance(file, (str, os.PathLike)):
            with open(file, "rb") as stream:
                line = stream.readline(len(MARK) + 20)
        else:
            place = file.tell()
            line = file.readline(len(MARK) + 20)
            file.seek(place)
        return int(line.removeprefix(MARK)) if line.startswith(MARK) else None


class _Pickler(pickle.Pickler):
    """Describes tensors of every kind, also those that have their own way of being pickled."""

    def reducer_override(self, value: Any) -> Any:
        """Tensors are described; anything else goes its own way."""
        return reduced(value) if isinstance(value, torch.Tensor) else NotImplemented


def pickled(value: Any) -> bytes:
    """A checkpoint without its tensors' memory."""
    stream = io.BytesIO()
    forget_stored()
    _Pickler(stream, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    forget_stored()
    return stream.getvalue()
