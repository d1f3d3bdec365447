"""What happens to checkpoints while a script is predicted: `torch.save` and, in the same run, `torch.load`?

Nothing is saved but a line that says which checkpoint it was, so that the file exists, can be renamed and listed, and
is found again. Loading it makes tensors of the shapes that were saved, as loading a real one would. Shapes are all
that is remembered: a checkpoint keeps no tensor alive. A file that was there before is loaded by torch itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

MARK = b"memfit: a checkpoint that was not written, number "


@dataclass(frozen=True, slots=True)
class Outline:
    """A tensor without its values."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    is_parameter: bool


class Checkpoints:
    """Stands in for `torch.save` and `torch.load`."""

    def __init__(self, note: Callable[[str, str], None]) -> None:
        self._note = note
        self._load = torch.load
        self._saved: list[Any] = []

    def save(self, value: Any, file: Any, *args: Any, **kwargs: Any) -> None:
        """Remember shapes, and leave a line in the file."""
        self._note("script", "a checkpoint was not written")
        self._saved.append(outline_of(value))
        line = MARK + str(len(self._saved) - 1).encode() + b"\n"
        if isinstance(file, (str, os.PathLike)):
            with open(file, "wb") as stream:
                stream.write(line)
        else:
            file.write(line)

    def load(self, file: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Tensors of the shapes that were saved, or whatever torch finds in the file."""
        number = self._number_in(file)
        if number is None:
            return self._load(file, map_location, *args, **kwargs)
        return tensors_of(self._saved[number], map_location if isinstance(map_location, (str, torch.device)) else None)

    def _number_in(self, file: Any) -> int | None:
        if isinstance(file, (str, os.PathLike)):
            with open(file, "rb") as stream:
                line = stream.readline(len(MARK) + 20)
        else:
            place = file.tell()
            line = file.readline(len(MARK) + 20)
            file.seek(place)
        return int(line.removeprefix(MARK)) if line.startswith(MARK) else None


def outline_of(value: Any) -> Any:
    """The same containers with outlines for tensors; anything else as it is."""
    if isinstance(value, torch.Tensor):
        is_parameter = isinstance(value, torch.nn.Parameter)
        return Outline(tuple(value.shape), tuple(value.stride()), value.dtype, value.device, is_parameter)
    if isinstance(value, dict):
        return {name: outline_of(item) for name, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(outline_of(item) for item in value)
    return value


def tensors_of(value: Any, device: str | torch.device | None) -> Any:
    """The same containers with new tensors for outlines."""
    if isinstance(value, Outline):
        tensor = torch.empty_strided(value.shape, value.stride, dtype=value.dtype, device=device or value.device)
        return torch.nn.Parameter(tensor) if value.is_parameter else tensor
    if isinstance(value, dict):
        return {name: tensors_of(item, device) for name, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(tensors_of(item, device) for item in value)
    return value
