"""Takes tensors out of the arguments of a call and puts others in their place; finds the tensors a call returned.

Only tuples, lists and dictionaries are opened for arguments. Any other object is handed on as it is, so that what a
call does to it is done to that very object.
"""

from __future__ import annotations

import ctypes
import dataclasses
import gc
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard, cast

import torch

FLAT = frozenset({torch.Tensor, torch.nn.Parameter, int, float, bool, str, type(None)})
"""Types that are no nest, which is asked for at every operator."""
NUM_SAMPLED = 16
_UNSIGNED = {1: ctypes.c_uint8, 2: ctypes.c_uint16, 4: ctypes.c_uint32, 8: ctypes.c_uint64}


def version_of(tensor: torch.Tensor) -> int:
    """How often a tensor was written into, as torch counts; -1 for those of inference mode, of which it is unknown."""
    try:
        return tensor._version
    except RuntimeError:
        return -1


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
    _add_leaves(value, found)
    return found


def _add_leaves(value: object, found: list[object]) -> None:
    kind = type(value)
    if kind is dict:
        value = tuple(cast("dict[object, object]", value).values())
    elif kind is not tuple and kind is not list and not (isinstance(value, tuple) and hasattr(value, "_fields")):
        found.append(value)
        return
    for each in cast("tuple[object, ...]", value):
        if type(each) in FLAT:
            found.append(each)
        else:
            _add_leaves(each, found)


def written_by(func: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> list[torch.Tensor]:
    """The tensors among the arguments that an operator says it writes into."""
    if not func._schema.is_mutable:
        return []
    found: list[torch.Tensor] = []
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[place] if place < len(args) else kwargs.get(argument.name)
            found += [leaf for leaf in leaves_of(value) if isinstance(leaf, torch.Tensor)]
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


def with_subclasses(kind: type) -> set[type]:
    """A class and all that derive from it, for lookups by type: a program has a million objects."""
    return {kind}.union(*(with_subclasses(each) for each in type.__subclasses__(kind)))


def leaves_alive() -> list[torch.Tensor]:
    """Every tensor of the program that a backward may give a gradient."""
    kinds = with_subclasses(torch.Tensor)
    return [each for each in gc.get_objects() if type(each) in kinds and each.requires_grad and _is_leaf(each)]


def _is_leaf(tensor: torch.Tensor) -> bool:
    try:
        return tensor.is_leaf
    except RuntimeError:  # a view made without gradients whose base was written into with them: torch does not tell
        return False


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor one behind the other: its own where it lies in one piece, else a copy."""
    whole = tensor.resolve_conj().resolve_neg().contiguous()  # of one element or none, with any stride
    return whole.as_strided((whole.numel(),), (1,)).view(torch.uint8)


def values_of(tensor: torch.Tensor) -> bytes:
    """A few values of a tensor in one piece, as bytes."""
    address = tensor.data_ptr() if tensor.device.type == "cpu" else 0
    if not address or tensor.itemsize not in _UNSIGNED or tensor.is_neg() or tensor.is_conj():
        step = max(1, tensor.numel() // NUM_SAMPLED)
        return bits_of(tensor.detach().view(-1)[::step]).cpu().numpy().tobytes()
    return values_at(address, tensor.numel(), tensor.itemsize)


def values_at(address: int, count: int, item_bytes: int) -> bytes:
    """A few of so many values that lie one behind the other in the memory of this machine."""
    items = (_UNSIGNED[item_bytes] * count).from_address(address)
    return memoryview(items)[:: max(1, count // NUM_SAMPLED)].tobytes()
