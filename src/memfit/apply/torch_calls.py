"""Which modules does one step call, in which order and with which tensors, and who else reads what they return?

Hooks on every module give the tree of calls; a dispatch mode sees every operator of the forward and notes which
call it ran in, which storages it read, and how many bytes it made.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves

from memfit.apply.torch_job import Job, leaving_no_trace, tensors_of

_SHAPE_ONLY = {"aten::sym_size", "aten::size", "aten::sym_stride", "aten::is_same_size"}


@dataclass(eq=False, slots=True)
class Call:
    """One call of one module."""

    name: str
    module: torch.nn.Module
    parent: Call | None
    children: list[Call] = field(default_factory=list)
    given: list[Any] = field(default_factory=list)
    """Leaves of the arguments; tensors are held until the tree is read."""
    shape_of_given: Any = None
    versions: list[int | None] = field(default_factory=list)
    returned: Any = None
    mutates_input: bool = False
    made_bytes: int = 0
    """By operators within it, calls below it included."""
    start: int = 0
    end: int = 0
    """Numbers of the first operator within, and of the first after it."""

    def tensors_given(self) -> list[torch.Tensor]:
        """The tensors among its arguments."""
        return [leaf for leaf in self.given if isinstance(leaf, torch.Tensor)]

    def tensors_returned(self) -> list[torch.Tensor]:
        """The tensors it returned."""
        return tensors_of(self.returned)


@dataclass(slots=True)
class CallTree:
    """Everything one forward called."""

    root: Call
    num_operators: int
    readers: dict[tuple[str, int], list[int]]
    """Storage or object: numbers of the operators that read it. Calls hold their tensors, so their keys are theirs."""
    counts: dict[int, int]
    """id of a module: how often it was called."""

    def read_after(self, tensor: torch.Tensor, number: int, aliases: list[torch.Tensor]) -> bool:
        """Whether an operator from this number on read the tensor, other than through these aliases of it."""
        if any(alias is tensor for alias in aliases):
            return False
        shared = any(storage_key(alias) == storage_key(tensor) for alias in aliases)
        key = ("object", id(tensor)) if shared else ("storage", storage_key(tensor))
        return any(read >= number for read in self.readers.get(key, ()))


class _Watch(TorchDispatchMode):
    """Numbers the operators of the forward."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0
        self.current: Call | None = None
        self.readers: dict[tuple[str, int], list[int]] = {}
        self.is_open = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.is_open and func.name().partition(".")[0] not in _SHAPE_ONLY:
            self._note(tree_leaves((args, kwargs)), tensors_of(result))
        return result

    def _note(self, given: list[Any], made: list[torch.Tensor]) -> None:
        tensors = [leaf for leaf in given if isinstance(leaf, torch.Tensor)]
        read = {("storage", storage_key(tensor)) for tensor in tensors}
        for key in read | {("object", id(tensor)) for tensor in tensors}:
            self.readers.setdefault(key, []).append(self.number)
        for tensor in made:
            if ("storage", storage_key(tensor)) not in read and self.current is not None:
                self.current.made_bytes += tensor.untyped_storage().nbytes()
        self.number += 1


def storage_key(tensor: torch.Tensor) -> int:
    """What two tensors on one storage share."""
    return tensor.untyped_storage()._cdata


def watch_calls(job: Job) -> CallTree:
    """Run the job once and note the calls of its first forward."""
    watch = _Watch()
    names = {id(module): name for name, module in job.model.named_modules()}
    root = Call(name="", module=job.model, parent=None)
    watch.current = root
    counts: dict[int, int] = {}
    with leaving_no_trace(job), _hooks(job.model, watch, names, counts, root), watch, closing_at_backward(watch):
        job.run()
    _add_up(root)
    return CallTree(root, watch.number, watch.readers, counts)


@contextlib.contextmanager
def _hooks(
    model: torch.nn.Module, watch: _Watch, names: dict[int, str], counts: dict[int, int], root: Call
) -> Iterator[None]:
    def enter(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        if not watch.is_open:
            return
        counts[id(module)] = counts.get(id(module), 0) + 1
        leaves, spec = tree_flatten((args, kwargs))
        versions = [leaf._version if isinstance(leaf, torch.Tensor) else None for leaf in leaves]
        call = Call(names[id(module)], module, watch.current, given=leaves, shape_of_given=spec, versions=versions)
        call.start = watch.number
        if watch.current is not None:
            watch.current.children.append(call)
        watch.current = call

    def leave(module: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        call = watch.current
        if not watch.is_open or call is None or call.module is not module:
            return
        call.returned, call.end = output, watch.number
        now = [leaf._version if isinstance(leaf, torch.Tensor) else None for leaf in call.given]
        call.mutates_input = now != call.versions
        watch.current = call.parent

    handles = []
    for module in model.modules():
        handles.append(module.register_forward_pre_hook(enter, with_kwargs=True, prepend=True))
        handles.append(module.register_forward_hook(leave, with_kwargs=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def closing_at_backward(watch: Any) -> Iterator[None]:
    """Set `is_open` to False when the first backward begins."""

    def close() -> None:
        watch.is_open = False

    with at_backward(close, lambda: None):
        yield


@contextlib.contextmanager
def at_backward(begin: Any, end: Any) -> Iterator[None]:
    """Be told when `torch.autograd.backward` begins and ends; `Tensor.backward` goes through it."""
    plain = torch.autograd.backward

    def told(*args: Any, **kwargs: Any) -> Any:
        begin()
        try:
            return plain(*args, **kwargs)
        finally:
            end()

    torch.autograd.backward = told
    try:
        yield
    finally:
        torch.autograd.backward = plain


def _add_up(call: Call) -> None:
    for child in call.children:
        _add_up(child)
        call.made_bytes += child.made_bytes
