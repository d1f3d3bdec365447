"""Makes dropped tensors again from the calls of operators that a forward noted.

A `SavedHandle` stands in autograd's graph in place of a dropped tensor. It knows the calls that made its storage, and
they know where their inputs come from: parameters and inputs from outside, tensors that autograd keeps anyway, or other
calls. The first use in the backward runs those calls again, lowest number first, with the random numbers of the first
time, and frees everything that no other handle waits for. What was moved is fetched instead; the step waits for it.

All of it is Python that runs for each operator, and the caches are cold from the operators before: what is common
(arguments without nests, one result, a tensor that is read as it was made) takes as few calls of torch as possible.
The guards of `torch._C`, the number of a storage and the way from a weak reference to a storage are private to torch
(read in torch 2.13).
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from memfit.apply.moves import Packet, Store
from memfit.apply.operator_kinds import OperatorKind, fresh, storage_address, tensors_of_call
from memfit.apply.recompute import SecondRunDiffers, can_be_sampled
from memfit.errors import PlanBroken
from memfit.model.random_and_autocast import cpu_state, lay_cpu_state
from memfit.model.tensors_in_arguments import replaced, values_at, values_of
from memfit.records.operators import DroppedTensor

SMALL_BYTES = 4096
"""Smaller tensors are always kept, and those from outside are copied."""


# ---- what was called -----------------------------------------------------------------------------------------------


class MadeStorage:
    """One storage of the forward: the calls that made it, and a tensor on it while it is held."""

    __slots__ = (
        "__weakref__", "away", "digest", "first", "held_version", "num_handles", "num_writes", "planned", "sample",
        "steps", "storage", "tensor", "version", "windows",
    )  # fmt: skip

    def __init__(self, tensor: torch.Tensor, planned: DroppedTensor | None = None) -> None:
        self.version, self.planned = tensor._version, planned
        """The plan's word on it where it is to be dropped; None where it is kept."""
        self.first = StorageWeakRef(tensor.untyped_storage())
        self.steps: list[RepeatedOperator] = []
        """Empty for what comes from elsewhere, and once it is there again."""
        self.num_writes = 0
        self.num_handles = 0
        self.sample: _Sample | None = None
        """Of the first run; None once the second was compared with it, or where nothing was dropped."""
        self.tensor: torch.Tensor | None = None
        """Of the first run where autograd saved it, or of the second: it tells whether somebody has written into it."""
        self.held_version = self.version
        """How often it had been written into when it was held."""
        self.storage: torch.UntypedStorage | None = None
        """Of the first run where nothing else is known of it."""
        self.digest: bytes | None = None
        """Of a storage of the first run whose writers torch does not count for us."""
        self.away: Packet | None = None
        """Its bytes while they are moved."""
        self.windows: list[tuple[torch.Tensor, int]] | None = None
        """What was handed out with another type than that of the tensor, with torch's count of writes."""

    @property
    def is_awaited(self) -> bool:
        """Whether it stays when it has been made on the way to another."""
        return self.num_handles > 0 and bool(self.steps) and (self.planned is None or self.planned.stays)

    def is_gone(self) -> bool:
        """Whether the storage of the first run was released."""
        return torch.UntypedStorage._expired(self.first.cdata)  # type: ignore[attr-defined]

    @property
    def is_to_move(self) -> bool:
        """Whether its bytes are moved when autograd saves it."""
        return self.planned is not None and self.planned.is_moved

    def cannot_be_made(self) -> None:
        """Something that is not run again wrote into it: it can be neither made again nor read as it was."""
        if not self.is_to_move or self.away is not None:  # what autograd has not saved yet is moved as it is then
            self.planned = None
        self.steps, self.num_writes = [], self.num_writes + 1

    def send(self, tensor: torch.Tensor, store: Store) -> None:
        """Move its bytes, once; nothing is made again for it from here on."""
        if self.away is None:
            self.away = Packet(store, tensor.detach())
            self.away.release()
        self.tensor, self.storage, self.steps = None, None, []

    def was_written(self, version: int) -> None:
        """Somebody wrote into it in the forward, and torch counts so many writes from then on."""
        if self.held_version == self.version:
            self.held_version = version
        self.version = version

    def hold(self, tensor: torch.Tensor) -> None:
        """Keep it from here on."""
        self.tensor, self.held_version = tensor, tensor._version

    def there(self) -> torch.Tensor | None:
        """A tensor on its storage if that is held, or fetched; None when it has to be made again."""
        if self.away is not None:
            self.hold(_bytes_of(self.away.storage()))
            self.away = None
        tensor = self.tensor
        if tensor is None:
            if self.storage is None:
                return None
            if self.digest is not None and _digest_of(self.storage) != self.digest:
                raise _written_into(_bytes_of(self.storage))
            tensor = _bytes_of(self.storage)
        elif tensor._version != self.held_version:
            raise _written_into(tensor)
        for window, version in self.windows or ():
            if window._version != version:
                raise _written_into(window)
        return tensor

    def handed_out(self, held: torch.Tensor, handle: SavedHandle) -> torch.Tensor:
        """What a handle saved, of the tensor that is held; torch counts writes into it there as well."""
        if held.dtype is handle.dtype:
            window = window_on(held, handle)
            return window.detach() if window is held else window
        window = window_on(held, handle)
        self.windows = [*(self.windows or ()), (window, window._version)]
        return window.detach()

    def guard(self) -> None:
        """Note what a storage holds that autograd did not save after all."""
        if self.tensor is None and self.storage is not None:
            self.digest = _digest_of(self.storage)


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _digest_of(storage: torch.UntypedStorage) -> bytes:
    return hashlib.blake2b(_bytes_of(storage).cpu().numpy().data, digest_size=16).digest()


