"""Measures a step operator by operator: what each makes and reads, and how long every saved tensor is there.

Two runs of the user's own step, under whatever plan the model carries. In the first everything is kept: the allocator's
events between marks say what is alive at every operator of the forward and at every use of a saved tensor in the
backward. The second is a forward alone in which autograd keeps nothing: it says when a dropped tensor is really gone,
for the user's code may hold it as well. Both give the seconds of every operator.
"""

from __future__ import annotations

import contextlib
import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from memfit.apply.kept_tensors import KeptTensor
from memfit.apply.operator_kinds import can_be_repeated, fresh, is_constant, is_plain, kind_of
from memfit.apply.operator_replay import SMALL_BYTES
from memfit.apply.operators import may_record
from memfit.model.call_sites import After, Before, add_layer, is_compiled, watching
from memfit.model.module_calls import at_backward
from memfit.model.random_and_autocast import seed_all
from memfit.model.step import Job, leaving_no_trace, tensors_of
from memfit.model.tensors_in_arguments import leaves_of, written_by
from memfit.profile.meter.events import AllocatedBlock, Record
from memfit.profile.meter.meter import put_mark, record_events
from memfit.profile.meter.stage_times import seconds_now
from memfit.records.operators import Operator, OperatorTrace, TracedTensor

OTHER_SEED = 20


class _Over(BaseException):
    """Ends a step before its backward."""


class _WithoutStorage(Exception):
    """A tensor has no bytes of its own."""


class _AskedEarly(Exception):
    """The forward itself asks for gradients."""


@dataclass(slots=True)
class _Tensor:
    """One storage of the forward."""

    num_bytes: int
    operator: int
    output: int
    address: int
    writers: list[int]
    saved_after: int = -1
    """How many operators had written it when autograd saved it last; -1 when it never did."""
    read_after: int = 0
    """How many had written it when an operator that is none of them read it first, counted from the end."""
    depth: int = 99
    is_stable: bool = True
    """Whether it was not written into after it was saved or read."""


@dataclass(slots=True)
class _Seen:
    """One operator of the forward."""

    name: str
    where: str
    seconds: float
    reads: list[int]
    makes: list[int] = field(default_factory=list)
    writes: list[int] = field(default_factory=list)
    repeatable: bool = True
    is_constant: bool = False
    shapes: tuple[torch.Size, ...] = ()
    """Of the tensors that it was given."""


