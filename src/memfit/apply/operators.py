"""Drops tensors that autograd saves, and makes them again operator by operator when the backward asks.

While the model's forward runs, a dispatch mode notes the calls of the operators that a plan names, with what they
read; saved-tensor hooks around the forward put a `Handle` in place of each tensor that the plan drops. A handle
knows the calls that made its tensor, and they know where their inputs come from: parameters and inputs from outside,
tensors that autograd keeps anyway, or other calls. The first use in the backward runs those calls again, lowest
number first, with the random numbers of the first time, and frees everything that no other handle waits for. What the
plan moves is sent when autograd saves it, and fetched at its first use; the step waits for both.

What is noted are the calls of this very forward. Where its operators are not those of the plan, nothing more is dropped
from there on, and that is said once. A tensor is handed out only if what it was made from has not been written into
since, and if some of its values are those of the first time. The guards of `torch._C` and the way from a weak
reference to a storage are private to torch (read in torch 2.13).
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import weakref
from collections.abc import Callable, Iterator

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from memfit.apply.checkpoints import AppliedPlan
from memfit.apply.kept_tensors import KeptTensor
from memfit.apply.moves import Packet, Store, store_for
from memfit.apply.operator_kinds import (
    TENSORS,
    OperatorKind,
    can_be_repeated,
    empty_like,
    fresh,
    is_constant,
    is_plain,
    kind_of,
    tensors_of_call,
    without_statistics,
)
from memfit.apply.recompute import SecondRunDiffers, can_be_sampled
from memfit.errors import PlanBroken
from memfit.model.call_sites import add_layer, within_a_transform
from memfit.model.random_and_autocast import cpu_state, lay_cpu_state
from memfit.model.step import storage_bytes, tensors_of
from memfit.model.tensors_in_arguments import replaced, values_of, written_by
from memfit.records.operators import DroppedTensor, OperatorChoice
from memfit.units import format_bytes

SMALL_BYTES = 4096
"""Smaller tensors are always kept, and those from outside are copied."""


# ---- what was called -----------------------------------------------------------------------------------------------


class MadeStorage:
    """One storage of the forward: the calls that made it, and its bytes while they are held."""

    __slots__ = (
        "__weakref__", "away", "digest", "drop", "first", "num_handles", "num_writes", "planned", "sample", "steps",
        "storage", "tensor", "version", "windows",
    )  # fmt: skip

    def __init__(self, tensor: torch.Tensor, planned: DroppedTensor | None = None) -> None:
        self.version, self.drop, self.planned = tensor._version, planned is not None, planned
        self.first = StorageWeakRef(tensor.untyped_storage())
        self.steps: list[RepeatedOperator] = []
        """Empty for what comes from elsewhere, and once it is there again."""
        self.num_writes = 0
        self.num_handles = 0
        self.sample: _Sample | None = None
        """Of the first run; None once the second was compared with it, or where nothing was dropped."""
        self.tensor: torch.Tensor | None = None
        """Of the first run: it tells whether somebody has written into it since."""
        self.storage: torch.UntypedStorage | None = None
        """Of the first run where nothing else is known of it, or of the second."""
        self.digest: bytes | None = None
        """Of a storage of the first run whose writers torch does not count for us."""
        self.away: Packet | None = None
        """Its bytes while they are moved."""
        self.windows: dict[object, tuple[torch.Tensor, int]] = {}
        """What was handed out of a storage of the second run, with torch's count of writes: a backward may write."""

    @property
    def is_awaited(self) -> bool:
        """Whether it stays when it has been made on the way to another."""
        stays = self.planned is None or self.planned.stays
        return self.num_handles > 0 and stays and bool(self.steps)

    @property
    def is_to_move(self) -> bool:
        """Whether its bytes are moved when autograd saves it."""
        return self.planned is not None and self.planned.is_moved

    def note_write(self, version: int) -> None:
        """An operator that is not run again has written into it: it is kept, or moved as it is from now on."""
        self.drop = self.drop and self.is_to_move and self.away is None
        self.steps, self.num_writes, self.version = [], self.num_writes + 1, version

    def send(self, tensor: torch.Tensor, store: Store) -> None:
        """Move its bytes, once; nothing is made again for it from here on."""
        if self.away is None:
            self.away = Packet(store, tensor.detach())
            self.away.release()
        self.tensor, self.storage, self.steps = None, None, []

    def there(self) -> torch.UntypedStorage | None:
        """Its storage if it is held, or fetched; None when it has to be made again."""
        for window, version in self.windows.values():
            if window._version != version:
                raise _written_into(window)
        if self.tensor is None:
            if self.digest is not None and _digest_of(self.storage) != self.digest:
                raise _written_into(_bytes_of(self.storage))
            if self.storage is None and self.away is not None:
                self.storage, self.away = self.away.storage(), None
            return self.storage
        if self.tensor._version != self.version:
            raise _written_into(self.tensor)
        return self.tensor.untyped_storage()

    def window(self, handle: SavedHandle) -> torch.Tensor:
        """What a handle saved, of a storage that is held; who writes into it is noticed."""
        storage = self.there()
        key = handle.dtype, handle.offset, handle.size, handle.stride
        known = self.windows.get(key)
        if known is None:
            made = _window(storage, handle)
            known = self.windows[key] = made, made._version
        return known[0].detach()

    def guard(self) -> None:
        """Note what a storage holds that autograd did not save after all."""
        if self.tensor is None and self.storage is not None:
            self.digest = _digest_of(self.storage)


