"""Drops tensors that autograd saves, and notes the operators that make them again when the backward asks.

While the model's forward runs, a dispatch mode notes the calls of the operators that a plan names, with what they
read; saved-tensor hooks around the forward put a `SavedHandle` (`operator_replay.py`) in place of each tensor that the
plan drops. Every operator of the forward goes by the mode: those that the plan does nothing about, most of them, are
known by their place and cost little more than the mode itself. What the plan moves is sent when autograd saves it.

What is noted are the calls of this very forward. Where its operators are not those of the plan, nothing more is dropped
from there on, and that is said once. A tensor is handed out only if what it was made from has not been written into
since, and if some of its values are those of the first time. The guards of `torch._C`, the number of a storage and the
way from a weak reference to a storage are private to torch (read in torch 2.13).
"""

from __future__ import annotations

import operator
import threading
import weakref
from collections.abc import Callable

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from memfit.apply.checkpoints import AppliedPlan
from memfit.apply.kept_tensors import KeptTensor
from memfit.apply.moves import Store, store_for
from memfit.apply.operator_kinds import (
    OperatorKind,
    can_be_repeated,
    empty_like,
    fresh,
    is_constant,
    is_flat,
    is_plain,
    kind_of,
    storage_address,
    tensors_of_call,
    without_statistics,
)
from memfit.apply.operator_replay import MadeStorage, Outer, Ref, RepeatedOperator, SavedHandle
from memfit.model.call_sites import add_layer, within_a_transform
from memfit.model.step import storage_bytes, tensors_of
from memfit.model.tensors_in_arguments import replaced, written_by
from memfit.records.operators import OperatorChoice
from memfit.units import format_bytes

_grad_is_enabled = torch.is_grad_enabled
find = operator.methodcaller("find")
"""The tensor behind what autograd keeps."""


# ---- the forward ---------------------------------------------------------------------------------------------------


