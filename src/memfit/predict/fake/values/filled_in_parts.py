"""Values of a buffer that is made empty and filled part by part, as in `b = torch.empty(n); b[0] = -1; b[1:] = a`.

Until its last element was written, nothing is known of it; from then on it is known like any other tensor. Parts are
followed when they are written with known values by an operator that does not look at what was there before; any other
write ends the attempt.
"""

from __future__ import annotations

import weakref
from typing import cast

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from memfit.predict.observe.arguments import Arguments, Keywords, tensor_at
from memfit.predict.observe.known_values import keep_memory, shadow_of, storage_of, view_of, why_assumed
from memfit.predict.observe.storage_tracker import tensors_in

aten = torch.ops.aten
WRITES_A_PART = (
    aten.fill_.Scalar, aten.fill_.Tensor, aten.zero_.default, aten.copy_.default, aten.index_put_.default,
)  # fmt: skip


class Buffer:
    """Memory beside an empty storage, and which of its elements were written."""

    __slots__ = ("assumed", "element_size", "memory", "num_bytes", "num_left", "reference", "written")

    def __init__(self, element_size: int, num_bytes: int, reference: weakref.ref[torch.UntypedStorage]) -> None:
        self.reference, self.element_size, self.num_bytes = reference, element_size, num_bytes
        self.num_left = num_bytes // element_size
        self.memory: torch.UntypedStorage | None = None
        self.written: torch.UntypedStorage | None = None
        self.assumed = ""

    def write(self, func: OpOverload, target: torch.Tensor, known: Arguments, num_bytes: int) -> bool:
        """Repeat a write with known values; whether it could be."""
        if target.element_size() != self.element_size or self.num_bytes != num_bytes:  # seen otherwise, or resized
            return False
        if self.memory is None or self.written is None:
            self.memory = torch.zeros(num_bytes, dtype=torch.uint8).untyped_storage()
            self.written = torch.zeros(num_bytes // self.element_size, dtype=torch.uint8).untyped_storage()
        marks = view_of(target, self.written, torch.bool)
        if 0 in (stride for size, stride in zip(marks.shape, marks.stride(), strict=True) if size > 1):
            return False  # one element under several, each of which would count
        num_before = int(marks.sum())
        func(view_of(target, self.memory), *known)
        if func is aten.index_put_.default:
            func(marks, known[0], torch.tensor(True))
        else:
            marks.fill_(True)
        self.num_left -= int(marks.sum()) - num_before
        return True


class FilledInParts:
    """The buffers of a run that have unwritten elements."""

    def __init__(self) -> None:
        self._buffers: dict[int, Buffer] = {}

    def begin(self, fake: object) -> None:
        """An empty tensor was made."""
        storage = storage_of(fake) if isinstance(fake, FakeTensor) else None
        if storage is None or not storage.nbytes():
            return
        key = id(storage)
        reference = weakref.ref(storage, lambda _: self._buffers.pop(key, None))
        self._buffers[key] = Buffer(cast("torch.Tensor", fake).element_size(), storage.nbytes(), reference)

    def follow(self, func: OpOverload, args: Arguments, kwargs: Keywords, target: torch.Tensor) -> None:
        """A storage of unknown values was written to."""
        storage = storage_of(target)
        buffer = self._buffers.get(id(storage))
        if storage is None or buffer is None:
            return
        known = _known_arguments(func, args, kwargs)
        with _disable_current_modes(), torch.no_grad():
            went_well = known is not None and _attempt(buffer, func, target, known, storage.nbytes())
        if not went_well:
            del self._buffers[id(storage)]
            return
        reasons = [why for tensor in tensors_in(args[1:]) if (why := why_assumed(tensor))]
        buffer.assumed = buffer.assumed or next(iter(reasons), "")
        if not buffer.num_left and buffer.memory is not None:
            del self._buffers[id(storage)]
            keep_memory(storage, buffer.memory, buffer.assumed)


def _attempt(buffer: Buffer, func: OpOverload, target: torch.Tensor, known: Arguments, num_bytes: int) -> bool:
    try:
        return buffer.write(func, target, known, num_bytes)
    except (RuntimeError, IndexError, TypeError):  # what the values do not allow must not stop the prediction
        return False


def _known_arguments(func: OpOverload, args: Arguments, kwargs: Keywords) -> Arguments | None:
    """What a part is written with, as known values; None where something is unknown or read before it is written."""
    if func not in WRITES_A_PART or kwargs or (func is aten.index_put_.default and len(args) > 3 and args[3]):
        return None
    target = storage_of(tensor_at(args, 0))
    given = list(tensors_in(args[1:]))
    if any(storage_of(tensor) is target or shadow_of(tensor) is None for tensor in given):
        return None
    return cast("Arguments", tuple(_values_of(value) for value in args[1:]))


def _values_of(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return shadow_of(value)
    return [_values_of(item) for item in value] if isinstance(value, (list, tuple)) else value
