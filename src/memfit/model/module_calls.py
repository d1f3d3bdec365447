"""Records the module calls of one step: order, tensors passed, and who else reads what they return.

Hooks on every module give the tree of calls; a dispatch mode sees every operator of the forward and notes which
call it ran in, which storages it read, and how many bytes it made.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, overload

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from memfit.errors import UsageError
from memfit.model.call_sites import Layer, add_layer, outside_compiled, within_a_transform
from memfit.model.step import Job, leaving_no_trace, storages_of, tensors_of
from memfit.model.tensors_in_arguments import leaves_of, replaced, version_of, written_by

_SHAPE_ONLY = {"aten::sym_size", "aten::size", "aten::sym_stride", "aten::is_same_size"}
PLAIN = (bool, int, float, str, bytes, type(None))
"""Values without an identity of their own, which hold nothing."""
_READS_A_VALUE = "aten::_local_scalar_dense"
"""What `item()`, `float(tensor)` and `if tensor:` come down to."""


@dataclass(frozen=True, slots=True)
class SeenTensor:
    """A tensor as it went by; it is not held, so that watching takes no memory."""

    number: int
    """The same for the same object."""
    storage: int
    """The same for tensors on one storage."""
    storage_bytes: int
    requires_grad: bool


@dataclass(frozen=True, slots=True)
class SeenObject:
    """Another object as it went by, such as a cache of keys and values; what it holds is not held either."""

    number: int


class Numbers:
    """Numbers objects and storages; the number of one that has died is not used again."""

    def __init__(self) -> None:
        self._next = itertools.count()
        self._objects: dict[int, tuple[Callable[[], builtins.object], int]] = {}
        self._storages: dict[int, tuple[StorageWeakRef, int]] = {}

    def object(self, seen: builtins.object) -> int:
        """The number of a tensor, or of any other object."""
        known = self._objects.get(id(seen))
        if known is None or known[0]() is not seen:
            known = self._objects[id(seen)] = (_reference_to(seen), next(self._next))
        return known[1]

    def storage(self, tensor: torch.Tensor) -> int:
        """The number of the storage under a tensor."""
        storage = tensor.untyped_storage()
        known = self._storages.get(storage._cdata)
        if known is None or known[0].expired():
            known = self._storages[storage._cdata] = (StorageWeakRef(storage), next(self._next))
        return known[1]

    @overload
    def seen(self, value: torch.Tensor) -> SeenTensor: ...
    @overload
    def seen(self, value: builtins.object) -> builtins.object: ...
    def seen(self, value: builtins.object) -> builtins.object:
        """What is kept of a value: all of it where it can hold no tensor, else its number."""
        if not isinstance(value, torch.Tensor):
            return value if isinstance(value, PLAIN) else SeenObject(self.object(value))
        size = value.untyped_storage().nbytes()
        return SeenTensor(self.object(value), self.storage(value), size, value.requires_grad)


def _reference_to(seen: object) -> Callable[[], object]:
    """What tells whether an object is still the one that was seen: one that cannot be referred to weakly is held."""
    try:
        return weakref.ref(seen)
    except TypeError:
        return lambda: seen


@dataclass(eq=False, slots=True)
class Call:
    """One call of one module."""

    name: str
    module: torch.nn.Module
    parent: Call | None
    children: list[Call] = field(default_factory=list)
    given: list[object] = field(default_factory=list)
    """Leaves of the arguments."""
    shape_of_given: object = None
    returned: list[SeenTensor] = field(default_factory=list)
    mutates_input: bool = False
    is_checkpointed: bool = False
    """Whether the user's code makes it within `torch.utils.checkpoint`."""
    made_bytes: int = 0
    """By operators within it, calls below it included."""
    start: int = 0
    end: int = 0
    """Numbers of the first operator within, and of the first after it."""

    def tensors_given(self) -> list[SeenTensor]:
        """The tensors among its arguments."""
        return [leaf for leaf in self.given if isinstance(leaf, SeenTensor)]