Tensors = dict[MadeStorage, torch.Tensor]


class Ref:
    """In the place of an argument: a window on a value."""

    __slots__ = ("dtype", "num_writes", "offset", "size", "stride", "value")

    def __init__(self, value: MadeStorage, tensor: torch.Tensor) -> None:
        self.value, self.num_writes = value, value.num_writes
        self.dtype, self.offset = tensor.dtype, tensor.storage_offset()
        self.size, self.stride = tensor.size(), tensor.stride()


class Outer:
    """In the place of an argument: a tensor that no noted call made."""

    __slots__ = ("tensor", "version")

    def __init__(self, tensor: torch.Tensor) -> None:
        if not tensor.requires_grad and tensor.nbytes <= SMALL_BYTES:
            tensor = tensor.clone()  # a buffer that the next forward moves on
        self.tensor, self.version = tensor, tensor._version

    def there(self) -> torch.Tensor:
        """The tensor, as it was."""
        if self.tensor._version != self.version:
            raise _written_into(self.tensor)
        return self.tensor


class RepeatedOperator:
    """One call of an operator, with everything needed to make it again."""

    __slots__ = ("args", "is_flat", "kind", "kwargs", "made", "number", "random", "refs", "with_gradients")

    def __init__(
        self,
        number: int,
        kind: OperatorKind,
        args: Sequence[object],
        kwargs: dict[str, object],
        refs: list[Ref],
        *,
        is_flat: bool,
    ) -> None:
        self.number, self.kind, self.args, self.kwargs, self.refs = number, kind, args, kwargs, refs
        self.is_flat = is_flat
        """Whether all tensors among its arguments are arguments themselves."""
        self.random = cpu_state() if kind.draws else None
        self.with_gradients = torch.is_grad_enabled()  # some kernels make less when no backward may follow
        self.made: list[weakref.ref[MadeStorage]] = []
        """Values on new storages, in order; they hold it, not it them."""

    def again(self, tensors: Tensors) -> list[torch.Tensor]:
        """Make the call once more; a tensor on each new storage in order."""

        def fill(leaf: object) -> object:
            if type(leaf) is Ref:
                return window_on(tensors[leaf.value], leaf)
            return leaf.there() if type(leaf) is Outer else leaf

        args: Any
        if self.is_flat:
            args, kwargs = list(map(fill, self.args)), self.kwargs
        else:
            args, kwargs = replaced((self.args, self.kwargs), fill)
        result = self.kind.func(*args, **kwargs) if self.random is None else self._drawing_again(args, kwargs)
        if type(result) is torch.Tensor and len(self.made) == 1:
            return [result]
        known = {storage_address(tensor) for tensor in tensors_of_call(args, kwargs)}
        return fresh(result, known)

    def _drawing_again(self, args: Sequence[object], kwargs: dict[str, object]) -> object:
        assert self.random is not None
        now = cpu_state()
        lay_cpu_state(self.random)
        try:
            return self.kind.func(*args, **kwargs)
        finally:
            lay_cpu_state(now)


