"""Records one pass of somebody's training loop, from the model's call to the end of its backward, and plays it again.

A loop is no function, so that a step of it cannot be called a second time. What can be repeated is what it did with
tensors: calls of modules that have parameters (each is one entry, whatever happens inside), and the torch functions
around them, as a `TorchFunctionMode` sees them. Tensors that the pass made are known by number and not held; those
that were there before are held. Before the first call of a module, only what carries gradients is recorded: the rest is
data. Python's own decisions are not on the tape: playing repeats the way that was taken.

What was there before is never changed by playing: a tensor that the loop writes into (a running loss, a sum that
begins with zeros) is written into a copy, made of the value it had; writing that the backward does not need is left
out. Each call is repeated with or without gradients and under the autocast that it had.

What a module returned in an earlier pass whose graph goes on here (the images of a generator, in the second pass of a
GAN) is made again as that pass made it, where it was recorded; else it is given without its history, and that part of
the backward is not played. So is what the first call is given with a history from before it (`model(x + delta)`).

A tape that would compute something else, or change what is not its own, is refused when it is closed: a tensor with a
history that was not recorded (made by a hook, or by another thread), or in an object that is not opened.
"""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode
from torch.utils.weak import WeakIdKeyDictionary

from memfit.errors import DoesNotFit, UsageError
from memfit.model.random_and_autocast import Autocast
from memfit.model.tensors_in_arguments import leaves_of, replaced, stands_for_a_tensor, tensors_in, without_history

_SILENT = {"__get__", "size", "dim", "numel", "stride", "item", "tolist", "register_hook", "backward"}
"""Functions that make no tensor worth repeating, or act on the graph alone."""
_FUNCTION: Any = torch.autograd.Function
_MOST_COPIED_BYTES = 1 << 20
"""Of a tensor from before the pass into which the loop writes."""
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

    function: Callable[..., object]
    args: tuple[object, ...]
    kwargs: dict[str, object]
    has_gradients: bool
    """Whether autograd recorded: a pass has parts under `no_grad`."""
    autocast: Autocast
    written: frozenset[int] = frozenset()
    """Numbers of the entries whose tensors it changes in place; it is played where one of them is needed."""
    writes_outside: bool = False
    """Whether it changes a tensor from before the pass, of which no copy was made."""
    reads: set[int] = field(default_factory=set)
    """Numbers of the entries whose tensors it is given."""


