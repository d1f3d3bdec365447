"""Offloading of saved tensors: what the backward needs is moved out of memory and fetched in time, as planned.

Saved-tensor hooks around the whole forward see every tensor that autograd keeps (within a checkpoint they see only
its input). Each belongs to the node of the plan that made it: the node that is running, or the earlier node whose
output it is. If that node is moved, the storage is sent, once, however many tensors share it. Before a node starts,
the main thread waits for as many moves as the plan says and frees what has left; when the gradient of a node's
output is there, it starts the fetches that the plan allows from then on, last sent first. Only the main thread
makes and frees tensors.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from memfit.apply.checkpoints import AppliedPlan
from memfit.apply.disk_store import DiskStore
from memfit.apply.kept_tensors import KeptTensor, check_version
from memfit.errors import MemfitError, UsageError
from memfit.model.call_sites import add_layer, watcher
from memfit.model.stages import GLUE
from memfit.model.step import tensors_of
from memfit.records.plan import Keep, Node, Plan, stages_of

SMALL_BYTES = 4096
TicketOf = TypeVar("TicketOf")


class Store(Protocol[TicketOf]):
    """Where moved bytes go: a file, or pinned memory of the host."""

    def send(self, block: torch.Tensor) -> TicketOf: ...
    def is_sent(self, ticket: TicketOf) -> bool: ...
    def wait_sent(self, ticket: TicketOf) -> None: ...
    def fetch(self, ticket: TicketOf, block: torch.Tensor) -> None: ...
    def wait_fetched(self, ticket: TicketOf) -> None: ...
    def forget(self, ticket: TicketOf) -> None: ...
    def close(self) -> None: ...


class Packet:
    """One storage on its way out, away, or back."""

    def __init__(self, store: Store, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        self.store, self.device, self.num_bytes = store, tensor.device, storage.nbytes()
        self.version = tensor._version
        self.source: torch.Tensor | None = tensor
        self.bytes: torch.Tensor | None = None
        self.windows: list[tuple[torch.Tensor, int]] = []
        """What was handed out, with torch's count of writes: a backward may write into it."""
        self.ticket = store.send(torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage))

    def release(self) -> None:
        """Wait until it has left, then free it."""
        if self.source is None:
            return
        self.store.wait_sent(self.ticket)
        if self.source._version != self.version:
            raise MemfitError(
                "a tensor was changed in place after the backward had asked for it",
                found=f"a tensor of shape {tuple(self.source.shape)}",
                hint="this step is wrong without the plan as well; avoid the in-place operation",
            )
        self.source = None
        self.windows = [(window, version) for window, version in self.windows if window._version != version]

    def start_fetch(self) -> None:
        """Bring it back, unless it never left."""
        if self.source is None and self.bytes is None:
            self.bytes = torch.empty(self.num_bytes, dtype=torch.uint8, device=self.device)
            self.store.fetch(self.ticket, self.bytes)

    def storage(self) -> torch.UntypedStorage:
        """The bytes, here, as they were saved."""
        for window, version in self.windows:
            check_version(window, version)
        if self.source is not None:
            check_version(self.source, self.version)
            return self.source.untyped_storage()
        self.start_fetch()
        self.store.wait_fetched(self.ticket)
        assert self.bytes is not None
        return self.bytes.untyped_storage()

    def __del__(self) -> None:
        # Threads know addresses only: the memory must not go before they are done with it.
        with contextlib.suppress(Exception):
            self.store.wait_sent(self.ticket)
        with contextlib.suppress(Exception):
            self.store.wait_fetched(self.ticket)
        self.store.forget(self.ticket)


@dataclass(slots=True)
class Handle:
    """One saved tensor on a packet's storage."""

    packet: Packet
    dtype: torch.dtype
    offset: int
    size: torch.Size
    stride: tuple[int, ...]

    def tensor(self) -> torch.Tensor:
        """The tensor as it was saved."""
        empty = torch.empty(0, dtype=self.dtype, device=self.packet.device)
        window = empty.set_(self.packet.storage(), self.offset, self.size, self.stride)
        self.packet.windows.append((window.detach(), window._version))
        return window