class _Watch(TorchDispatchMode):
    """Notes the operators of one forward, and what autograd saves in it."""

    def __init__(self, *, keeps: bool) -> None:
        super().__init__()
        self.keeps = keeps
        self.operators: list[_Seen] = []
        self.tensors: list[_Tensor] = []
        self.uses: list[int] = []
        """Tensors in the order in which the backward asked for them."""
        self.path: list[str] = []
        self.num_forwards = 0
        self._storages: dict[int, tuple[StorageWeakRef, int]] = {}
        self._readers: dict[int, list[_Seen]] = {}
        """Operators that read a large tensor from outside, by its storage."""

    def number_of(self, tensor: torch.Tensor) -> int | None:
        """The number of the storage under a tensor; None for what comes from outside."""
        known = self._storages.get(tensor.untyped_storage()._cdata) if is_plain(tensor) else None
        return None if known is None or known[0].expired() else known[1]

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        kwargs, number = kwargs or {}, len(self.operators)
        given = [leaf for leaf in leaves_of((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        shapes_only = kind_of(func).shapes_only
        read = [] if shapes_only else sorted({n for t in given if (n := self.number_of(t)) is not None})
        written = written_by(func, args, kwargs)
        put_mark(f"operator {number}")
        begin = seconds_now()
        result = func(*args, **kwargs)
        seconds = seconds_now() - begin
        put_mark(f"after {number}")
        seen = _Seen(kind_of(func).name, self.path[-1] if self.path else "", seconds, read)
        seen.shapes = tuple(tensor.shape for tensor in given)
        seen.repeatable, seen.is_constant = (
            can_be_repeated(kind_of(func), args, kwargs),
            is_constant(func, args, kwargs),
        )
        self.operators.append(seen)
        for tensor in given:
            if is_plain(tensor) and self.number_of(tensor) is None and tensor.nbytes > SMALL_BYTES:
                self._readers.setdefault(tensor.untyped_storage()._cdata, []).append(seen)
        self._note(number, seen, written, fresh(result, {t.untyped_storage()._cdata for t in given if is_plain(t)}))
        return result

    def _note(self, number: int, seen: _Seen, written: list[torch.Tensor], made: list[torch.Tensor]) -> None:
        into = [self.number_of(tensor) for tensor in written]
        for tensor, each in zip(written, into, strict=True):
            if each is None:  # something from outside: a buffer, the batch
                seen.repeatable = False
                for reader in self._readers.get(tensor.untyped_storage()._cdata, ()) if is_plain(tensor) else ():
                    reader.repeatable = False
        seen.writes = sorted({each for each in into if each is not None})
        for each in seen.reads:
            if each not in seen.writes:
                self.tensors[each].read_after = len(self.tensors[each].writers)
        for each in seen.writes:
            tensor = self.tensors[each]
            tensor.is_stable = tensor.is_stable and tensor.saved_after < 0 and not tensor.read_after
            tensor.writers.append(number)
        for output, tensor in enumerate(made):
            storage = tensor.untyped_storage()
            self._storages[storage._cdata] = (StorageWeakRef(storage), len(self.tensors))
            seen.makes.append(len(self.tensors))
            self.tensors.append(_Tensor(storage.nbytes(), number, output, _address_of(storage), [number]))

    def pack(self, tensor: torch.Tensor) -> object:
        """Note what autograd saves."""
        number = self.number_of(tensor)
        with torch._C._DisableTorchDispatch():  # what memfit does itself is no operator of the forward
            kept = KeptTensor(tensor) if number is None or self.keeps else None
        if number is None:
            return kept
        self.tensors[number].saved_after = len(self.tensors[number].writers)
        return (number, kept, self)

    def returned(self, depth: int, output: object) -> None:
        """Note what a module returned."""
        for tensor in tensors_of(output):
            number = self.number_of(tensor)
            if number is not None:
                self.tensors[number].depth = min(self.tensors[number].depth, depth)


def _address_of(storage: torch.UntypedStorage) -> int:
    try:
        return storage.data_ptr()
    except RuntimeError as error:  # of a wrapper, whose values lie in another tensor (read in torch 2.13)
        raise _WithoutStorage from error


def _unpack(kept: KeptTensor | tuple[int, KeptTensor | None, _Watch]) -> torch.Tensor:
    if isinstance(kept, KeptTensor):
        return kept.find()
    number, tensor, watch = kept
    if tensor is None:
        raise _AskedEarly
    put_mark(f"use {len(watch.uses)}")
    watch.uses.append(number)
    return tensor.find()


def trace_operators(job: Job) -> OperatorTrace | None:
    """Measure a job operator by operator; None where its operators are not run one by one, or not in one forward.

    Also None where they make tensors without a storage, as transforms of `torch.func` do, and where they depend on
    random numbers, as in a model that drops layers: another step may then run others.
    """
    if job.block_by_block is not None or any(is_compiled(module) for module in job.model.modules()):
        return None
    try:
        kept, first = _run(job, keeps=True)
        alone, second = _run(job, keeps=False)
    except (_AskedEarly, _WithoutStorage):
        return None
    same = [each.name for each in kept.operators] == [each.name for each in alone.operators]
    if not same or kept.num_forwards != 1 or not kept.operators:
        return None
    return _trace(kept, first, alone, second)


def _run(job: Job, *, keeps: bool) -> tuple[_Watch, Record]:
    watch = _Watch(keeps=keeps)

    def begin() -> None:
        put_mark("turn")
        if not keeps:
            raise _Over

    def run() -> None:
        with contextlib.suppress(_Over), _watched(job.model, watch), at_backward(begin, lambda: put_mark("done")):
            job.run()

    with leaving_no_trace(job):
        if not keeps:  # other random numbers: a forward that goes another way with them cannot be planned here
            seed_all(OTHER_SEED)
        return watch, record_events(run, job.device)


@contextlib.contextmanager
def _watched(model: torch.nn.Module, watch: _Watch) -> Iterator[None]:
    """Let a watch see the outermost forward of a model."""

    def around(proceed: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        if not may_record():
            return proceed(*args, **kwargs)
        watch.num_forwards += 1
        with torch.autograd.graph.saved_tensors_hooks(watch.pack, _unpack), watch:
            output = proceed(*args, **kwargs)
        put_mark("over")
        return output

    def starts(name: str) -> Before:
        return lambda *_: watch.path.append(name)

    def ends(depth: int) -> After:
        def after(output: object) -> None:
            watch.returned(depth, output)
            watch.path.pop()

        return after

    places: list[tuple[torch.nn.Module, Before | None, After | None]] = [
        (module, starts(name), ends(name.count(".") + 1)) for name, module in model.named_modules() if name
    ]
    remove = add_layer(model, around)
    try:
        with watching(places):
            yield
    finally:
        remove()


# ---- from two records to one trace -----------------------------------------------------------------------------------


def _trace(kept: _Watch, first: Record, alone: _Watch, second: Record) -> OperatorTrace | None:
    """Both records as one; None where their moments do not follow one another, as with several backwards."""
    count = len(kept.operators)
    names = [*(f"operator {n}" for n in range(count)), "over", "turn", *(f"use {k}" for k in range(len(kept.uses)))]
    places = [first.at(name) or 0 for name in [*names, "done"]]
    forward = [second.at(name) or 0 for name in names[: count + 2]]
    if places != sorted(places) or forward != sorted(forward):
        return None
    may, used = _droppable(kept), {n: count + 2 + k for k, n in reversed(list(enumerate(kept.uses)))}
    ends = [_end_of(each, places) for each in _blocks_of(kept, first)]
    gone = [_end_of(each, forward) for each in _blocks_of(alone, second)]
    tensors = []
    for number, each in enumerate(kept.tensors):
        end, left = ends[number], gone[number]
        large = each.num_bytes >= SMALL_BYTES and number in used
        tensors.append(
            TracedTensor(
                num_bytes=each.num_bytes,
                operator=each.operator,
                output=each.output,
                writers=tuple(each.writers),
                is_saved=_is_source(each),
                may_drop=may[number] and large and left is not None,
                may_move=_is_source(each) and large and left is not None,
                gone=count + 1 if left is None else left + 1,
                used=used.get(number, len(names)),
                ends=len(names) if end is None else end,
                depth=each.depth,
            )
        )
    seconds = _least_seconds([kept, alone])
    return OperatorTrace(
        operators=tuple(_operator(kept, n, first, seconds) for n in range(count)),
        tensors=tuple(tensors),
        starts=tuple(first.alive[place] for place in places[:-1]),
        peaks=tuple(first.peak_between(*pair) for pair in itertools.pairwise(places)),
        labels=tuple(_labels(kept)),
    )


def _blocks_of(watch: _Watch, record: Record) -> list[AllocatedBlock | None]:
    """The allocation under every tensor; None where the allocator reported none."""
    found: dict[int, list[AllocatedBlock]] = {}
    for block in record.blocks:
        found.setdefault(block.address, []).append(block)
    return [_alive(found.get(each.address, ()), record.at(f"after {each.operator}") or 0) for each in watch.tensors]


def _alive(blocks: Iterable[AllocatedBlock], moment: int) -> AllocatedBlock | None:
    return next((block for block in blocks if block.alive_at(moment)), None)


def _end_of(block: AllocatedBlock | None, places: list[int]) -> int | None:
    """The moment in which an allocation is released; None when it outlives the record, or was never seen."""
    return None if block is None or block.end is None else bisect_right(places, block.end) - 1


def _least_seconds(watches: list[_Watch]) -> dict[tuple[str, tuple[torch.Size, ...]], float]:
    """The least that operators with tensors of the same shapes took: whatever else runs on the machine only adds."""
    found: dict[tuple[str, tuple[torch.Size, ...]], float] = {}
    for seen in (each for watch in watches for each in watch.operators):
        found[seen.name, seen.shapes] = min(seen.seconds, found.get((seen.name, seen.shapes), seen.seconds))
    return found


def _operator(
    kept: _Watch, number: int, record: Record, seconds: dict[tuple[str, tuple[torch.Size, ...]], float]
) -> Operator:
    seen = kept.operators[number]
    begin, end = record.at(f"operator {number}") or 0, record.at(f"after {number}") or 0
    made_bytes = sum(kept.tensors[each].num_bytes for each in seen.makes)
    return Operator(
        name=seen.name, where=seen.where, seconds=seconds[seen.name, seen.shapes],
        transient_bytes=max(0, record.peak_between(begin, end) - record.alive[begin] - made_bytes),
        reads=tuple(seen.reads), makes=tuple(seen.makes), writes=tuple(seen.writes), repeatable=seen.repeatable,
        is_constant=seen.is_constant,
    )  # fmt: skip


def _droppable(watch: _Watch) -> list[bool]:
    """Which tensors can be made again from what autograd keeps and from what lies outside, operators permitting."""
    can: list[bool] = []
    for number, tensor in enumerate(watch.tensors):  # in the order of their making, so that sources come first
        operators = [watch.operators[writer] for writer in tensor.writers]
        reads = {each for operator in operators for each in operator.reads if each != number}
        sources = all(_is_source(watch.tensors[r]) or (r < number and can[r]) for r in reads)
        can.append(tensor.is_stable and all(each.repeatable for each in operators) and sources)
    return [ok and tensor.saved_after >= 0 for ok, tensor in zip(can, watch.tensors, strict=True)]


def _is_source(tensor: _Tensor) -> bool:
    return tensor.saved_after >= 0 and tensor.is_stable


def _labels(watch: _Watch) -> list[str]:
    forward = [f"the forward of {each.where or 'the model'} ({each.name})" for each in watch.operators]
    backward = []
    for number in watch.uses:
        maker = watch.operators[watch.tensors[number].operator]
        backward.append(f"the backward that reads {maker.name} of {maker.where or 'the model'}")
    return [*forward, "the loss", "the loss", *backward]
