"""Drops what calls of modules save for the backward, and runs the very same calls again when the backward asks.

A frame is a run of calls that the user's own code made, one after another, each reading what an earlier one returned.
Every call is carried out by the user's code, when and as it makes it: nothing runs ahead, and nothing is handed on in
its place. While a call runs, saved-tensor hooks put a `Holder` in place of each tensor that autograd saves. When the
call is over and could be run again (it wrote into none of its arguments), the holders release it. The first holder
that the backward asks makes its frame run again: with the arguments, random numbers, autocast, attributes and buffers
of the first run. What is saved then is compared with the first run in number, shape, type and a few values, and
handed out once each.

Regions within regions keep only what comes into them while the outer one is run again. Calls that are not needed are
not run: the last call stops when everything asked for is there. A graph that is kept (`retain_graph`) is run again.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from memfit.apply.kept_tensors import HoldTensors, check_version
from memfit.errors import PlanBroken
from memfit.model.cut_off import cut_off
from memfit.model.module_state import Noted, State, Watch, laid_back
from memfit.model.out_of_memory import is_out_of_memory
from memfit.model.random_and_autocast import Circumstances, Drawing
from memfit.model.tensors_in_arguments import leaves_of, replaced, tensors_in, values_of, version_of

Tell = Callable[[str], None]
Place = tuple[int, int]
"""A tensor that a call of a frame returned: number of the call, number of the tensor."""


class CannotBeRepeated(PlanBroken):
    """A call that cannot be made again as it was; carries the name of its module."""

    def __init__(self, name: str, what: str, *, found: str, hint: str) -> None:
        super().__init__(what, found=found, hint=hint)
        self.name = name


class SecondRunDiffers(CannotBeRepeated):
    """A call, run again, saved something else than the first time."""

    def __init__(self, name: str, found: str) -> None:
        super().__init__(
            name,
            f"{name} computes something else when it is run again",
            found=found,
            hint="undo the plan; memfit fit finds such blocks and keeps them",
        )


class _AllThere(BaseException):
    """Raised to end a second run when everything that was asked for is there."""


@dataclass(slots=True)
class Strictness(threading.local):
    """How second runs are carried out in this thread."""

    stops_early: bool = True
    digest: Callable[[torch.Tensor], bytes] | None = None
    """Compares all bits of what is saved; None compares a few values."""


STRICTNESS = Strictness()


@contextlib.contextmanager
def second_runs(*, stops_early: bool, digest: Callable[[torch.Tensor], bytes] | None = None) -> Iterator[None]:
    """For a while, let second runs go to their ends, and compare digests of what they save."""
    before = STRICTNESS.stops_early, STRICTNESS.digest
    STRICTNESS.stops_early, STRICTNESS.digest = stops_early, digest
    try:
        yield
    finally:
        STRICTNESS.stops_early, STRICTNESS.digest = before


# ---- what is planned -----------------------------------------------------------------------------------------------


@dataclass(eq=False, slots=True)
class Region:
    """One checkpoint of a plan: numbers of its modules in their run, and regions within."""

    name: str
    items: list[int | Region]
    positions: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        inner = [each.positions if isinstance(each, Region) else {each} for each in self.items]
        self.positions = frozenset().union(*inner)


# ---- what was called -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Link:
    """In the place of an argument: what an earlier call of the frame returned."""

    place: Place


@dataclass(frozen=True, slots=True)
class _Held:
    """In the place of an argument: a tensor from outside of the frame."""

    number: int


@dataclass(slots=True)
class Saved:
    """One tensor that a call saved, as far as it is compared with the second run."""

    shape: torch.Size
    dtype: torch.dtype
    sample: bytes | None = None
    """A few values."""
    digest: bytes | None = None
    """Of all bits."""


@dataclass(eq=False, slots=True)
class RepeatedCall:
    """One call of a module, with everything needed to make it again."""

    number: int
    position: int
    name: str
    forward: Callable[..., Any]
    watch: Watch
    state: State
    circumstances: Circumstances
    template: Any
    hold: Any
    needs_gradient: list[bool]
    stage: int
    is_first: bool
    """Whether the stage begins with it."""
    is_last: bool
    saved: list[Saved] = field(default_factory=list)
    written: frozenset[Place] = frozenset()
    """What it wrote into of what earlier calls of its frame had returned."""

    def arguments(self, values: dict[Place, torch.Tensor]) -> tuple[tuple[object, ...], dict[str, object]]:
        """Arguments and keyword arguments; tensors are cut off from the graph of the first run."""
        tensors = self._held()

        def value_of(leaf: object) -> object:
            if isinstance(leaf, _Held):
                return tensors[leaf.number].detach().requires_grad_(self.needs_gradient[leaf.number])
            return values[leaf.place] if isinstance(leaf, _Link) else leaf

        return replaced(self.template, value_of)

    def _held(self) -> Sequence[torch.Tensor]:
        try:
            return self.hold.saved_tensors if self.hold is not None else ()
        except RuntimeError as error:
            if "modified by an inplace operation" not in str(error):
                raise
            raise CannotBeRepeated(
                self.name,
                f"an argument of {self.name} was written into before the backward",
                found="a block that is run again needs its arguments as they were",
                hint="write into a copy, or undo the plan",
            ) from None

    def forget(self) -> None:
        """It is never made again: hold nothing of what it was described with, which may lead back to its own graph."""
        self.template, self.hold = ((), {}), None
        self.state = State(Noted(), [], self.state.hooks)
        self.watch.forget()

    def links(self) -> list[Place]:
        """What it reads of earlier calls."""
        return [leaf.place for leaf in leaves_of(self.template) if isinstance(leaf, _Link)]

    def check_parameters(self) -> None:
        """Refuse to run again with parameters that have changed since, unless their values were noted."""
        noted = {id(tensor) for tensor, _ in self.state.buffers}
        for tensor, version in self.state.attributes.tensors:
            is_parameter = isinstance(tensor, torch.nn.Parameter) and id(tensor) not in noted
            if is_parameter and tensor._version != version:
                raise CannotBeRepeated(
                    self.name,
                    f"parameters of {self.name} have changed between its forward and its backward",
                    found="the optimizer's step, or a write in place",
                    hint="run the backward first; without the plan this is an error of autograd as well",
                )


class Holder:
    """What autograd keeps in place of a tensor: the tensor until the call is over, then where to find it."""

    __slots__ = ("call", "frame", "number", "tensor", "version")

    def __init__(self, frame: Frame, call: RepeatedCall, number: int, tensor: torch.Tensor) -> None:
        self.frame, self.call, self.number = frame, call, number
        self.tensor: torch.Tensor | None = tensor.detach()
        self.version = version_of(tensor)

    def find(self) -> torch.Tensor:
        """The tensor, from a second run if it was dropped."""
        if self.tensor is None:
            return self.frame.take(self.call, self.number)
        check_version(self.tensor, self.version)
        return self.tensor


# ---- the first run -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Trail:
    """What is known of a frame after its end."""

    position: int = -1
    """Of its last call."""
    num_saved: int = 0


class Frame:
    """A run of calls whose saved tensors are dropped; lives as long as the graph that holds its holders."""

    def __init__(self, region: Region, on_call: Tell | None, on_stage: Tell | None, is_exact: bool) -> None:
        self.region, self.on_call, self.on_stage, self.is_exact = region, on_call, on_stage, is_exact
        self.calls: list[RepeatedCall] = []
        self.trail = Trail()
        self.is_open = True
        self._returned: dict[int, tuple[weakref.ref[torch.Tensor], int, Place]] = {}
        self._storages: dict[Place, StorageWeakRef] = {}
        """Of what calls returned; what shares one with another is written into together with it."""
        self._lock = threading.RLock()
        self._again: _Again | None = None

    @property
    def last_position(self) -> int:
        """Where in its run the last call was."""
        return self.calls[-1].position if self.calls else -1

    def place_of(self, value: object) -> Place | None:
        """Which call returned this very tensor, if it was not written into since."""
        known = self._returned.get(id(value)) if isinstance(value, torch.Tensor) else None
        if (
            not isinstance(value, torch.Tensor)
            or known is None
            or known[0]() is not value
            or known[1] != version_of(value)
        ):
            return None
        return known[2]

    def reads(self, args: object) -> bool:
        """Whether arguments hold something that a call of this frame returned."""
        return any(self.place_of(leaf) is not None for leaf in leaves_of(args))

    def run(
        self, make: CallMaker, forward: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        """Carry out a call for the user's code, and drop what it saves if it can be made again."""
        call, given = make.call_of(self, forward, args, kwargs)
        versions = [version_of(tensor) for tensor in given]
        holders: list[Holder] = []
        drawn = make.drawing.before()

        def pack(tensor: torch.Tensor) -> Holder:
            call.saved.append(Saved(tensor.shape, tensor.dtype))
            holders.append(Holder(self, call, len(holders), tensor))
            return holders[-1]

        self.is_open = False  # until this call has turned out well
        _tell_call(self.on_call, call)
        with torch.autograd.graph.saved_tensors_hooks(pack, Holder.find):
            output = call.forward(*args, **kwargs)
        call.circumstances.others, drew_late = make.drawing.after(drawn)
        make.num_saved = len(call.saved)
        held_written, call.written = self._written_by(call, given, versions)
        if held_written:
            make.say_kept("it wrote into its arguments")
        elif call.state.wrote_into_a_tensor():
            make.say_kept("it wrote into a tensor that is neither parameter nor buffer")
        elif drew_late:
            make.say_kept("it began to draw from the generator of Python or NumPy, or another thread does")
        else:
            self._accept(call, holders, output)
            return output
        call.forget()
        return output

    def _accept(self, call: RepeatedCall, holders: list[Holder], output: object) -> None:
        """The call can be made again: release what it saved."""
        _sample(holders, call, self.is_exact)
        for holder in holders:
            holder.tensor = None
        state, (call.template, call.state) = call.state, cut_off(call.template, call.state, call.watch.shelves())
        if call.state is not state:
            call.watch.forget()
        self.calls.append(call)
        self.trail.position, self.trail.num_saved = call.position, self.trail.num_saved + len(call.saved)
        for number, tensor in enumerate(tensors_in(output)):
            self._returned[id(tensor)] = (weakref.ref(tensor), version_of(tensor), (call.number, number))
            if type(tensor) is torch.Tensor and tensor.layout == torch.strided:
                self._storages[call.number, number] = StorageWeakRef(tensor.untyped_storage())
        self.is_open = True

    def _written_by(
        self, call: RepeatedCall, given: list[torch.Tensor], versions: list[int]
    ) -> tuple[bool, frozenset[Place]]:
        """Whether a call wrote into a tensor from outside of its frame, and into which ones of earlier calls.

        One that is given two windows on what it writes into is as one from outside: copies of them would be apart.
        """
        leaves = [leaf for leaf in leaves_of(call.template) if isinstance(leaf, (_Held, _Link))]
        written = [each for each, t, version in zip(leaves, given, versions, strict=True) if version_of(t) != version]
        if not written or any(isinstance(leaf, _Held) for leaf in written):
            return bool(written), frozenset()
        places = {leaf.place for leaf in written if isinstance(leaf, _Link)}
        storages = [self._storages[place] for place in places if place in self._storages]
        sharing = {place for place, storage in self._storages.items() if storage in storages}
        num_shared = len(sharing.intersection(call.links()))
        return num_shared > len({storage.cdata for storage in storages}), frozenset(places | sharing)

    # ---- the second run --------------------------------------------------------------------------------------------

    def take(self, call: RepeatedCall, number: int) -> torch.Tensor:
        """What a call saved, once; runs again what is needed for it."""
        with self._lock:
            for _ in range(2):
                if self._again is None:
                    self._again = _Again((self.on_call, self.on_stage), self.region, self.calls, {})
                found = self._again.take(call, number)
                if found is not None:
                    return found
                self._again = None  # it was handed out before: the graph is kept, and is run backward once more
        raise SecondRunDiffers(call.name, f"it no longer saves the {len(call.saved)} tensors of the first time")


