"""Known values of fake tensors: host memory beside the storage of a fake tensor.

A fake storage has no memory. Where its values can be known, memory of the same size is kept under the identity of the
storage, so that all views share it as they do in torch: an in-place change of a view changes its base, and a copy, a
swap or a move of tensors needs no care. It is dropped with the storage (a weak reference; storage objects keep their
Python identity, read in torch 2.13).
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import TypeGuard, cast

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

FINITE = "no number is infinite or not a number"
FACTORISED = "a matrix can be factorised"
UNEQUAL = "a number that is not known equals no given one"


class Known:
    """The values of one storage."""

    __slots__ = ("assumed", "memory", "reference")

    def __init__(
        self, reference: weakref.ref[torch.UntypedStorage], memory: torch.UntypedStorage, assumed: str
    ) -> None:
        self.reference, self.memory = reference, memory
        self.assumed = assumed
        """Why they are an assumption; empty when they are what a real run would have."""


_known: dict[int, Known] = {}


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """The tensor's storage, or None for layouts that have none and parameters without a shape."""
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError, ValueError):
        return None


def _find(tensor: torch.Tensor) -> Known | None:
    if not _known:
        return None
    storage = storage_of(tensor)
    found = _known.get(id(storage))
    if found is None or storage is None:
        return None
    if found.memory.nbytes() != storage.nbytes():  # resized meanwhile
        del _known[id(storage)]
        return None
    return found


def shadow_of(tensor: object) -> torch.Tensor | None:
    """The true values of a tensor as a real tensor of the same geometry, where they are known."""
    if not isinstance(tensor, FakeTensor):
        return tensor.detach() if _is_real(tensor) else None
    found = _find(tensor)
    if found is None:
        return None
    with _disable_current_modes(), torch.no_grad():
        return view_of(tensor, found.memory)


def _is_real(tensor: object) -> TypeGuard[torch.Tensor]:
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and cast("torch.Tensor", tensor).device.type == "cpu"


def view_of(tensor: torch.Tensor, memory: torch.UntypedStorage, dtype: torch.dtype | None = None) -> torch.Tensor:
    """The same view of other memory, of another type if asked for. Must be called without modes."""
    view = torch.empty(0, dtype=dtype or tensor.dtype)
    view.set_(memory, tensor.storage_offset(), tensor.size(), tensor.stride())  # pyright: ignore[reportArgumentType]
    if tensor.is_conj():
        view = view.conj()
    return view._neg_view() if tensor.is_neg() else view


def why_assumed(tensor: object) -> str:
    """Why the known values of a tensor are an assumption; empty when they are true."""
    found = _find(tensor) if isinstance(tensor, FakeTensor) else None
    return found.assumed if found is not None else ""


def is_known(tensor: object) -> bool:
    """Whether `shadow_of` has an answer."""
    return _find(tensor) is not None if isinstance(tensor, FakeTensor) else _is_real(tensor)


def keep_shadow(fake: torch.Tensor, values: torch.Tensor | None, assumed: str = "") -> None:
    """Keep these values beside a fake tensor that covers its storage or lies as they do, or forget what it held."""
    storage = storage_of(fake)
    if storage is None:
        return
    if values is None or not (covers_storage(fake) or _lies_as(values, fake, storage.nbytes())):
        _known.pop(id(storage), None)
        return
    with _disable_current_modes(), torch.no_grad():
        memory = _memory_for(fake, storage.nbytes(), values)
    keep_memory(storage, memory, assumed)


def keep_memory(storage: torch.UntypedStorage, memory: torch.UntypedStorage, assumed: str = "") -> None:
    """Keep this memory, all of whose bytes are known, beside the storage of a fake tensor."""
    forget = partial(_known.pop, id(storage), None)
    _known[id(storage)] = Known(weakref.ref(storage, lambda _: forget()), memory, assumed)


def _memory_for(fake: torch.Tensor, num_bytes: int, values: torch.Tensor) -> torch.UntypedStorage:
    """The memory of these values themselves where they lie as the fake tensor does, else a copy that does."""
    if _lies_as(values, fake, num_bytes):
        return values.untyped_storage()
    memory = torch.zeros(num_bytes, dtype=torch.uint8).untyped_storage()
    view_of(fake, memory).copy_(values)
    return memory


def _lies_as(values: torch.Tensor, fake: torch.Tensor, num_bytes: int) -> bool:
    """Whether the memory of these values, as a whole, is what the fake tensor's storage stands for."""
    same = values.stride() == fake.stride() and not values.storage_offset() and not fake.storage_offset()
    same = same and values.dtype == fake.dtype and not values.is_conj() and not values.is_neg()
    return same and values.untyped_storage().nbytes() == num_bytes


def assume(tensor: object, reason: str) -> None:
    """From now on the known values of this tensor's storage are an assumption."""
    found = _find(tensor) if isinstance(tensor, FakeTensor) else None
    if found is not None and reason:
        found.assumed = found.assumed or reason


def covers_storage(tensor: torch.Tensor) -> bool:
    """Whether every byte of the storage belongs to exactly one element of the tensor."""
    storage = storage_of(tensor)
    if storage is None or tensor.numel() * tensor.element_size() != storage.nbytes():
        return False
    expected = 1
    for size, stride in sorted(zip(tensor.shape, tensor.stride(), strict=True), key=lambda pair: pair[1]):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def integers_of(tensor: torch.Tensor) -> list[int]:
    """The values of a tensor of integers that is real or whose values are known."""
    with _disable_current_modes():
        return (tensor if (kept := shadow_of(tensor)) is None else kept).tolist()