def window_on(held: torch.Tensor, ref: Ref | SavedHandle) -> torch.Tensor:
    """A window on the storage of a tensor: itself where it is just that."""
    if held.dtype is not ref.dtype:
        empty = torch.empty(0, dtype=ref.dtype, device=held.device)
        return empty.set_(held.untyped_storage(), ref.offset, ref.size, ref.stride)
    if held.size() == ref.size and held.stride() == ref.stride and held.storage_offset() == ref.offset:
        return held
    return held.as_strided(ref.size, ref.stride, ref.offset)


def _written_into(tensor: torch.Tensor) -> PlanBroken:
    return PlanBroken(
        "a tensor was written into before the backward had made others from it again",
        found=f"a tensor of shape {tuple(tensor.shape)}",
        hint="write into a copy, or undo the plan",
    )


# ---- what autograd keeps -------------------------------------------------------------------------------------------


class _Sample:
    """A few values of a dropped tensor, and where they lie in its storage."""

    __slots__ = ("count", "item_bytes", "num_writes", "offset_bytes", "shape", "values")

    def __init__(self, tensor: torch.Tensor, num_writes: int) -> None:
        self.num_writes, self.shape = num_writes, tensor.shape
        self.item_bytes, self.count = tensor.itemsize, tensor.numel()
        self.offset_bytes = self.item_bytes * int(tensor.storage_offset())
        self.values = values_of(tensor)

    def is_in(self, tensor: torch.Tensor) -> bool:
        """Whether the storage of a tensor holds them."""
        storage = tensor.untyped_storage()
        start, end = storage.data_ptr(), self.offset_bytes + self.count * self.item_bytes
        if not start or end > storage.nbytes():
            return False
        return values_at(start + self.offset_bytes, self.count, self.item_bytes) == self.values


class SavedHandle:
    """What autograd keeps in place of a dropped tensor."""

    __slots__ = ("dtype", "kind", "lock", "num_writes", "offset", "size", "stride", "value")

    def __init__(
        self, value: MadeStorage, tensor: torch.Tensor, lock: AbstractContextManager[bool], is_exact: bool
    ) -> None:
        self.value, self.lock = value, lock
        self.kind = value.steps[-1].kind if value.steps else None
        self.dtype, self.offset = tensor.dtype, tensor.storage_offset()
        self.size, self.stride = tensor.size(), tensor.stride()
        self.num_writes = value.num_writes
        is_sampled = value.sample is not None and value.sample.num_writes == value.num_writes
        if is_exact and not is_sampled:  # one for all handles of a storage: it is made again once, as it was at last
            value.sample = _Sample(tensor, value.num_writes) if can_be_sampled(tensor) else None
        value.num_handles += 1

    def __del__(self) -> None:
        self.value.num_handles -= 1

    @property
    def name(self) -> str:
        """Of the operator that made it; unknown where it is not run again."""
        return "an operator" if self.kind is None else self.kind.name

    def find(self) -> torch.Tensor:
        """The tensor as it was saved; made again or fetched if need be."""
        value = self.value
        with self.lock:
            if value.num_writes != self.num_writes:
                raise PlanBroken(
                    "a tensor was written into after autograd had saved it",
                    found=f"a tensor of shape {tuple(self.size)}, made by {self.name}",
                    hint="write into a copy; without the plan this is an error of autograd as well",
                )
            held = value.there()
            if held is None:
                held = _make(value)
            sample = value.sample
            if sample is not None:
                if not sample.is_in(held):
                    raise SecondRunDiffers(self.name, f"another value in a tensor of shape {tuple(sample.shape)}")
                value.sample = None  # the storage stays: it need not be looked at again
            return value.handed_out(held, self)