@dataclass(slots=True)
class MovedNode:
    """One node whose leavings are moved, with the packets of the step that runs."""

    number: int
    fetch_after: int
    leaving: list[Packet] = field(default_factory=list)
    away: list[weakref.ref[Packet]] = field(default_factory=list)


class Mover:
    """Everything that moves in one model; lives as long as the applied plan."""

    def __init__(self, plan: Plan, store: Store, fixed: set[int]) -> None:
        self.store, self.fixed = store, fixed
        moved = [position for position, node in enumerate(plan.nodes[:-1]) if node.offload]
        self.moves = [
            MovedNode(number=node, fetch_after=move.fetch_after) for node, move in zip(moved, plan.moves, strict=True)
        ]
        self._of_node = {move.number: move for move in self.moves}
        self.waits = _waits(plan)
        self.done_before = _done_before(plan)
        self.node = 0
        """The node that runs, or the glue that does."""
        self.glue = {n for n, node in enumerate(plan.nodes) if _is_glue(plan, node)}
        self._owners: list[tuple[StorageWeakRef, int]] = []
        self._open: dict[tuple[int, int], tuple[StorageWeakRef, weakref.ref[Packet]]] = {}

    # ---- forward -----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """A new forward: what an earlier one left unfinished is forgotten."""
        for move in self.moves:
            move.leaving, move.away = [], []
        self._owners, self._open, self.node = [], {}, 0

    def node_starts(self, number: int, given: object) -> None:
        """Wait for as many moves as the plan says; what is given comes from the glue before, if there is any."""
        if number and (number - 1) in self.glue:
            self.node_ended(number - 1, tensors_of(given)[:1])
        self.node = number
        for move in self.moves[: self.waits[number]]:
            self._release(move)
        for move in self.moves:
            move.leaving = [packet for packet in move.leaving if not self._left_already(packet)]

    def node_ended(self, number: int, output: object) -> None:
        """Remember whose output this is, and call back when its gradient is there."""
        for tensor in tensors_of(output):
            self._owners.append((StorageWeakRef(tensor.untyped_storage()), number))
            if tensor.requires_grad:
                tensor.register_hook(lambda _: self.backward_reaches(number))
        self.node = number + 1

    def _release(self, move: MovedNode) -> None:
        for packet in move.leaving:
            packet.release()
        move.leaving = []

    def _left_already(self, packet: Packet) -> bool:
        if self.store.is_sent(packet.ticket):
            packet.release()
        return packet.source is None

    def pack(self, tensor: torch.Tensor) -> KeptTensor | Handle:
        """What autograd keeps in place of a tensor."""
        move = self._move_of(tensor)
        if move is None:
            return KeptTensor(tensor)
        packet = self._packet(tensor, move)
        return Handle(packet, tensor.dtype, int(tensor.storage_offset()), tensor.size(), tensor.stride())

    def unpack(self, kept: KeptTensor | Handle) -> torch.Tensor:
        """The tensor again."""
        return kept.tensor() if isinstance(kept, Handle) else kept.find()

    def _move_of(self, tensor: torch.Tensor) -> MovedNode | None:
        if tensor.layout != torch.strided or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            return None
        storage = tensor.untyped_storage()
        if storage.nbytes() < SMALL_BYTES or storage._cdata in self.fixed:
            return None
        for reference, number in self._owners:
            if reference.cdata == storage._cdata and not reference.expired():
                return self._of_node.get(number)
        return self._of_node.get(self.node)

    def _packet(self, tensor: torch.Tensor, move: MovedNode) -> Packet:
        key = (tensor.untyped_storage()._cdata, tensor._version)
        known = self._open.get(key)
        if known is not None and not known[0].expired():
            packet = known[1]()
            if packet is not None:
                return packet
        packet = Packet(self.store, tensor.detach())
        self._open[key] = (StorageWeakRef(tensor.untyped_storage()), weakref.ref(packet))
        move.leaving.append(packet)
        move.away.append(weakref.ref(packet))
        return packet

    # ---- backward ----------------------------------------------------------------------------------------------

    def backward_reaches(self, number: int) -> None:
        """Everything behind a node is done: start the fetches that may start now, last sent first."""
        done = self.done_before[number]
        for move in reversed(self.moves):
            if move.number <= number:
                self._release(move)
                if move.fetch_after <= done:
                    self._fetch(move)

    def _fetch(self, move: MovedNode) -> None:
        for reference in reversed(move.away):
            packet = reference()
            if packet is not None:
                packet.start_fetch()
        move.away = []


