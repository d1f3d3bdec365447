"""Takes tensors out of the arguments of a call and puts others in their place; finds the tensors a call returned.

Only tuples, lists and dictionaries are opened for arguments. Any other object is handed on as it is, so that what a
call does to it is done to that very object.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

import torch


def version_of(tensor: torch.Tensor) -> int:
    """How often a tensor was written into, as torch counts; -1 for those of inference mode, of which it is unknown."""
    return -1 if tensor.is_inference() else tensor._version


def replaced(value: object, replace: Callable[[object], object]) -> Any:
    """The same nest of tuples, lists and dictionaries with every other value replaced."""
    if type(value) is tuple:
        return tuple(replaced(each, replace) for each in value)
    if type(value) is list:
        return [replaced(each, replace) for each in value]
    if type(value) is dict:
        return {name: replaced(each, replace) for name, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return tuple.__new__(
            type(value), (replaced(each, replace) for each in value)
        )  # a PackedSequence checks what it is given
    return replace(value)


def leaves_of(value: object) -> list[object]:
    """Every value in a nest of tuples, lists and dictionaries."""
    found: list[object] = []
    replaced(value, found.append)
    return found


def stands_for_a_tensor(value: object) -> TypeGuard[torch.Tensor]:
    """Whether an object is there in place of a tensor that is computed later (`apply/chunked_loss.py`)."""
    return hasattr(type(value), "stands_for_a_tensor")


def tensors_in(value: object) -> list[torch.Tensor]:
    """Every tensor that a call returned, also within mappings and data classes; in a fixed order."""
    if isinstance(value, torch.Tensor) or stands_for_a_tensor(value):
        return [value]
    if isinstance(value, (tuple, list)):
        return [tensor for each in value for tensor in tensors_in(each)]
    if isinstance(value, Mapping):
        return [tensor for each in value.values() for tensor in tensors_in(each)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [tensor for each in dataclasses.fields(value) for tensor in tensors_in(getattr(value, each.name, None))]
    return []


def without_history(value: object) -> object:
    """A tensor that ends a graph in place of one in its middle: the same values; anything else as it is."""
    if not isinstance(value, torch.Tensor) or value.grad_fn is None:
        return value
    return value.detach().requires_grad_(value.requires_grad)


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor one behind the other: its own where it lies in one piece, else a copy."""
    whole = tensor.resolve_conj().resolve_neg().contiguous()  # of one element or none, with any stride
    return whole.as_strided((whole.numel(),), (1,)).view(torch.uint8)
