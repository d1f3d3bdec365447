"""Records one pass of somebody's training loop, from the model's call to the end of its backward, and plays it again.

A loop is no function, so that a step of it cannot be called a second time. What can be repeated is what it did with
tensors: calls of modules that have parameters (each is one entry, whatever happens inside), and the torch functions
around them, as a `TorchFunctionMode` sees them. Tensors that the pass made are known by number and not held; those
that were there before are held. Before the first call of a module, only what carries gradients is recorded: the rest is
data. Python's own decisions are not on the tape: playing repeats the way that was taken.

A tape that would compute something else is refused when it is closed: a tensor with a history that nobody recorded
(made by a hook, or by another thread) is named.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode
from torch.utils.weak import WeakIdKeyDictionary

from memfit.apply.torch_structures import replaced, tensors_in
from memfit.errors import UsageError

_SILENT = {"__get__", "size", "dim", "numel", "stride", "item", "tolist", "register_hook", "backward"}
"""Functions that make no tensor worth repeating, or act on the graph alone."""
_FUNCTION: Any = torch.autograd.Function
_READ_ONLY_PROPERTIES = {"T", "H", "mT", "mH", "real", "imag", "data"}


@dataclass(frozen=True, slots=True)
class _Made:
    """A tensor that the pass made: which one of the tensors that an entry returned."""

    entry: int
    position: int


@dataclass(frozen=True, slots=True)
class _Hung:
    """A tensor that a call of a module left on some module: an auxiliary loss, for example."""

    module: torch.nn.Module
    name: str


@dataclass(slots=True)
class _Entry:
    """One call: of a module, or of a torch function."""

    function: Callable[..., Any]
    args: Any
    kwargs: Any
    writes: bool = False
    """Whether it changes a tensor in place, and must be played although nobody reads what it returns."""
    reads: set[int] = field(default_factory=set)
    """Numbers of the entries whose tensors it is given."""


class Tape:
    """What one pass did; `play` does it again."""

    def __init__(self) -> None:
        self.entries: list[_Entry] = []
        self.modules: list[torch.nn.Module] = []
        """Modules with parameters that the pass called, each once, in the order of their first calls."""
        self.inputs: list[Any] = []
        """What they were given: args and kwargs of each call, with the tensors that the pass made left out."""
        self._known: Any = WeakIdKeyDictionary()
        self._backward: _Entry | None = None
        self._held_to_the_end: set[int] = set()
        """Entries with a tensor that was alive when the backward began: in a variable of the loop, or saved."""
        self._fault = ""

    @property
    def fault(self) -> str:
        """Why the tape cannot be played; empty when it can."""
        return self._fault or ("" if self._backward is not None else "it has no backward")

    def add(self, function: Callable[..., Any], args: Any, kwargs: Any, output: Any, writes: bool = False) -> None:
        """Note one call that was made."""
        entry = self._entry(function, args, kwargs)
        entry.writes = writes
        number = len(self.entries)
        self.entries.append(entry)
        for position, tensor in enumerate(tensors_in(output)):
            self._known[tensor] = _Made(number, position)

    def add_module(self, module: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Note the call of a module."""
        if not any(module is known for known in self.modules):
            self.modules.append(module)
        self.add(module, args, kwargs, output)
        self.inputs.append((self.entries[-1].args, self.entries[-1].kwargs))

    def close(self, backward: Callable[..., Any], args: Any, kwargs: Any) -> None:
        """Note the backward, and drop what it does not need."""
        self._backward = self._entry(backward, args, kwargs)
        needed, waiting = set(), set(self._backward.reads)
        for number in range(len(self.entries) - 1, -1, -1):
            entry = self.entries[number]
            if number in waiting or (entry.writes and entry.reads & (needed | waiting)):
                needed.add(number)
                waiting |= entry.reads
        for number, entry in enumerate(self.entries):
            if number not in needed:
                entry.function, entry.args, entry.kwargs = _nothing, (), {}
        self._held_to_the_end = {known.entry for known in self._known.values()}
        self._known = WeakIdKeyDictionary()

    def play(self) -> torch.Tensor | None:
        """Do all of it again; returns what the backward began with."""
        assert self._backward is not None
        made: list[list[torch.Tensor]] = []
        last_use = self._last_uses()
        for number, entry in enumerate(self.entries):
            args, kwargs = self._filled(entry, made)
            made.append([] if entry.function is _nothing else tensors_in(entry.function(*args, **kwargs)))
            del args, kwargs
            for done in last_use.get(number, ()):
                made[done] = []  # as the loop's own variables, no tensor lives longer than it is used
        args, kwargs = self._filled(self._backward, made)
        first = args[0] if args else kwargs.get("tensors")
        self._backward.function(*args, **kwargs)
        return first if isinstance(first, torch.Tensor) else None

    def _last_uses(self) -> dict[int, list[int]]:
        """By entry, the entries whose tensors are let go after it: as early as the loop let them go, or earlier."""
        last: dict[int, int] = {number: number for number in range(len(self.entries))}
        for number, entry in enumerate(self.entries):
            last.update(dict.fromkeys(entry.reads, number))
        found: dict[int, list[int]] = {}
        for number, at in last.items():
            if number not in self._held_to_the_end:
                found.setdefault(at, []).append(number)
        return found

    def _entry(self, function: Callable[..., Any], args: Any, kwargs: Any) -> _Entry:
        reads: set[int] = set()

        def kept(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            known = self._known.get(leaf)
            if known is None and leaf.grad_fn is not None:
                known = self._found_on_a_module(leaf)
            if isinstance(known, _Made):
                reads.add(known.entry)
            return leaf if known is None else known

        return _Entry(function, replaced(args, kept), replaced(kwargs, kept), reads=reads)

    def _found_on_a_module(self, tensor: torch.Tensor) -> _Hung | None:
        for root in self.modules:
            for module in root.modules():
                for name, value in module.__dict__.items():
                    if value is tensor:
                        return _Hung(module, name)
        self._fault = self._fault or (
            f"a tensor of shape {tuple(tensor.shape)} made by {tensor.grad_fn.name() if tensor.grad_fn else '?'} came "
            "from elsewhere than a module's output or a torch function"
        )
        return None

    def _filled(self, entry: _Entry, made: list[list[torch.Tensor]]) -> tuple[Any, Any]:
        def fill(leaf: Any) -> Any:
            if isinstance(leaf, _Made):
                return made[leaf.entry][leaf.position]
            return getattr(leaf.module, leaf.name) if isinstance(leaf, _Hung) else leaf

        return replaced(entry.args, fill), replaced(entry.kwargs, fill)

    def held(self) -> list[torch.Tensor]:
        """Every tensor that was there before the pass and is held for playing it."""
        entries = [*self.entries, *([self._backward] if self._backward is not None else [])]
        return [tensor for entry in entries for tensor in tensors_in((entry.args, entry.kwargs))]


def _nothing(*_: Any, **__: Any) -> None:
    """In the place of a call that the backward does not need."""


class Recorder(TorchFunctionMode):
    """Writes the torch functions of one thread to a tape, and `autograd.Function.apply`, which no mode sees (2.13)."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self.tape, self.inside_module, self.is_open = tape, 0, False
        self._thread = threading.get_ident()
        self.is_on_stack = False
        self._plain_apply: Any = None

    def begin(self) -> None:
        """Record from now on."""
        self.__enter__()
        self.is_open = self.is_on_stack = True
        self._plain_apply = plain = _FUNCTION.__dict__["apply"]
        recorder = self

        def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
            return recorder._applied(cls, plain.__get__(None, cls), args, kwargs)

        _FUNCTION.apply = classmethod(apply)

    def end(self) -> None:
        """Record no more. The mode leaves the stack as soon as it is on top: inside of a torch function it is not."""
        if self.is_open:
            self.is_open = False
            _FUNCTION.apply = self._plain_apply
        if self.is_on_stack and _get_current_function_mode() is self:
            self.is_on_stack = False
            self.__exit__(None, None, None)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self._records():
            return func(*args, **kwargs)
        before = [(tensor, tensor._version) for tensor in tensors_in((args, kwargs))]
        output = func(*args, **kwargs)
        self._note(func, args, kwargs, output, before)
        return output

    def _note(self, func: Any, args: Any, kwargs: Any, output: Any, before: list[tuple[torch.Tensor, int]]) -> None:
        made = tensors_in(output)
        writes = any(tensor._version != version for tensor, version in before)
        if not made or _is_silent(func):
            return
        if self.tape.modules or any(tensor.requires_grad for tensor in made):
            self.tape.add(func, args, kwargs, output, writes)

    def call_module(self, module: torch.nn.Module, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Make the call of a module; it is one entry."""
        if not self._records():
            return call(*args, **kwargs)
        output = self._as_one(call, args, kwargs)
        self.tape.add_module(module, args, kwargs, output)
        return output

    def _applied(self, cls: Any, apply: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if not self._records():
            return apply(*args, **kwargs)
        output = self._as_one(apply, args, kwargs)
        if self.tape.modules or any(tensor.requires_grad for tensor in tensors_in(output)):
            self.tape.add(cls.apply, args, kwargs, output)
        return output

    def _as_one(self, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self.inside_module += 1
        try:
            return call(*args, **kwargs)
        finally:
            self.inside_module -= 1

    def _records(self) -> bool:
        return self.is_open and not self.inside_module and threading.get_ident() == self._thread


def _is_silent(func: Any) -> bool:
    name = getattr(func, "__name__", "")
    if name == "__get__":
        owner = getattr(getattr(func, "__self__", None), "__name__", "")
        return owner not in _READ_ONLY_PROPERTIES
    return name in _SILENT


def refuse_unplayable(tape: Tape) -> None:
    """Say why a pass cannot be repeated."""
    if tape.fault:
        raise UsageError(
            "this training step cannot be run again, so that no plan can be proven for it",
            found=tape.fault,
            hint="name a function that builds the training (memfit fit FILE:function), or fit_to_budget in the script",
        )