def _is_glue(plan: Plan, node: Node) -> bool:
    return isinstance(node, Keep) and plan.chain.stages[node.stage].kind == GLUE


def _waits(plan: Plan) -> list[int]:
    """For each node, how many moves must be over before its forward may start."""
    forward = [step for step in plan.steps if step.kind in ("forward", "sweep")]
    waits, at = [], 0
    for node in plan.nodes:
        count = len(list(stages_of((node,))))
        waits.append(max((step.wait_sent for step in forward[at : at + count]), default=0))
        at += count
    return waits


def _done_before(plan: Plan) -> list[int]:
    """For each node, the last step that is over when the gradient of its output is there."""
    turn = next(i for i, step in enumerate(plan.steps) if step.kind in ("recompute", "backward"))
    first: dict[int, int] = {}
    for index in range(turn, len(plan.steps)):
        stage = plan.steps[index].stage
        if stage is not None:
            first.setdefault(stage, index)
    return [min(first[stage] for stage in stages_of((node,))) - 1 for node in plan.nodes]


# ---- attaching -------------------------------------------------------------------------------------------------


def attach_moves(applied: AppliedPlan, plan: Plan, disk: str | None) -> None:
    """Let the model of an applied plan move what the plan moves."""
    model = applied.model
    store = store_for(model, plan.moved_bytes, disk)
    tensors = [*model.parameters(), *model.buffers()]
    mover = Mover(plan, store, {tensor.untyped_storage()._cdata for tensor in tensors})
    applied.closers.append(store.close)

    def around(proceed: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        if not torch.is_grad_enabled():
            return proceed(*args, **kwargs)
        mover.begin()
        with torch.autograd.graph.saved_tensors_hooks(mover.pack, mover.unpack):
            return proceed(*args, **kwargs)

    around.of_a_plan = True  # type: ignore[attr-defined]
    applied.closers.append(add_layer(model, around))
    _follow_nodes(applied, plan, mover)


def _follow_nodes(applied: AppliedPlan, plan: Plan, mover: Mover) -> None:
    """Tell the mover when a node starts and when it has ended."""
    for number, node in enumerate(plan.nodes):
        modules = [m for stage in stages_of((node,)) for m in applied.stages[stage].modules]
        if not modules:
            continue
        applied.closers.append(add_layer(modules[0], watcher(_starting(mover, number), None)))
        applied.closers.append(add_layer(modules[-1], watcher(None, _ending(mover, number))))


def _starting(mover: Mover, number: int) -> Callable[[tuple[object, ...], dict[str, object]], None]:
    def starts(args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        if torch.is_grad_enabled():
            mover.node_starts(number, (args, kwargs))

    return starts


def _ending(mover: Mover, number: int) -> Callable[[object], None]:
    def ends(output: object) -> None:
        if torch.is_grad_enabled():
            mover.node_ended(number, output)

    return ends


def store_for(model: torch.nn.Module, moved_bytes: int, disk: str | None) -> Store:
    """Where a model moves bytes to: pinned memory of the host, or a folder."""
    device = next(model.parameters()).device
    if device.type == "cuda":
        from memfit.apply.pinned_store import PinnedStore

        return PinnedStore(device, moved_bytes)
    if disk is None:
        raise UsageError(
            "the plan moves bytes to a disk, but there is no folder", hint="apply_plan(model, plan, disk='/var/tmp')"
        )
    return DiskStore(disk, moved_bytes)