# ---- making it again -----------------------------------------------------------------------------------------------


def _make(wanted: MadeStorage) -> torch.Tensor:
    """Run again what is needed for one value; others that a handle waits for stay as well."""
    values, steps = _needed(wanted)
    readers: dict[MadeStorage, int] = dict.fromkeys(values, 0)
    for step in steps:
        for ref in step.refs:
            readers[ref.value] = readers.get(ref.value, 0) + 1
    tensors: Tensors = {}
    with_gradients = torch.is_grad_enabled()
    try:
        with torch._C._AutoDispatchBelowAutograd(), torch._C._DisableAutocast():
            for step in steps:
                torch._C._set_grad_enabled(step.with_gradients)
                _run(step, tensors)
                _release(step, tensors, readers, wanted, values)
    finally:
        torch._C._set_grad_enabled(with_gradients)
    for value in values:
        if value is wanted or value.is_awaited:
            value.hold(tensors[value])
            value.steps = []
    return tensors[wanted]


def _needed(wanted: MadeStorage) -> tuple[dict[MadeStorage, None], list[RepeatedOperator]]:
    """The values to make, and the calls that make them in their order."""
    found: dict[MadeStorage, None] = {}
    steps: dict[int, RepeatedOperator] = {}
    waiting = [wanted]
    while waiting:
        value = waiting.pop()
        if value in found or value.there() is not None:
            continue
        if not value.steps:
            raise PlanBroken(
                "what a dropped tensor was made from is gone",
                found="the forward ran other operators than when the plan was made",
                hint="undo the plan, or fit again",
            )
        found[value] = None
        for step in value.steps:
            steps[step.number] = step
            waiting.extend([ref.value for ref in step.refs])
    return found, list(steps.values()) if len(steps) == 1 else [steps[number] for number in sorted(steps)]


def _run(step: RepeatedOperator, tensors: Tensors) -> None:
    for ref in step.refs:
        value = ref.value
        if value not in tensors:
            held = value.there()
            if held is None:
                raise _not_there(step)
            tensors[value] = held
        if value.num_writes != ref.num_writes and not any(step is own for own in value.steps):
            raise _not_there(step)
    for reference, tensor in zip(step.made, step.again(tensors), strict=True):
        value = reference()
        if value is not None and value.tensor is None and value.storage is None and value.away is None:
            tensors[value] = tensor


def _not_there(step: RepeatedOperator) -> PlanBroken:
    return PlanBroken(
        "a tensor was written into after another was made from it",
        found=f"{step.kind.name} has to read it as it was",
        hint="undo the plan, or fit again",
    )


def _release(
    step: RepeatedOperator,
    tensors: Tensors,
    readers: dict[MadeStorage, int],
    wanted: MadeStorage,
    values: dict[MadeStorage, None],
) -> None:
    """Drop what no later call reads and no handle waits for."""
    for ref in step.refs:
        readers[ref.value] -= 1
    made = [value for reference in step.made if (value := reference()) is not None]
    for value in (*[ref.value for ref in step.refs], *made):
        if not readers.get(value) and value is not wanted and not (value in values and value.is_awaited):
            tensors.pop(value, None)