def _bytes_of(storage: torch.UntypedStorage | None) -> torch.Tensor:
    assert storage is not None
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _digest_of(storage: torch.UntypedStorage | None) -> bytes:
    return hashlib.blake2b(_bytes_of(storage).cpu().numpy().data, digest_size=16).digest()


Storages = dict[MadeStorage, torch.UntypedStorage | None]


class Ref:
    """In the place of an argument: a window on a value."""

    __slots__ = ("dtype", "num_writes", "offset", "size", "stride", "value")

    def __init__(self, value: MadeStorage, tensor: torch.Tensor) -> None:
        self.value, self.num_writes = value, value.num_writes
        self.dtype, self.offset = tensor.dtype, int(tensor.storage_offset())
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
        return self.tensor.detach()


class RepeatedOperator:
    """One call of an operator, with everything needed to make it again."""

    __slots__ = ("func", "made", "number", "random", "refs", "template", "with_gradients")

    def __init__(self, number: int, func: torch._ops.OpOverload, template: object, refs: list[Ref]) -> None:
        self.number, self.func, self.template, self.refs = number, func, template, refs
        self.random = cpu_state() if kind_of(func).draws else None
        self.with_gradients = torch.is_grad_enabled()  # some kernels make less when no backward may follow
        self.made: list[weakref.ref[MadeStorage]] = []
        """Values on new storages, in order; they hold it, not it them."""

    def again(self, storages: Storages) -> list[torch.UntypedStorage]:
        """Make the call once more; the new storages in order."""

        def fill(leaf: object) -> object:
            if isinstance(leaf, Ref):
                return _window(storages[leaf.value], leaf)
            return leaf.there() if isinstance(leaf, Outer) else leaf

        args, kwargs = replaced(self.template, fill)
        known = {tensor.untyped_storage()._cdata for tensor in tensors_of_call(args, kwargs)}
        draws = contextlib.nullcontext() if self.random is None else _drawing_again(self.random)
        with draws, torch.set_grad_enabled(self.with_gradients):
            result = self.func(*args, **kwargs)
        return [tensor.untyped_storage() for tensor in fresh(result, known)]


def _window(storage: torch.UntypedStorage | None, ref: Ref | SavedHandle | _Sample) -> torch.Tensor:
    assert storage is not None
    empty = torch.empty(0, dtype=ref.dtype, device=storage.device)
    return empty.set_(storage, ref.offset, ref.size, ref.stride)