@dataclass(slots=True)
class CallTree:
    """Everything one forward called."""

    root: Call
    num_operators: int
    readers: dict[tuple[str, int], list[int]]
    """Storage or object, by its number: numbers of the operators that read it."""
    counts: dict[int, int]
    """id of a module: how often it was called."""
    writers: dict[int, int] = field(default_factory=dict)
    """Storage, by its number: number of the last operator that wrote into it."""
    sized_by_values: str = ""
    """The first operator the size of whose result depends on values, with the module that ran it; empty if none."""
    decided_by_values: str = ""
    """Where the forward first read a value into Python, which may decide what it does; empty if it never did."""
    graph: list[tuple[str, int]] = field(default_factory=list)
    """Name and bytes made of every operator that a gradient goes through, from the first call of a module on."""
    from_before: dict[int, int] = field(default_factory=dict)
    """Address and bytes of storages that the forward read, did not make, and that are there when the step is over."""

    def written_after(self, call: Call) -> bool:
        """Whether an operator wrote into something that a call was given, when the call was over."""
        return any(self.writers.get(tensor.storage, -1) >= call.end for tensor in call.tensors_given())

    def read_after(self, tensor: SeenTensor, number: int, aliases: list[SeenTensor]) -> bool:
        """Whether an operator from this number on read the tensor, other than through these aliases of it."""
        if any(alias.number == tensor.number for alias in aliases):
            return False
        shared = any(alias.storage == tensor.storage for alias in aliases)
        key = ("object", tensor.number) if shared else ("storage", tensor.storage)
        return any(read >= number for read in self.readers.get(key, ()))


class _Watch(TorchDispatchMode):
    """Numbers the operators of the forward."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0
        self.current: Call | None = None
        self.readers: dict[tuple[str, int], list[int]] = {}
        self.writers: dict[int, int] = {}
        self.numbers = Numbers()
        self.is_open = True
        self.sized_by_values = self.decided_by_values = ""
        self.graph: list[tuple[str, int]] = []
        self.in_threads: list[str] = []
        """Modules that were called from other threads than the one that watches."""
        self.thread = threading.get_ident()
        self._made: set[int] = set()
        self._read_first: dict[int, tuple[StorageWeakRef, int, int]] = {}

    def from_before(self) -> dict[int, int]:
        """Address and bytes of storages that were read before any operator made them, and are still there."""
        return {address: size for seen, address, size in self._read_first.values() if not seen.expired()}

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
        result = func(*args, **(kwargs or {}))
        if not self.is_open:
            return result
        name = _name_of(func)
        if not self.sized_by_values and _is_sized_by_values(func, args):
            self.sized_by_values = self._here(func)
        if not self.decided_by_values and name == _READS_A_VALUE:
            self.decided_by_values = self._here(func)
        if name.partition(".")[0] not in _SHAPE_ONLY:
            made = [result] if type(result) is torch.Tensor else tensors_of(result)
            self._note(name, leaves_of((args, kwargs or {})), made, written_by(func, args, kwargs or {}))
        return result

    def _here(self, func: torch._ops.OpOverload) -> str:
        where = self.current.name if self.current is not None else ""
        return f"{func.name().partition('.')[0]} in {where or 'the model'}"

    def _note(self, name: str, given: list[object], made: list[torch.Tensor], written: list[torch.Tensor]) -> None:
        tensors = [leaf for leaf in given if isinstance(leaf, torch.Tensor)]
        read = {("storage", self.numbers.storage(tensor)) for tensor in tensors}
        for key in read | {("object", self.numbers.object(tensor)) for tensor in tensors}:
            self.readers.setdefault(key, []).append(self.number)
        for tensor in written:
            self.writers[self.numbers.storage(tensor)] = self.number
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if (
                storage._cdata not in self._made
                and storage._cdata not in self._read_first
                and tensor.device.type != "meta"
            ):
                self._read_first[storage._cdata] = StorageWeakRef(storage), _address_of(tensor), storage.nbytes()
        fresh = [tensor for tensor in made if ("storage", self.numbers.storage(tensor)) not in read]
        self._made.update(tensor.untyped_storage()._cdata for tensor in fresh)
        made_bytes = sum(tensor.untyped_storage().nbytes() for tensor in fresh)
        if self.current is not None:
            self.current.made_bytes += made_bytes
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            self.graph.append((name, made_bytes))
        self.number += 1


@functools.cache
def _name_of(func: torch._ops.OpOverload) -> str:
    return func.name()


def _address_of(tensor: torch.Tensor) -> int:
    """Where a tensor's storage lies; 0 for those that have none."""
    return next(iter(storages_of([tensor])), 0)


def _is_sized_by_values(func: torch._ops.OpOverload, args: tuple[object, ...]) -> bool:
    """Whether how much an operator returns depends on values, as with `nonzero` and with masks as indices."""
    if torch.Tag.dynamic_output_shape not in func.tags:
        return False
    if func.name().partition(".")[0] != "aten::index":
        return True
    return any(tensor.dtype in (torch.bool, torch.uint8) for tensor in tensors_of(args[1]))


def storage_key(tensor: torch.Tensor) -> int:
    """What two tensors on one storage share."""
    return tensor.untyped_storage()._cdata


def watch_calls(job: Job) -> CallTree:
    """Run the job once and note the calls of its first forward."""
    found: list[CallTree] = []
    with leaving_no_trace(job), watching_calls(job.model, found):
        job.run()
    return found[0]