class _Again:
    """One region that is run again: what its own calls saved, and the regions within, not yet run."""

    def __init__(
        self,
        listeners: tuple[Tell | None, Tell | None],
        region: Region,
        calls: list[RepeatedCall],
        values: dict[Place, torch.Tensor],
    ) -> None:
        # It knows nothing of its frame: a ring would keep what both hold until Python's collector comes by.
        self.listeners, self.region, self.calls = listeners, region, calls
        self.values: dict[Place, torch.Tensor] | None = values
        self.saved: dict[Place, tuple[torch.Tensor, int]] = {}
        self.inner: dict[int, _Again] = {}
        """By the number of a call."""

    def take(self, call: RepeatedCall, number: int) -> torch.Tensor | None:
        """None when it was handed out before."""
        if self.values is not None:
            values, self.values = self.values, None
            self._run(values)
        if call.number in self.inner:
            return self.inner[call.number].take(call, number)
        found = self.saved.pop((call.number, number), None)
        if found is None:
            return None
        check_version(*found)
        return found[0]

    def _run(self, values: dict[Place, torch.Tensor]) -> None:
        tell = self.listeners[1]
        if tell is not None:
            tell(f"again {self.region.name}")
        try:
            self._run_items(values)
        finally:
            if tell is not None:
                tell(f"ready {self.region.name}")

    def _run_items(self, values: dict[Place, torch.Tensor]) -> None:
        items = [(item, calls) for item in self.region.items if (calls := self._calls_of(item))]
        for index, (item, calls) in enumerate(items):
            is_last = index == len(items) - 1
            if isinstance(item, Region):
                needed = {place for call in calls for place in call.links() if place in values}
                within = _Again(
                    self.listeners, item, calls, {place: self._unwritten(place, values) for place in needed}
                )
                self.inner.update((call.number, within) for call in calls)
                if is_last:
                    return
            for call in calls:
                self._run_call(call, values, keeps=not isinstance(item, Region), is_last=is_last)

    def _unwritten(self, place: Place, values: dict[Place, torch.Tensor]) -> torch.Tensor:
        """A value for a region that is run again once more: its own copy where a call of this run writes into it."""
        if not any(place in call.written for call in self.calls):
            return values[place]
        with torch.enable_grad():  # that it needs a gradient decides what is saved
            return values[place].clone()

    def _calls_of(self, item: int | Region) -> list[RepeatedCall]:
        wanted = item.positions if isinstance(item, Region) else (item,)
        return [call for call in self.calls if call.position in wanted]

    def _run_call(self, call: RepeatedCall, values: dict[Place, torch.Tensor], *, keeps: bool, is_last: bool) -> None:
        call.check_parameters()
        stops = is_last and STRICTNESS.stops_early and bool(call.saved)
        slots: list[_Slot] = []
        pack = self._packer(call, slots, keeps, stops)
        args, kwargs = call.arguments(values)
        _tell_call(self.listeners[0], call)
        tell = self.listeners[1]
        if tell is not None and call.is_first:
            tell(f"start {call.stage}")
        output = None
        with (
            laid_back(call.watch, call.state, leaves_of((args, kwargs))),
            call.circumstances.again(),
            torch.enable_grad(),
            torch.autograd.graph.saved_tensors_hooks(pack, _Slot.find),
            call.watch.leaving_parameters_alone(call.name),
            contextlib.suppress(_AllThere),
            _named(call),
        ):
            output = call.forward(*args, **kwargs)
        for slot in slots:
            slot.tensor = None
        if len(slots) != len(call.saved):
            raise SecondRunDiffers(call.name, f"{len(call.saved)} tensors the first time, {len(slots)} the second")
        self._hand_on(call, output, values)
        del args, kwargs
        if tell is not None and call.is_last and not stops:
            tell(f"end {call.stage}")

    def _hand_on(self, call: RepeatedCall, output: object, values: dict[Place, torch.Tensor]) -> None:
        """Keep what later calls read, and release what is not read any more."""
        later = {place for each in self.calls if each.number > call.number for place in each.links()}
        for number, tensor in enumerate(tensors_in(output)):
            if (call.number, number) in later:
                values[call.number, number] = tensor  # with its graph, whose slots are empty: it may be written into
        for place in [place for place in values if place not in later]:
            del values[place]

    def _packer(
        self, call: RepeatedCall, slots: list[_Slot], keeps: bool, stops: bool
    ) -> Callable[[torch.Tensor], _Slot]:
        def pack(tensor: torch.Tensor) -> _Slot:
            slot, number = _Slot(tensor.detach()), len(slots)
            slots.append(slot)
            _compare(call, number, tensor)
            if keeps:
                assert slot.tensor is not None
                self.saved[call.number, number] = (slot.tensor, version_of(tensor))
                if stops and len(slots) == len(call.saved):
                    raise _AllThere
            return slot

        return pack