@contextlib.contextmanager
def _drawing_again(state: bytearray) -> Iterator[None]:
    now = cpu_state()
    lay_cpu_state(state)
    try:
        yield
    finally:
        lay_cpu_state(now)


def _written_into(tensor: torch.Tensor) -> PlanBroken:
    return PlanBroken(
        "a tensor was written into before the backward had made others from it again",
        found=f"a tensor of shape {tuple(tensor.shape)}",
        hint="write into a copy, or undo the plan",
    )


# ---- making it again -----------------------------------------------------------------------------------------------


class _Sample:
    """A few values of a dropped tensor, and where they lie."""

    __slots__ = ("dtype", "num_writes", "offset", "size", "stride", "values")

    def __init__(self, tensor: torch.Tensor, num_writes: int) -> None:
        self.num_writes = num_writes
        self.dtype, self.offset = tensor.dtype, int(tensor.storage_offset())
        self.size, self.stride = tensor.size(), tensor.stride()
        self.values = values_of(tensor)


class SavedHandle:
    """What autograd keeps in place of a dropped tensor."""

    __slots__ = ("dtype", "lock", "name", "num_writes", "offset", "size", "stride", "value")

    def __init__(
        self,
        value: MadeStorage,
        tensor: torch.Tensor,
        lock: contextlib.AbstractContextManager[bool],
        is_exact: bool,
    ) -> None:
        self.value, self.lock = value, lock
        self.name = kind_of(value.steps[-1].func).name if value.steps else "an operator whose result is moved"
        self.dtype, self.offset = tensor.dtype, int(tensor.storage_offset())
        self.size, self.stride = tensor.size(), tensor.stride()
        self.num_writes = value.num_writes
        is_sampled = value.sample is not None and value.sample.num_writes == value.num_writes
        if is_exact and not is_sampled:  # one for all handles of a storage: it is made again once, as it was at last
            value.sample = _Sample(tensor, value.num_writes) if can_be_sampled(tensor, set()) else None
        value.num_handles += 1

    def __del__(self) -> None:
        self.value.num_handles -= 1

    def tensor(self) -> torch.Tensor:
        """The tensor as it was saved; made again if need be."""
        with self.lock:
            if self.value.num_writes != self.num_writes:
                raise PlanBroken(
                    "a tensor was written into after autograd had saved it",
                    found=f"a tensor of shape {tuple(self.size)}, made by {self.name}",
                    hint="write into a copy; without the plan this is an error of autograd as well",
                )
            if self.value.there() is None:
                _make(self.value)
            sample = self.value.sample
            if sample is not None:
                if values_of(_window(self.value.there(), sample)) != sample.values:
                    raise SecondRunDiffers(self.name, f"another value in a tensor of shape {tuple(sample.size)}")
                self.value.sample = None  # the storage stays: it need not be looked at again
            return self.value.window(self)


def find(kept: SavedHandle | KeptTensor) -> torch.Tensor:
    """The tensor behind what autograd keeps."""
    return kept.tensor() if isinstance(kept, SavedHandle) else kept.find()


def _make(wanted: MadeStorage) -> None:
    """Run again what is needed for one value; others that a handle waits for stay as well."""
    values, steps = _needed(wanted)
    readers: dict[MadeStorage, int] = dict.fromkeys(values, 0)
    for step in steps:
        for value in {ref.value for ref in step.refs}:
            readers[value] = readers.get(value, 0) + 1
    storages: Storages = {}
    with torch._C._AutoDispatchBelowAutograd(), torch._C._DisableAutocast():
        for step in steps:
            _run(step, storages)
            _release(step, storages, readers, wanted)
    for value in values:
        if value.is_awaited or value is wanted:
            value.storage, value.steps = storages[value], []


def _needed(wanted: MadeStorage) -> tuple[list[MadeStorage], list[RepeatedOperator]]:
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
            waiting += [ref.value for ref in step.refs]
    return list(found), [steps[number] for number in sorted(steps)]