class OperatorRecording(TorchDispatchMode):
    """The operators of one forward, as far as the plan needs them."""

    def __init__(self, chosen: Chosen) -> None:
        super().__init__()
        self.chosen, self.number, self.on_plan = chosen, 0, True
        self.expected = chosen.expected
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
        number = self.number
        if self.expected[number] is func and args[0].requires_grad and _grad_is_enabled():  # type: ignore[attr-defined]
            self.number = number + 1
            return func(*args, **kwargs) if kwargs else func(*args)
        return self._looked_at(func, args, kwargs or {})

    def _looked_at(self, func: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Run an operator that the plan names, or that is not known by its place."""
        kind = kind_of(func)
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
            self._note_made(_empty_again(number, result), result, set(), [])
            return result
        known: set[int] = set()
        step = self._noted(number, kind, args, kwargs, known)
        if step is None:
            self._note_writes(func, args, kwargs)
            return func(*args, **kwargs)
        written = written_by(func, args, kwargs) if kind.is_mutable else []
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
        if not is_known or not _grad_is_enabled():
            return False
        if kind.takes_a_tensor_first:
            self.expected[number] = kind.func
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
            self.on_plan, self.number = False, len(names)
            self.chosen.say_other_operators(number, name)
            return None
        self.number = min(number + 1, len(names))
        return number

    def _noted(
        self,
        number: int,
        kind: OperatorKind,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        known: set[int],
    ) -> RepeatedOperator | None:
        """A call, ready to be made again; None where that cannot be. The storages it is given are put into `known`."""
        if not can_be_repeated(kind, args, kwargs):
            return None
        refs: list[Ref] = []

        def stand_in(leaf: object) -> object:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            address = storage_address(leaf)
            known.add(address)
            value = self._value_of(leaf, address)
            if value is None:
                return Outer(leaf)
            refs.append(Ref(value, leaf))
            return refs[-1]

        args = without_statistics(kind, args)
        if is_flat(args, kwargs):
            return RepeatedOperator(number, kind, list(map(stand_in, args)), kwargs, refs, is_flat=True)
        args, kwargs = replaced((args, kwargs), stand_in)
        return RepeatedOperator(number, kind, args, kwargs, refs, is_flat=False)

    def _note_sources(self, result: object) -> None:
        """What others will be made from, and autograd will save: then torch counts for us who writes into it."""
        for tensor in fresh(result, set()):
            address = storage_address(tensor)
            known = self._values.get(address)
            if known is None or known.is_gone():
                self._values[address] = MadeStorage(tensor)

    def _note_moved(self, number: int, result: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """What is moved when autograd saves it, and never made again."""
        known = {storage_address(tensor) for tensor in tensors_of_call(args, kwargs)}
        for output, tensor in enumerate(fresh(result, known)):
            self._values[storage_address(tensor)] = MadeStorage(tensor, self.chosen.dropped.get((number, output)))

    def _note_writes(self, func: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """An operator that is not run again writes into a value: it can be neither made again nor read as it was."""
        for tensor in written_by(func, args, kwargs):
            value = self._values.get(storage_address(tensor)) if is_plain(tensor) else None
            if value is not None and not value.is_gone():
                value.cannot_be_made()
                value.was_written(tensor._version + 1)

    def _value_of(self, tensor: torch.Tensor, address: int) -> MadeStorage | None:
        """The value under a tensor; None for what lies outside of the forward: parameters, buffers, the batch."""
        if type(tensor) is torch.nn.Parameter:
            return None
        known = self._values.get(address)
        if known is not None and not known.is_gone():
            if known.version != tensor._version:  # an operator that is not noted wrote into it
                known.cannot_be_made()
                known.was_written(tensor._version)
            return known
        base = tensor._base if tensor._is_view() else tensor  # a weight is often read transposed
        if base is None or base.is_leaf:
            return None
        value = self._values[address] = MadeStorage(tensor)
        return value

    def _note_made(self, step: RepeatedOperator, result: object, known: set[int], written: list[torch.Tensor]) -> None:
        dropped = self.chosen.dropped
        for output, tensor in enumerate(fresh(result, known)):
            planned = dropped.get((step.number, output))
            value = self._values[storage_address(tensor)] = MadeStorage(tensor, planned)
            value.steps.append(step)
            step.made.append(weakref.ref(value))
        for tensor in written:
            value = self._value_of(tensor, storage_address(tensor))
            if value is None:
                continue
            if value.steps:
                value.steps.append(step)
                value.num_writes += 1
            else:
                value.cannot_be_made()
            value.was_written(tensor._version + 1)  # torch counts it when the operator is over

    def pack(self, tensor: torch.Tensor) -> SavedHandle | KeptTensor:
        """What autograd keeps in place of a tensor."""
        if type(tensor) is torch.Tensor and tensor.layout is torch.strided:
            value = self._values.get(storage_address(tensor))
            if value is not None and not value.is_gone() and value.version == tensor._version and is_plain(tensor):
                with torch._C._DisableTorchDispatch():  # what memfit does itself is no operator of the forward
                    return self._kept(tensor, value)
        if tensor.is_leaf:
            return KeptTensor(tensor)
        with torch._C._DisableTorchDispatch():
            return KeptTensor(tensor)

    def _kept(self, tensor: torch.Tensor, value: MadeStorage) -> SavedHandle | KeptTensor:
        can_go = value.is_to_move or (value.steps and self._holds_sources(value))
        if value.planned is None or not can_go:
            kept = KeptTensor(tensor)
            value.hold(kept.tensor)
            return kept
        self.chosen.check_size(tensor.untyped_storage().nbytes(), value.planned.num_bytes)
        if value.is_to_move:
            value.send(tensor, self.chosen.open_store())
        return SavedHandle(value, tensor, self.lock, self.chosen.is_exact and not value.is_to_move)

    def _holds_sources(self, wanted: MadeStorage) -> bool:
        """Take hold of everything that a value is made from; False when something of it is gone already."""
        seen: set[MadeStorage] = set()
        waiting = [wanted]
        while waiting:
            value = waiting.pop()
            if value.tensor is not None or value.storage is not None or value.away is not None or value in seen:
                continue
            seen.add(value)
            if not value.steps:
                if value.is_gone():
                    return False
                value.storage = torch.UntypedStorage._new_with_weak_ptr(value.first.cdata)
            for step in value.steps:
                waiting.extend([ref.value for ref in step.refs])
        return True

    def close(self) -> None:
        """The forward is over: only handles know from here on what they were made from."""
        for value in self._values.values():
            value.guard()
        self._values.clear()


def _empty_again(number: int, result: object) -> RepeatedOperator:
    """A call that makes an empty tensor of the same shape without reading anything."""
    assert isinstance(result, torch.Tensor)
    func, args, kwargs = empty_like(result)
    return RepeatedOperator(number, kind_of(func), args, kwargs, [], is_flat=True)


# ---- the model -----------------------------------------------------------------------------------------------------


class Chosen:
    """What a plan has decided operator by operator, ready to be carried out."""

    def __init__(
        self, choice: OperatorChoice, say: Callable[[str, str], None], is_exact: bool, store: Store | None = None
    ) -> None:
        self.names, self.repeated, self.is_exact = choice.names, frozenset(choice.repeated), is_exact
        self.sources, self._store = frozenset(choice.sources), store
        self.movers = frozenset(each.operator for each in choice.dropped if each.is_moved) - self.repeated
        """Operators that are not run again, and make what is moved."""
        self.dropped = {(each.operator, each.output): each for each in choice.dropped}
        self.input_bytes = choice.input_bytes
        self.constants = None if choice.constants is None else frozenset(choice.constants)
        others = self.repeated | self.sources | self.movers | (self.constants or frozenset())
        self.quiet = [None if number in others else name for number, name in enumerate(self.names)]
        """Names of operators that need a gradient and of which nothing has to be known."""
        self.expected: list[torch._ops.OpOverload | None] = [None] * (len(self.names) + 1)
        """The same operators once they were seen in a forward; nothing is expected after the last."""
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

    def check_size(self, num_bytes: int, planned_bytes: int) -> None:
        """Warn once of tensors that are larger than when the plan was made."""
        if num_bytes > planned_bytes:
            self._say(
                "size",
                f"a tensor of {format_bytes(num_bytes)} had {format_bytes(planned_bytes)} when the plan was made: the "
                "step may take more than the budget; fit again with the largest batch",
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