class Tape:
    """What one pass did; `play` does it again."""

    def __init__(
        self,
        is_from_earlier_pass: Callable[[torch.Tensor], bool] = lambda _: False,
        earlier: Callable[[], Sequence[Tape]] = lambda: (),
    ) -> None:
        self.entries: list[_Entry] = []
        self.modules: list[torch.nn.Module] = []
        """Modules with parameters that the pass called, each once, in the order of their first calls."""
        self.others: list[torch.nn.Module] = []
        """Further modules with parameters or buffers that it called: teachers, frozen networks."""
        self._known: Any = WeakIdKeyDictionary()
        self._backward: _Entry | None = None
        self._held_to_the_end: set[int] = set()
        """Entries with a tensor that was alive when the backward began: in a variable of the loop, or saved."""
        self._first_call: int | None = None
        """Number of the entry with the call of a module that began the pass."""
        self._outside: set[int] = set()
        """Storages of tensors from before the pass that entries are given."""
        self._fault = ""
        self._is_from_earlier_pass, self._earlier = is_from_earlier_pass, earlier
        self.goes_on_from: Tape | None = None
        """The first of the earlier tapes of which a part is played here."""
        self._called_with: list[tuple[torch.nn.Module, list[torch.nn.Parameter]]] = []
        """Modules, and the parameters that they had when they were called."""
        self._made: Any = WeakIdKeyDictionary()
        """By tensor, what made it, of those whose graph is still there when the backward is over."""
        self._cut_off: Any = WeakIdKeyDictionary()
        """By tensor of an earlier pass, what stands for it: its values, without its history."""
        self.is_cut_off = False
        """Whether there was such a tensor that gradients come to: the backward of the program goes on there."""

    @property
    def fault(self) -> str:
        """Why the tape cannot be played; empty when it can."""
        return self._fault or ("" if self._backward is not None else "it has no backward")

    def add(
        self,
        function: Callable[..., object],
        args: tuple[object, ...],
        kwargs: dict[str, object],
        output: object,
        written: Sequence[torch.Tensor] = (),
    ) -> None:
        """Note one call that was made, and which of its tensors it changed in place."""
        entry = self._entry(function, args, kwargs)
        known = [self._known.get(tensor) for tensor in written]
        entry.written = frozenset(each.entry for each in known if each is not None)
        entry.writes_outside = None in known or any(_storage(tensor) in self._outside for tensor in written)
        number = len(self.entries)
        self.entries.append(entry)
        for position, tensor in enumerate(tensors_in(output)):
            self._known[tensor] = _Made(number, position)

    def add_module(
        self,
        module: torch.nn.Module,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        output: object,
        is_trained: bool,
    ) -> None:
        """Note the call of a module."""
        known = self.modules if is_trained else self.others
        if not any(module is each for each in known):
            known.append(module)
        if self._first_call is None and is_trained:
            self._first_call = len(self.entries)
        self._called_with.append((module, list(module.parameters())))
        self.add(module, args, kwargs, output)

    def add_copy(self, tensor: torch.Tensor, value: torch.Tensor) -> None:
        """From here on, a tensor from before the pass is a copy of the value that it had."""
        self.add(torch.clone, (value,), {}, tensor)
        self._outside.discard(_storage(tensor))

    def called_again(self) -> dict[torch.nn.Module, int]:
        """Trained modules that the pass called more than once, and how often."""
        counts = Counter(entry.function for entry in self.entries if isinstance(entry.function, torch.nn.Module))
        return {module: counts[module] for module in self.modules if counts[module] > 1}

    def is_from_before(self, tensor: torch.Tensor) -> bool:
        """Whether the pass did not make this tensor."""
        return tensor not in self._known

    def given_and_held_alone(self) -> list[torch.Tensor]:
        """Tensors that the first call was given and that nothing holds but the entries of this tape."""
        if self._first_call is None:
            return []
        first = self.entries[self._first_call]
        given = [leaf for leaf in leaves_of((first.args, first.kwargs)) if isinstance(leaf, torch.Tensor)]
        entries = [*self.entries, *([self._backward] if self._backward is not None else [])]
        places = [id(leaf) for entry in entries for leaf in leaves_of((entry.args, entry.kwargs))]
        alone: list[torch.Tensor] = []
        for place in range(len(given)):
            num_elsewhere = sys.getrefcount(given[place]) - 2 - places.count(id(given[place]))  # 2: list and question
            if not num_elsewhere and not isinstance(given[place], torch.nn.Parameter):
                alone.extend(given[place : place + 1])
        return alone

    def close(self, backward: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Note the backward, and drop what it does not need."""
        self._refuse_swapped_weights()
        self._backward = self._entry(backward, args, kwargs)
        needed, waiting = set(), set(self._backward.reads)
        for number in range(len(self.entries) - 1, -1, -1):
            entry = self.entries[number]
            if number in waiting or entry.written & (needed | waiting):
                needed.add(number)
                waiting |= entry.reads
                if entry.writes_outside:
                    self._say(f"{_name_of(entry.function)} changes a tensor in place that was there before the pass")
        for number, entry in enumerate(self.entries):
            if number not in needed:
                entry.function, entry.args, entry.kwargs = _nothing, (), {}
        self._held_to_the_end = {known.entry for known in self._known.values()}
        used_up = _nodes_behind(tensors_in((args, kwargs)))
        for tensor, made in self._known.items():
            if tensor.grad_fn not in used_up:
                self._made[tensor] = made
        self._known, self._cut_off = WeakIdKeyDictionary(), WeakIdKeyDictionary()

    def _refuse_swapped_weights(self) -> None:
        """A call by `functional_call` cannot be made again, for its weights are gone from the module."""
        for module, parameters in self._called_with:
            if list(map(id, module.parameters())) != list(map(id, parameters)):
                self._say(f"{type(module).__name__} was called with other weights than those it has now")
        self._called_with = []

    def play(self, after_first_call: Callable[[], object] = lambda: None) -> torch.Tensor | None:
        """Do all of it again; returns what the backward began with. `after_first_call` follows the call of a module
        that began the pass."""
        assert self._backward is not None
        made: list[list[torch.Tensor]] = []
        last_use = self._last_uses()
        for number, entry in enumerate(self.entries):
            args, kwargs = self._filled(entry, made)
            made.append(_played(entry, args, kwargs))
            if number == self._first_call:
                after_first_call()
            del args, kwargs
            for done in last_use.get(number, ()):
                made[done] = []  # as the loop's own variables, no tensor lives longer than it is used
        args, kwargs = self._filled(self._backward, made)
        first = args[0] if args else kwargs.get("tensors")
        self._backward.function(*args, **kwargs)
        return first if isinstance(first, torch.Tensor) else None

    def _last_uses(self) -> dict[int, list[int]]:
        """By entry, the entries whose tensors are released after it: as early as the loop released them, or earlier."""
        last: dict[int, int] = {number: number for number in range(len(self.entries))}
        for number, entry in enumerate(self.entries):
            last.update(dict.fromkeys(entry.reads, number))
        found: dict[int, list[int]] = {}
        for number, at in last.items():
            if number not in self._held_to_the_end:
                found.setdefault(at, []).append(number)
        return found

    def _entry(self, function: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]) -> _Entry:
        reads: set[int] = set()

        def kept(leaf: object) -> object:
            if not isinstance(leaf, torch.Tensor):
                if any(tensor in self._known or tensor.grad_fn is not None for tensor in _within(leaf)):
                    self._say(f"{_name_of(function)} is given a {type(leaf).__name__} with tensors of this pass in it")
                return leaf
            known = self._known.get(leaf)
            if known is None and leaf.grad_fn is not None and self._is_from_earlier_pass(leaf):
                known = self._taken_over(leaf)
                if known is None:
                    self._outside.add(_storage(leaf))
                    return self._without_history(leaf)
            if known is None and leaf.grad_fn is not None:
                known = self._found_on_a_module(leaf)
            if known is None:
                self._outside.add(_storage(leaf))
            if isinstance(known, _Made):
                reads.add(known.entry)
            return leaf if known is None else known

        kinds = ("cpu", "cuda") if torch.cuda.is_initialized() else ("cpu",)
        circumstances = torch.is_grad_enabled(), Autocast(kinds)
        return _Entry(function, replaced(args, kept), replaced(kwargs, kept), *circumstances, reads=reads)

    def _taken_over(self, tensor: torch.Tensor) -> _Made | None:
        """What makes a tensor of an earlier pass, written to this tape as well; None where that was not recorded."""
        for tape in self._earlier():
            numbers = tape.numbers_that_made(tensor)
            if numbers:
                self.goes_on_from = self.goes_on_from or tape
                self._take_over(tape, numbers)
                return self._known[tensor]
        return None

    def numbers_that_made(self, tensor: torch.Tensor) -> list[int]:
        """The entries that are needed to make a tensor of this pass again; none where that cannot be done."""
        made = self._made.get(tensor)
        if made is None or self.fault:
            return []
        needed: set[int] = set()
        waiting = {made.entry}
        for number in range(len(self.entries) - 1, -1, -1):
            entry = self.entries[number]
            if number in waiting or entry.written & (needed | waiting):
                needed.add(number)
                waiting |= entry.reads
        entries = [self.entries[number] for number in needed]
        return [] if any(each.function is _nothing or each.writes_outside for each in entries) else sorted(needed)

    def _take_over(self, tape: Tape, numbers: Sequence[int]) -> None:
        new = {number: len(self.entries) + position for position, number in enumerate(numbers)}

        def renumbered(leaf: object) -> object:
            return _Made(new[leaf.entry], leaf.position) if isinstance(leaf, _Made) else leaf

        for number in numbers:
            entry = tape.entries[number]
            if isinstance(entry.function, torch.nn.Module):
                known = self.modules if any(entry.function is each for each in tape.modules) else self.others
                if not any(entry.function is each for each in known):
                    known.append(entry.function)
            args, kwargs = replaced((entry.args, entry.kwargs), renumbered)
            written = frozenset(new[each] for each in entry.written if each in new)
            reads = {new[each] for each in entry.reads}
            self.entries.append(dataclasses.replace(entry, args=args, kwargs=kwargs, written=written, reads=reads))
        for tensor, made in list(tape._made.items()):
            if made.entry in new and tensor not in self._known:
                self._known[tensor] = _Made(new[made.entry], made.position)

    def _without_history(self, tensor: torch.Tensor) -> torch.Tensor:
        """What stands for a tensor of an earlier pass: a gradient that comes to it goes no further."""
        self.is_cut_off = True
        if tensor not in self._cut_off:
            with torch._C.DisableTorchFunction():  # memfit's own calls are not recorded
                self._cut_off[tensor] = without_history(tensor)
        return self._cut_off[tensor]

    def _found_on_a_module(self, tensor: torch.Tensor) -> _Hung | None:
        for root in self.modules:
            for module in root.modules():
                for name, value in module.__dict__.items():
                    if value is tensor:
                        return _Hung(module, name)
        self._say(
            f"a tensor of shape {tuple(tensor.shape)} made by {tensor.grad_fn.name() if tensor.grad_fn else '?'} came "
            "from elsewhere than a module's output or a torch function"
        )
        return None

    def _say(self, fault: str) -> None:
        self._fault = self._fault or fault

    def _filled(self, entry: _Entry, made: list[list[torch.Tensor]]) -> tuple[tuple[object, ...], dict[str, object]]:
        def fill(leaf: object) -> object:
            if isinstance(leaf, _Made):
                return made[leaf.entry][leaf.position]
            return getattr(leaf.module, leaf.name) if isinstance(leaf, _Hung) else leaf

        return replaced(entry.args, fill), replaced(entry.kwargs, fill)

    def held(self) -> list[torch.Tensor]:
        """Every tensor that was there before the pass and is held for playing it."""
        entries = [*self.entries, *([self._backward] if self._backward is not None else [])]
        return [tensor for entry in entries for tensor in tensors_in((entry.args, entry.kwargs))]


def _nodes_behind(tensors: Sequence[torch.Tensor]) -> set[torch.autograd.graph.Node]:
    """The graph that a backward from these tensors goes through, and releases."""
    waiting = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    found = set(waiting)
    while waiting:
        before = {node for node, _ in waiting.pop().next_functions if node is not None} - found
        found |= before
        waiting.extend(before)
    return found


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata if tensor.layout == torch.strided else id(tensor)


def _within(value: object) -> list[torch.Tensor]:
    """Tensors in an object that `replaced` does not open: in a mapping, a data class or its attributes."""
    attributes = getattr(value, "__dict__", None)
    if isinstance(value, torch.nn.Module) or not isinstance(attributes, dict):
        return tensors_in(value)
    return [*tensors_in(value), *(t for each in list(attributes.values()) for t in tensors_in(each))]


def _name_of(function: object) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _played(entry: _Entry, args: tuple[object, ...], kwargs: dict[str, object]) -> list[torch.Tensor]:
    if entry.function is _nothing:
        return []
    with torch.set_grad_enabled(entry.has_gradients), entry.autocast.again():
        stand_in = next((each for each in leaves_of((args, kwargs)) if stands_for_a_tensor(each)), None)
        if stand_in is not None and not isinstance(entry.function, torch.nn.Module):
            return tensors_in(type(stand_in).__torch_function__(entry.function, (), args, kwargs))
        return tensors_in(entry.function(*args, **kwargs))


def _nothing(*_: object, **__: object) -> None:
    """In the place of a call that the backward does not need."""


class PassRecorder(TorchFunctionMode):
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

        def apply(cls: type[torch.autograd.Function], *args: object, **kwargs: object) -> object:
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

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        if not self._records():
            return func(*args, **kwargs)
        given = [tensor for tensor in tensors_in((args, kwargs)) if not tensor.is_inference()]
        versions = [tensor._version for tensor in given]
        copies = self._copies(func, given)
        output = func(*args, **kwargs)
        written = [tensor for tensor, version in zip(given, versions, strict=True) if tensor._version != version]
        self._note(func, args, kwargs, output, written, copies)
        return output

    def _copies(
        self, func: Callable[..., object], given: list[torch.Tensor]
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The values of small tensors from before the pass, where a function by its name writes into its first."""
        first = given[:1] if self.tape.modules and _writes_by_name(func) else []
        with torch.no_grad():
            return [
                (tensor, tensor.detach().clone())
                for tensor in first
                if self.tape.is_from_before(tensor) and not tensor.requires_grad and tensor.nbytes <= _MOST_COPIED_BYTES
            ]

    def _note(
        self,
        func: Callable[..., object],
        args: tuple[object, ...],
        kwargs: dict[str, object],
        output: object,
        written: list[torch.Tensor],
        copies: list[tuple[torch.Tensor, torch.Tensor]],
    ) -> None:
        made = tensors_in(output)
        if _is_silent(func) or not (made or written):
            return
        if self.tape.modules or any(tensor.requires_grad for tensor in made):
            for tensor, value in copies:
                self.tape.add_copy(tensor, value)
            self.tape.add(func, args, kwargs, output, written)

    def call_module(
        self,
        module: torch.nn.Module,
        call: Callable[..., object],
        args: tuple[object, ...],
        kwargs: dict[str, object],
        is_trained: bool = True,
    ) -> object:
        """Make the call of a module; it is one entry."""
        if not self._records():
            return call(*args, **kwargs)
        output = self._as_one(call, args, kwargs)
        self.tape.add_module(module, args, kwargs, output, is_trained)
        return output

    def _applied(
        self,
        cls: type[torch.autograd.Function],
        apply: Callable[..., object],
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> object:
        if not self._records():
            return apply(*args, **kwargs)
        output = self._as_one(apply, args, kwargs)
        if self.tape.modules or any(tensor.requires_grad for tensor in tensors_in(output)):
            self.tape.add(cls.apply, args, kwargs, output)
        return output

    def _as_one(self, call: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        self.inside_module += 1
        try:
            return call(*args, **kwargs)
        finally:
            self.inside_module -= 1

    def _records(self) -> bool:
        return self.is_open and not self.inside_module and threading.get_ident() == self._thread


def _writes_by_name(func: Callable[..., object]) -> bool:
    """Whether a function announces that it changes its first argument: `add_`, `__iadd__`, `__setitem__`."""
    name = getattr(func, "__name__", "")
    if name.startswith("__"):
        return name == "__setitem__" or name.startswith("__i")
    return name.endswith("_") and name != "requires_grad_"


def _is_silent(func: Callable[..., object]) -> bool:
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


def of_repeated_calls(refusal: DoesNotFit, tape: Tape) -> DoesNotFit:
    """A refusal that says so where the pass calls a module several times: what those calls keep, every plan keeps."""
    again = [f"{type(module).__name__} {count} times" for module, count in tape.called_again().items()]
    if not again:
        return refusal
    why = f"; a pass calls {', '.join(again)}, and what is called more than once is kept as it is"
    return _with_found(refusal, refusal.found + why, f"{refusal.hint}; or one call with both inputs joined")


def of_first_kind(refusal: DoesNotFit) -> DoesNotFit:
    """A refusal for a program that trains something else as well, of which no pass was seen so far."""
    found = f"{refusal.found}, for the passes seen so far; another optimizer of the program has not been at work: its "
    return _with_found(refusal, found + "passes may need more", refusal.hint)


def _with_found(refusal: DoesNotFit, found: str, hint: str) -> DoesNotFit:
    error = DoesNotFit(
        refusal.what, limit_bytes=refusal.limit_bytes, needed_bytes=refusal.needed_bytes, found=found, hint=hint
    )
    error.levers = refusal.levers
    return error


def of_several_kinds(refusals: Sequence[DoesNotFit], num_kinds: int) -> DoesNotFit:
    """A refusal of a program whose passes are of several kinds: what it names is enough for each of them."""
    first = refusals[0]
    needs = [refusal.needed_bytes for refusal in refusals if refusal.needed_bytes is not None]
    needed_bytes = max(needs) if len(needs) == len(refusals) else None
    if needed_bytes == first.needed_bytes:
        largest = first
    else:
        largest = max(refusals, key=lambda refusal: refusal.needed_bytes or 0)
    error = DoesNotFit(
        first.what,
        limit_bytes=first.limit_bytes,
        needed_bytes=needed_bytes,
        found=f"{largest.found}, for one of {num_kinds} kinds of passes; each was tried for itself",
        hint=largest.hint,
    )
    error.levers = largest.levers
    return error