def _tell_call(on_call: Tell | None, call: RepeatedCall) -> None:
    if on_call is not None:
        on_call(call.name)


@contextlib.contextmanager
def _named(call: RepeatedCall) -> Iterator[None]:
    """Say which call failed when it was run again."""
    try:
        yield
    except Exception as error:
        if isinstance(error, PlanBroken) or is_out_of_memory(error):
            raise
        first_line = (str(error) or type(error).__name__).splitlines()[0][:160]
        raise SecondRunDiffers(call.name, f"it failed with {type(error).__name__}: {first_line}") from error


class _Slot:
    """What the graph of a second run keeps in place of a tensor; emptied when the call is over."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor: torch.Tensor | None = tensor

    def find(self) -> torch.Tensor:
        """The tensor, while the call runs: a forward may ask for gradients itself."""
        assert self.tensor is not None, "the graph of a second run is not run backward"
        return self.tensor


# ---- the comparison ------------------------------------------------------------------------------------------------


def _sample(holders: list[Holder], call: RepeatedCall, is_exact: bool) -> None:
    """Note a few values of what a call saved: of one tensor in the middle and of the last; or digests of all.

    Buffers are left out: a BatchNorm saves its statistics before it changes them.
    """
    if STRICTNESS.digest is not None:
        for holder, each in zip(holders, call.saved, strict=True):
            each.digest = STRICTNESS.digest(holder.tensor) if holder.tensor is not None else None
    elif is_exact:
        fixed = {buffer.untyped_storage()._cdata for buffer, _ in call.state.buffers}
        for some in (holders, holders[: len(holders) // 2 + 1]):
            for holder in reversed(some):
                if holder.tensor is not None and can_be_sampled(holder.tensor, fixed):
                    call.saved[holder.number].sample = values_of(holder.tensor)
                    break


def can_be_sampled(tensor: torch.Tensor, fixed: Collection[int] = ()) -> bool:
    """Whether some values of a tensor can be noted: it lies here, and is not one of the `fixed` storages."""
    if fixed and tensor.untyped_storage()._cdata in fixed:
        return False
    here = tensor.device.type == "cpu" and tensor.layout == torch.strided and type(tensor) is torch.Tensor
    return here and tensor.is_floating_point() and tensor.is_contiguous() and tensor.numel() > 0


def _compare(call: RepeatedCall, number: int, tensor: torch.Tensor) -> None:
    if number >= len(call.saved):
        raise SecondRunDiffers(call.name, f"more than the {len(call.saved)} tensors of the first time")
    first = call.saved[number]
    if first.shape != tensor.shape or first.dtype != tensor.dtype:
        raise SecondRunDiffers(
            call.name, f"a tensor {tuple(first.shape)} the first time, {tuple(tensor.shape)} the second"
        )
    same = first.sample is None or values_of(tensor) == first.sample
    if first.digest is not None and STRICTNESS.digest is not None:
        same = STRICTNESS.digest(tensor) == first.digest
    if not same:
        raise SecondRunDiffers(call.name, f"another value in a tensor of shape {tuple(first.shape)}")


# ---- making calls --------------------------------------------------------------------------------------------------


class CallMaker:
    """What one planned module needs to describe its calls; `say_kept` gets why a call is not dropped."""

    def __init__(
        self, position: int, name: str, stage: tuple[int, bool, bool], watch: Watch, drawing: Drawing, say_kept: Tell
    ) -> None:
        self.position, self.name = position, name
        self.stage, self.is_first, self.is_last = stage
        self.watch, self.drawing, self.say_kept = watch, drawing, say_kept
        self.num_saved: int | None = None
        """How many tensors the last call saved; None before the first."""

    def call_of(
        self, frame: Frame, forward: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[RepeatedCall, list[torch.Tensor]]:
        """Describe a call before it is made; with the tensors among its arguments."""
        held: list[torch.Tensor] = []
        given: list[torch.Tensor] = []

        def stand_in(leaf: object) -> object:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            given.append(leaf)
            place = frame.place_of(leaf)
            if place is not None:
                return _Link(place)
            held.append(leaf)
            return _Held(len(held) - 1)

        template = replaced((args, kwargs), stand_in)
        before = frame.calls[-1].circumstances if frame.calls else None
        call = RepeatedCall(
            number=len(frame.calls),
            position=self.position,
            name=self.name,
            forward=forward,
            watch=self.watch,
            state=State.now(self.watch, leaves_of((args, kwargs))),
            circumstances=Circumstances(given, before),
            template=template,
            hold=_hold(held),
            needs_gradient=[tensor.requires_grad for tensor in held],
            stage=self.stage,
            is_first=self.is_first,
            is_last=self.is_last,
        )
        return call, given


def _hold(tensors: list[torch.Tensor]) -> object:
    if not tensors:
        return None
    return HoldTensors.apply(torch.empty(0, requires_grad=True), *tensors).grad_fn  # type: ignore[union-attr]