@contextlib.contextmanager
def watching_calls(model: torch.nn.Module, found: list[CallTree]) -> Iterator[None]:
    """Note the calls of the first forward that is run within; `found` gets them when it has ended."""
    watch = _Watch()
    names = {id(module): name for name, module in model.named_modules()}
    root = watch.current = Call(name="", module=model, parent=None)
    counts: dict[int, int] = {}
    with _hooks(model, watch, names, counts), watch, closing_at_backward(watch):
        yield
    _refuse_threads(watch.in_threads)
    _add_up(root)
    decided = watch.sized_by_values, watch.decided_by_values
    found.append(
        CallTree(root, watch.number, watch.readers, counts, watch.writers, *decided, watch.graph, watch.from_before())
    )


def _refuse_threads(names: list[str]) -> None:
    """Refuse a step that calls modules from several threads: the order of calls and of sums is left to chance."""
    if names:
        some = ", ".join(name or "the model" for name in sorted(set(names))[:3])
        raise UsageError(
            "a step that calls modules from other threads cannot be fitted",
            found=f"called from another thread than the one that runs the step: {some}",
            hint="call them one after the other while training: on one device the threads wait for the same cores",
        )


NO_BACKWARD = -1
"""Not in a backward. Those of GPUs run in threads of autograd, where checkpoints call modules again."""


@contextlib.contextmanager
def _hooks(model: torch.nn.Module, watch: _Watch, names: dict[int, str], counts: dict[int, int]) -> Iterator[None]:
    def around(module: torch.nn.Module) -> Layer:
        def layer(proceed: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]) -> object:
            if not watch.is_open or within_a_transform():
                return proceed(*args, **kwargs)
            if threading.get_ident() != watch.thread and torch._C._current_graph_task_id() == NO_BACKWARD:
                watch.in_threads.append(names[id(module)])
                _refuse_threads(watch.in_threads)  # at once: fake tensors cannot be used by two threads at a time
            if not counts:  # what memfit itself does before the step, in some runs and not in others, is none of it
                watch.graph.clear()
            counts[id(module)] = counts.get(id(module), 0) + 1
            tensors = [leaf for leaf in leaves_of((args, kwargs)) if isinstance(leaf, torch.Tensor)]
            versions = [version_of(tensor) for tensor in tensors]
            call = _begun(watch, names[id(module)], module, (args, kwargs))
            output = proceed(*args, **kwargs)
            if watch.is_open:
                call.returned, call.end = [watch.numbers.seen(tensor) for tensor in tensors_of(output)], watch.number
                call.mutates_input = [version_of(tensor) for tensor in tensors] != versions
                watch.current = call.parent
            return output

        return layer

    with contextlib.ExitStack() as removers:
        for module in outside_compiled(model):
            removers.callback(add_layer(module, around(module)))
        yield


def _begun(watch: _Watch, name: str, module: torch.nn.Module, given: object) -> Call:
    shape: list[str] = []

    def kept(leaf: object) -> object:
        shape.append("tensor" if isinstance(leaf, torch.Tensor) else "value")
        return watch.numbers.seen(leaf)

    kept_given = replaced(given, kept)
    skeleton = repr(replaced(given, lambda _: 0))
    call = Call(name, module, watch.current, given=leaves_of(kept_given), shape_of_given=(skeleton, tuple(shape)))
    call.start, call.is_checkpointed = watch.number, _within_torchs_checkpoint()
    if watch.current is not None:
        watch.current.children.append(call)
    watch.current = call
    return call


def _within_torchs_checkpoint() -> bool:
    """Whether what autograd saves now goes to `torch.utils.checkpoint` (read in torch 2.13)."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)  # type: ignore[attr-defined]
    return hooks is not None and getattr(hooks[0], "__module__", "") == "torch.utils.checkpoint"


class CanClose(Protocol):
    """What notes something as long as it is open."""

    is_open: bool


@contextlib.contextmanager
def closing_at_backward(watch: CanClose) -> Iterator[None]:
    """Set `is_open` to False when the first backward begins."""

    def close() -> None:
        watch.is_open = False

    with at_backward(close, lambda: None):
        yield


@contextlib.contextmanager
def at_backward(begin: Callable[[], object], end: Callable[[], object]) -> Iterator[None]:
    """Call back when `torch.autograd.backward` begins and ends; `Tensor.backward` goes through it."""
    plain: Callable[..., None] = torch.autograd.backward

    def reporting(*args: object, **kwargs: object) -> None:
        begin()
        try:
            return plain(*args, **kwargs)
        finally:
            end()

    torch.autograd.backward = reporting
    try:
        yield
    finally:
        torch.autograd.backward = plain


def _add_up(call: Call) -> None:
    for child in call.children:
        _add_up(child)
        call.made_bytes += child.made_bytes