def _run(step: RepeatedOperator, storages: Storages) -> None:
    for ref in step.refs:
        if ref.value not in storages:
            storages[ref.value] = ref.value.there()
        final = ref.value.num_writes == ref.num_writes
        if not final and not any(step is own for own in ref.value.steps):
            raise PlanBroken(
                "a tensor was written into after another was made from it",
                found=f"{step.func.name()} has to read it as it was",
                hint="undo the plan, or fit again",
            )
    made = step.again(storages)
    for reference, storage in zip(step.made, made, strict=True):
        value = reference()
        if value is not None and value.away is None and value.there() is None:  # what is away is not fetched for this
            storages[value] = storage


def _release(step: RepeatedOperator, storages: Storages, readers: dict[MadeStorage, int], wanted: MadeStorage) -> None:
    """Drop what no later call reads and no handle waits for."""
    for value in {ref.value for ref in step.refs}:
        readers[value] -= 1
    for value in [value for value in storages if not readers.get(value)]:
        if value is not wanted and not (value in readers and value.is_awaited):
            del storages[value]


# ---- the forward ---------------------------------------------------------------------------------------------------


class OperatorRecording(TorchDispatchMode):
    """The operators of one forward, as far as the plan needs them."""

    def __init__(self, chosen: Chosen) -> None:
        super().__init__()
        self.chosen, self.number, self.on_plan = chosen, 0, True
        self.lock = threading.RLock()
        self._values: dict[int, MadeStorage] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Not: it would wrap every operator for the compiler, which does not run in here (read in torch 2.13)."""
        return False

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        kwargs, kind = kwargs or {}, kind_of(func)
        if self._passes_by(kind, args):
            return func(*args, **kwargs)
        number = self._place_of(kind, args, kwargs) if self.on_plan else None
        if number is None or number not in self.chosen.repeated:
            if kind.is_mutable:
                self._note_writes(func, args, kwargs)
            result = func(*args, **kwargs)
            if number in self.chosen.movers:
                self._note_moved(number, result, args, kwargs)
            elif number in self.chosen.sources:
                self._note_sources(result)
            return result
        if kind.shapes_only:
            result = func(*args, **kwargs)
            self._note_made(RepeatedOperator(number, *empty_like(result), []), result, set(), [])
            return result
        step = self._noted(number, func, args, kwargs)
        if step is None:
            self._note_writes(func, args, kwargs)
            return func(*args, **kwargs)
        known = {tensor.untyped_storage()._cdata for tensor in tensors_of_call(args, kwargs)}
        written = written_by(func, args, kwargs)
        result = func(*args, **kwargs)
        self._note_made(step, result, known, written)
        return result

    def _passes_by(self, kind: OperatorKind, args: tuple[object, ...]) -> bool:
        """Whether a call is one of those, most of a forward, that the plan knows and does nothing about."""
        if kind.is_mutable:
            return False
        number, quiet = self.number, self.chosen.quiet
        if number >= len(quiet) or not self.on_plan:
            return True
        first = args[0] if args else None
        is_known = quiet[number] == kind.name and isinstance(first, torch.Tensor) and first.requires_grad
        if not is_known or not torch.is_grad_enabled():
            return False
        self.number = number + 1
        return True

    def _place_of(self, kind: OperatorKind, args: tuple[object, ...], kwargs: dict[str, object]) -> int | None:
        """The number of an operator in the plan; None for one that fills a cache, or where others run than planned.

        A forward may leave out operators that need no gradient, and run others of that kind: a mask, or a table of
        positions, is made once and kept.
        """
        names, constants = self.chosen.names, self.chosen.constants
        number, name = self.number, kind.name
        if constants is not None and number < len(names):
            fills_a_cache = is_constant(kind.func, args, kwargs)
            while number in constants and not (fills_a_cache and names[number] == name):
                number += 1  # left out in this forward
            if fills_a_cache and number not in constants:
                return None
        if number < len(names) and names[number] != name:
            self.on_plan = False
            self.chosen.say_other_operators(number, name)
            return None
        self.number = number + 1
        return number

    def _noted(
        self, number: int, func: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> RepeatedOperator | None:
        if not can_be_repeated(func, args, kwargs):
            return None
        refs: list[Ref] = []

        def stand_in(leaf: object) -> object:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            value = self._value_of(leaf)
            if value is None:
                return Outer(leaf)
            refs.append(Ref(value, leaf))
            return refs[-1]

        template = replaced((without_statistics(kind_of(func), args), kwargs), stand_in)
        return RepeatedOperator(number, func, template, refs)

    def _note_sources(self, result: object) -> None:
        """What others will be made from, and autograd will save: then torch counts for us who writes into it."""
        for tensor in fresh(result, set()):
            known = self._values.get(tensor.untyped_storage()._cdata)
            if known is None or known.first.expired():
                self._values[tensor.untyped_storage()._cdata] = MadeStorage(tensor)

    def _note_moved(self, number: int, result: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """What is moved when autograd saves it, and never made again."""
        known = {tensor.untyped_storage()._cdata for tensor in tensors_of_call(args, kwargs)}
        for output, tensor in enumerate(fresh(result, known)):
            planned = self.chosen.dropped.get((number, output))
            self._values[tensor.untyped_storage()._cdata] = MadeStorage(tensor, planned)

    def _note_writes(self, func: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """An operator that is not run again writes into a value: it can be neither made again nor read as it was."""
        for tensor in written_by(func, args, kwargs):
            value = self._values.get(tensor.untyped_storage()._cdata) if is_plain(tensor) else None
            if value is not None and not value.first.expired():
                value.note_write(tensor._version + 1)

    def _value_of(self, tensor: torch.Tensor) -> MadeStorage | None:
        """The value under a tensor; None for what lies outside of the forward: parameters, buffers, the batch."""
        storage = tensor.untyped_storage()
        known = self._values.get(storage._cdata)
        if known is not None and not known.first.expired():
            if known.version != tensor._version:  # an operator that is not noted wrote into it
                known.note_write(tensor._version)
            return known
        base = tensor._base if tensor._is_view() else tensor  # a weight is often read transposed
        if base is None or base.grad_fn is None:
            return None
        value = self._values[storage._cdata] = MadeStorage(tensor)
        return value

    def _note_made(self, step: RepeatedOperator, result: object, known: set[int], written: list[torch.Tensor]) -> None:
        for output, tensor in enumerate(fresh(result, known)):
            storage = tensor.untyped_storage()
            value = MadeStorage(tensor, self.chosen.dropped.get((step.number, output)))
            value.steps.append(step)
            step.made.append(weakref.ref(value))
            self._values[storage._cdata] = value
        for tensor in written:
            value = self._value_of(tensor)
            if value is not None:
                value.steps.append(step)
                value.num_writes += 1
                value.version = tensor._version + 1  # torch counts it when the operator is over

    def pack(self, tensor: torch.Tensor) -> SavedHandle | KeptTensor:
        """What autograd keeps in place of a tensor."""
        storage = tensor.untyped_storage() if type(tensor) in TENSORS and tensor.layout == torch.strided else None
        value = None if storage is None else self._values.get(storage._cdata)
        with torch._C._DisableTorchDispatch():  # what memfit does itself is no operator of the forward
            if storage is None or value is None or not is_plain(tensor):
                return KeptTensor(tensor)
            return self._kept(tensor, storage, value)

    def _kept(
        self, tensor: torch.Tensor, storage: torch.UntypedStorage, value: MadeStorage
    ) -> SavedHandle | KeptTensor:
        if value.first.expired() or value.version != tensor._version:
            return KeptTensor(tensor)
        moves = value.drop and value.is_to_move
        if not value.drop or not (moves or (value.steps and self._holds_sources(value))):
            value.tensor = tensor.detach()
            return KeptTensor(tensor)
        self.chosen.check_size(storage.nbytes(), value)
        if moves:
            value.send(tensor, self.chosen.open_store())
        return SavedHandle(value, tensor, self.lock, self.chosen.is_exact and not moves)

    def _holds_sources(self, wanted: MadeStorage) -> bool:
        """Take hold of everything that a value is made from; False when something of it is gone already."""
        seen: set[int] = set()
        waiting = [wanted]
        while waiting:
            value = waiting.pop()
            if id(value) in seen or value.tensor is not None or value.storage is not None or value.away is not None:
                continue
            seen.add(id(value))
            if not value.steps:
                if value.first.expired():
                    return False
                value.storage = torch.UntypedStorage._new_with_weak_ptr(value.first.cdata)
            waiting += [ref.value for step in value.steps for ref in step.refs]
        return True

    def close(self) -> None:
        """The forward is over: only handles know from here on what they were made from."""
        for value in self._values.values():
            value.guard()
        self._values.clear()


# ---- the model -----------------------------------------------------------------------------------------------------


class Chosen:
    """What a plan has decided operator by operator, ready to be carried out."""

    def __init__(
        self, choice: OperatorChoice, say: Callable[[str, str], None], is_exact: bool, store: Store | None = None
    ) -> None:
        self.names, self.repeated, self.is_exact = choice.names, frozenset(choice.repeated), is_exact
        self.sources, self._store = frozenset(choice.sources), store
        self.movers = frozenset(each.operator for each in choice.dropped if each.is_moved) - self.repeated
        self.dropped = {(each.operator, each.output): each for each in choice.dropped}
        self.input_bytes = choice.input_bytes
        self.constants = None if choice.constants is None else frozenset(choice.constants)
        others = self.repeated | self.sources | self.movers | (self.constants or frozenset())
        self.quiet = [None if number in others else name for number, name in enumerate(self.names)]
        """Names of operators that need a gradient and of which nothing has to be known."""
        self._say = say

    def open_store(self) -> Store:
        """Where bytes are moved to."""
        assert self._store is not None
        return self._store

    def say_other_operators(self, number: int, name: str) -> None:
        """Warn once that a forward is not the one of the plan."""
        self._say(
            "operators",
            f"operator {number} of the forward is {name}, {self.names[number]} when the plan was made: what the plan "
            "drops after it is kept, and the step may take more than the budget",
        )

    def check_size(self, num_bytes: int, value: MadeStorage) -> None:
        """Warn once of tensors that are larger than when the plan was made."""
        planned = num_bytes if value.planned is None else value.planned.num_bytes
        if num_bytes > planned:
            self._say(
                "size",
                f"a tensor of {format_bytes(num_bytes)} had {format_bytes(planned)} when the plan was made: the step "
                "may take more than the budget; fit again with the largest batch",
            )


def attach_operators(applied: AppliedPlan, choice: OperatorChoice, disk: str | None = None) -> None:
    """Let the model of an applied plan drop and make again, or move to a disk, what the plan says."""
    moved_bytes = sum(each.num_bytes for each in choice.dropped if each.is_moved)
    store = store_for(applied.model, moved_bytes, disk) if moved_bytes else None
    if store is not None:
        applied.closers.append(store.close)
    chosen = Chosen(choice, applied.listeners.say, applied.listeners.is_exact, store)

    def around(proceed: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        if not may_record():
            return proceed(*args, **kwargs)
        recording = OperatorRecording(chosen)
        try:
            with torch.autograd.graph.saved_tensors_hooks(recording.pack, find), recording:
                return proceed(*args, **kwargs)
        finally:
            recording.close()

    around.of_a_plan = True  # type: ignore[attr-defined]
    applied.closers.append(add_layer(applied.model, around))


def may_record() -> bool:
    """Whether a backward may follow, and torch runs the operators one by one."""
    if not torch.is_grad_enabled() or torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return False
    return not within_a_transform()


def bytes_of(batch: object) -> int:
    """Of the tensors of a batch."""
    return storage_bytes(tensors_of(batch))
