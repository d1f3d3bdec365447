"""Arguments of an operator as a dispatch mode gets them, read as what the operator's schema declares them to be.

The dispatcher has compared every argument with the schema before a mode sees it, so nothing is checked again here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch

Arguments = tuple[object, ...]
Keywords = dict[str, object]
"""What an operator is called with."""


def tensor_at(args: Sequence[object], place: int) -> torch.Tensor:
    """A `Tensor`."""
    return cast("torch.Tensor", args[place])


def optional_tensor_at(args: Sequence[object], place: int) -> torch.Tensor | None:
    """A `Tensor?`."""
    return cast("torch.Tensor | None", args[place])


def tensors_at(args: Sequence[object], place: int) -> Sequence[torch.Tensor]:
    """A `Tensor[]`."""
    return cast("Sequence[torch.Tensor]", args[place])


def several(tensors: object) -> Sequence[torch.Tensor]:
    """A row of arguments, or the result of an operator, that is several tensors."""
    return cast("Sequence[torch.Tensor]", tensors)


def integer_at(args: Sequence[object], place: int) -> int:
    """An `int` or `SymInt`."""
    return cast("int", args[place])


def integers_at(args: Sequence[object], place: int) -> Sequence[int]:
    """An `int[]` or `SymInt[]`."""
    return cast("Sequence[int]", args[place])


def flags_at(args: Sequence[object], place: int) -> Sequence[bool]:
    """A `bool[]`: which results are wanted."""
    return cast("Sequence[bool]", args[place])
