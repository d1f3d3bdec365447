"""Dispatch mode that logs each storage: the operator that made it, its death, phase, module and line.

Works the same on fake and on real tensors. Births are results whose `untyped_storage()` was not seen before; deaths
are weak reference callbacks of that storage (storage objects keep their Python identity, read in torch 2.13).

An active dispatch mode changes autograd itself: where the engine would add a gradient into an existing buffer, it
makes a new one. The log undoes this: when such an operator runs in a backward, its result has the size of the old
buffer, and the old buffer dies before the next operator, the result takes the old one's place.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import cast

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from memfit.predict.fake.kernels.sparse import is_made_anew, parts_of
from memfit.predict.gpu_rules.cublas import CUBLAS_WORKSPACE, workspace_bytes, workspace_stays
from memfit.predict.observe.arguments import Arguments, Keywords, several, tensor_at
from memfit.predict.observe.flops_and_bytes import WorkCounter
from memfit.predict.observe.garbage_collection import GarbageCollection
from memfit.predict.observe.known_values import storage_of
from memfit.predict.observe.own_threads import Turns
from memfit.predict.observe.phase_and_module import Places
from memfit.predict.observe.python_scalars import NumberRule
from memfit.predict.observe.storage_log import Birth, ProbedCall, TraceLog
from memfit.records.timeline import Category

aten = torch.ops.aten
PRIM_DEVICE = torch.ops.prim.device.default
ENGINE_ACCUMULATES = {
    aten.add.Tensor, aten.scatter.src, aten.scatter.value, aten.scatter_add.default, aten.index_put.default,
    aten.index_add.default,
}  # fmt: skip
BORN_IN_ORDER = {
    aten._scaled_dot_product_efficient_attention.default: (2, 3, 0, 1),
    aten.native_dropout.default: (1, 0),
    aten._pack_padded_sequence.default: (1, 0),
}
"""Results that are not made in the order they are returned in: random state, masks and numbers of texts come first."""
CHANGED_IN_PLACE = {
    "BinaryCrossEntropyWithLogitsBackward0": {
        aten.sub.Tensor: aten.sub_.Tensor, aten.mul.Tensor: aten.mul_.Tensor, aten.div.Scalar: aten.div_.Scalar,
    }
}  # fmt: skip
"""Steps of a backward that are taken in place unless torch sees a subclass of Tensor, as a fake tensor is: those on
what the backward made itself, of which the first is a difference."""
LIFTS = {aten.lift_fresh.default, aten.lift_fresh_copy.default, aten.lift.default}
"""What `torch.tensor(numbers)` ends with: it says that it gives an alias, of a tensor that was not seen."""
TAKEN_APART = {aten.allclose.default: lambda *args, **kwargs: torch.isclose(*args, **kwargs).all().item()}
"""Operators that end in reading a value: what they are made of is seen, and the value is asked for as any other."""
WAITS = {torch.ops._c10d_functional.wait_tensor.default} if torch.distributed.is_available() else set()
"""Give the tensor that they wait for; on fake tensors torch makes another one (read in torch 2.13)."""
RESIZES = {aten.resize_.default, aten.set_.source_Storage, aten.set_.source_Storage_storage_offset}

MULTIPLIES = {
    aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default, aten.mv.default, aten.addmv.default,
    aten.dot.default, aten.addbmm.default, aten._addmm_activation.default, aten._euclidean_dist.default,
}  # fmt: skip

Signer = Callable[[OpOverload, Arguments, Keywords], int | None]


def tensors_in(value: object) -> Iterator[torch.Tensor]:
    """Every tensor in a nest of lists, tuples and dictionaries."""
    if isinstance(value, torch.Tensor):
        yield value if type(value).__name__ != "DTensor" else value._local_tensor  # pyright: ignore[reportAttributeAccessIssue]
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)


@contextmanager
def plain_fakes(value: object) -> Iterator[None]:
    """Within, fake tensors that have a library's class are fake tensors only: what an operator is made of calls their
    methods, which the library may have written anew."""
    found = [(tensor, type(tensor)) for tensor in tensors_in(value) if isinstance(tensor, FakeTensor)]
    for tensor, _ in found:
        tensor.__class__ = FakeTensor
    try:
        yield
    finally:
        for tensor, kind in found:
            tensor.__class__ = kind


def device_of(tensor: torch.Tensor) -> torch.device:
    """What C++ asks of every fake tensor, several times per operator; an exception here would end the interpreter."""
    fake_device = getattr(tensor, "fake_device", None)
    if fake_device is not None and not cast("FakeTensor", tensor).fake_mode.in_kernel_invocation:
        return fake_device
    return PRIM_DEVICE(tensor)


def is_distributed(types: tuple[type, ...]) -> bool:
    """Whether a sharded tensor is among the arguments: it turns the call into calls on its local part, seen then."""
    return any(kind.__name__ == "DTensor" for kind in types)


def _is_inferred(args: Arguments) -> bool:
    """Whether inference mode is on, or was when one of these tensors was made."""
    return torch.is_inference_mode_enabled() or any(tensor.is_inference() for tensor in tensors_in(args))


_OWN_KEYS = {"cpu": torch._C.DispatchKey.AutogradCPU, "cuda": torch._C.DispatchKey.AutogradCUDA}
"""Where answers to recipes are registered, by device."""


def _in_place_step(func: OpOverload) -> OpOverload | None:
    """The operator by which this step of a backward is taken where there are no fake tensors, if it is another."""
    if torch.is_grad_enabled() or not any(func in steps for steps in CHANGED_IN_PLACE.values()):
        return None
    node = torch._C._current_autograd_node()
    return None if node is None else CHANGED_IN_PLACE.get(node.name(), {}).get(func)


class LeanMode(TorchDispatchMode):
    """A dispatch mode that does not ask the compiler to stand aside at each operator (nothing is compiled here)."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


def _lies_in_file(storage: torch.UntypedStorage) -> bool:
    """Whether the memory of a real tensor is that of a mapped file, or shared between processes."""
    address = storage.data_ptr() if storage.device.type == "cpu" else 0
    if not address:
        return False
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return False
    for line in lines:
        bounds, _, _, _, inode, *_ = line.split(maxsplit=5)
        first, _, last = bounds.partition("-")
        if int(first, 16) <= address < int(last, 16):
            return inode != "0"
    return False


def lies_in_an_array(tensor: torch.Tensor) -> bool:
    """Whether a real tensor lies in memory that torch did not allocate, as `torch.FloatTensor(array)` does."""
    return type(tensor) is torch.Tensor and tensor.device.type == "cpu" and not tensor.untyped_storage().resizable()


class OutsideMemory:
    """Memory behind tensors that torch's allocator never hands out: numpy arrays, mapped files, batches of workers."""

    def __init__(self) -> None:
        self.is_here = False
        self.peak_bytes = 0
        self._live_bytes = 0

    @contextmanager
    def made_here(self) -> Iterator[None]:
        """Within, every new storage lies outside."""
        before, self.is_here = self.is_here, True
        try:
            yield
        finally:
            self.is_here = before

    def allocated(self, storage: torch.UntypedStorage, device: torch.device) -> int:
        """The bytes that the allocator gives for a new storage: none, where it lies outside."""
        if device.type != "cpu" or not (self.is_here or _lies_in_file(storage)):
            return storage.nbytes()
        self._live_bytes += storage.nbytes()
        self.peak_bytes = max(self.peak_bytes, self._live_bytes)
        weakref.finalize(storage, self._gone, storage.nbytes()).atexit = False
        return 0

    def _gone(self, num_bytes: int) -> None:
        self._live_bytes -= num_bytes


class Tracker(LeanMode):
    """Writes the log; `sign` names calls that are to be probed later."""

    def __init__(self, places: Places, sign: Signer | None = None, gemm_workspace_bytes: int = 0) -> None:
        super().__init__()
        self._gemm_workspace_bytes = gemm_workspace_bytes
        self._gemm_threads: set[tuple[int | str, int]] = set()
        self._gemm_stays: bool | None = None
        """Whether cuBLAS workspaces are kept; unknown until the first product, before which a script may set it."""
        self.log = TraceLog()
        self.places = places
        self.num_operators = 0
        self.work = WorkCounter()
        self._sign = sign
        self.scratch_notes: list[Callable[[Tracker, OpOverload, Arguments, object, int], None]] = []
        """Called with every operator, its arguments in order, its results, and where the entries of these begin.

        They add what kernels take inside.
        """
        self.made_once: set[str] = set()
        """What libraries make at their first call and keep."""
        self.outside = OutsideMemory()
        self.garbage = GarbageCollection(lambda: self.log.live_bytes)
        self.turn = threading.RLock()
        """Held by the thread whose operator is followed: a script may have several."""
        self.turns = Turns()
        self._uid_of: dict[int, int] = {}
        self._keep: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._forward_born: set[int] = set()
        self._takeover: tuple[int, int, int] | None = None
        self._chained: int | None = None
        """The storage in which a backward takes its steps in place."""
        self._task = -1
        self._allocates: dict[OpOverload, bool] = {}
        self._composite: dict[OpOverload, bool] = {}
        self._in_recipe = False
        self.left_whole: set[OpOverload] = set()
        """Recipes of other operators that are answered as a whole by somebody else."""
        self.recipe_of: Callable[[OpOverload, Arguments], Callable[..., object] | None] = lambda func, args: None
        """What an operator is made of on the device of its arguments, where its fake kernel gives its results alone."""
        self._number_rules: dict[OpOverload, NumberRule] = {}

    def __torch_dispatch__(
        self, func: OpOverload, types: tuple[type, ...], args: Arguments = (), kwargs: Keywords | None = None
    ) -> object:
        kwargs = kwargs or {}
        if func is PRIM_DEVICE:
            return device_of(tensor_at(args, 0))
        if is_distributed(types):
            return NotImplemented
        with self.turn, torch._C.DisableTorchFunctionSubclass():  # the engine calls operators, not functions
            if all(kind is FakeTensor for kind in types):
                return self._dispatch(func, args, kwargs)
            with plain_fakes((args, kwargs)):
                return self._dispatch(func, args, kwargs)

    def _dispatch(self, func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
        self.turns.note()
        if self._is_composite(func) and (self._in_recipe or _is_inferred(args)):
            with self:  # what it is made of is seen, as it is where gradients could be asked for
                return _as_eager(func, args, kwargs)
        if func in WAITS:
            return tensor_at(args, 0)
        recipe = TAKEN_APART.get(func) or self.recipe_of(func, args)
        if recipe is not None:
            return self._taken_apart(recipe, args, kwargs)
        if func is aten.where.self and tensor_at(args, 0).dtype is torch.uint8:
            return self._taken_apart(_where_of_bytes, args, kwargs)
        self.num_operators += 1
        self._takeover = None
        self._notice_backward()
        func = self._as_taken(func, args)
        run = self._as_run(func, args)
        signature = self._sign(run, args, kwargs) if self._sign else None
        multiplies = self._gemm_workspace_bytes and func in MULTIPLIES and tensor_at(args, 0).device.type == "cuda"
        position = len(self.log.entries)
        scalar_uid = self._note_wrapped_numbers(func, args)
        result = func(*args, **kwargs)
        num_entries = len(self.log.entries)
        uids = self._note_results(func, args, result)
        if multiplies:
            self._note_gemm(tensor_at(args, 0).device)
        given = _in_order(func, args, kwargs) if kwargs else args
        for note in self.scratch_notes:
            note(self, func, given, result, num_entries)
        made_bytes = sum(self.log.births[uid].num_bytes for uid in uids if uid >= 0)
        self.work.note(func, args, kwargs, result, made_bytes)
        if signature is not None:
            self._note_call(signature, uids if run is func else [], position)
        if scalar_uid is not None:
            self.log.free(scalar_uid)
        return result

    def _taken_apart(self, recipe: Callable[..., object], args: Arguments, kwargs: Keywords) -> object:
        """Run what an operator is made of, and the recipes in it, so that each part is seen."""
        before, self._in_recipe = self._in_recipe, True
        try:
            with self:
                return recipe(*args, **kwargs)
        finally:
            self._in_recipe = before

    # ---- births and deaths -------------------------------------------------------------------------------------------

    def _note_results(self, func: OpOverload, args: Arguments, result: object) -> list[int]:
        if not self._makes_storage(func) and not is_made_anew(func, result):
            if func in RESIZES:
                self._note_resize(tensor_at(args, 0))
            return []
        if func in LIFTS and lies_in_an_array(tensor_at(args, 0)) and not self.outside.is_here:
            with self.outside.made_here():
                return self._note_results(func, args, result)
        old = self._accumulated_into(func, args)
        uids = []
        made = tensors_in(
            [several(result)[place] for place in BORN_IN_ORDER[func]] if func in BORN_IN_ORDER else result
        )
        for tensor in (part for each in made for part in parts_of(each)):
            uid, is_new = self.see(tensor, str(func))
            uids.append(uid if is_new else -1)
            if is_new and old is not None and self.log.births[old].num_bytes == self.log.births[uid].num_bytes:
                self._takeover = (uid, old, id(storage_of(tensor)))
        return uids

    def _is_composite(self, func: OpOverload) -> bool:
        """Whether an operator is a recipe of others, which a dispatch mode gets as a whole in inference mode."""
        known = self._composite.get(func)
        if known is None:
            is_recipe = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
            known = is_recipe and func not in self.left_whole
            self._composite[func] = known
        return known

    def _makes_storage(self, func: OpOverload) -> bool:
        """Whether some result is not declared as an alias of an argument; asked once per operator."""
        known = self._allocates.get(func)
        if known is None:
            returns = func._schema.returns
            known = func in LIFTS or not returns or any(r.alias_info is None for r in returns)
            self._allocates[func] = known
        return known

    def see(self, tensor: torch.Tensor, operator: str, category: Category | None = None) -> tuple[int, bool]:
        """The number of the tensor's storage, and whether it was new; -1 for layouts without a storage."""
        storage = storage_of(tensor if type(tensor).__name__ != "DTensor" else next(tensors_in(tensor)))
        if storage is None:
            return -1, False
        key = id(storage)
        uid = self._uid_of.get(key)
        is_new = uid is None
        if uid is None:
            phase, module, line = self.places.here()
            self.log.phase(self.places.step, phase)
            num_bytes = self.outside.allocated(storage, tensor.device)
            birth = Birth(
                num_bytes, str(tensor.device), operator, phase, self.places.step, module, line,
                dtype=str(tensor.dtype).removeprefix("torch."),
            )  # fmt: skip
            uid = self.log.alloc(birth)
            self._uid_of[key] = uid
            self._keep[key] = weakref.ref(storage, partial(self._die, key))
            if phase == "forward":
                self._forward_born.add(uid)
            elif phase == "recompute":
                self.log.claim(uid, "activation")
        if category is not None:
            self.log.claim(uid, category)
        return uid, is_new

    def claim_all(
        self,
        tensors: object,
        category: Category,
        *,
        place: tuple[int, str] | None = None,
        beside: torch.Tensor | None = None,
    ) -> None:
        """Say what the storages of these tensors are, and optionally whose; those never seen are taken up."""
        if beside is not None:
            owner = self.uid_of(beside) if isinstance(beside, torch.Tensor) else None
            place = self.log.births[owner].module if owner is not None else None
        for tensor in tensors_in(tensors):
            uid, _ = self.see(tensor, "given", category)
            if place is not None and uid >= 0 and self.log.births[uid].module[0] < 0:
                self.log.births[uid].module = place

    def uid_of(self, tensor: torch.Tensor) -> int | None:
        """The number of a tensor's storage, where it is known."""
        storage = storage_of(tensor)
        return None if storage is None else self._uid_of.get(id(storage))

    def live_bytes(self) -> int:
        """Bytes of all storages that are alive now."""
        return sum(self.log.births[uid].num_bytes for uid in self._uid_of.values())

    def living_since(self, num_births: int) -> set[int]:
        """The numbers of storages made after so many births that are still alive."""
        return {uid for uid in self._uid_of.values() if uid >= num_births}

    def _die(self, key: int, _reference: object) -> None:
        uid = self._uid_of.pop(key, None)
        self._keep.pop(key, None)
        if uid is None:
            return
        self._forward_born.discard(uid)
        if self._takeover is not None and self._takeover[1] == uid:
            self._inherit(*self._takeover)
        else:
            self.log.free(uid)

    def release(self) -> None:
        """The run is over: what dies from now on dies because the job is taken down."""
        self._keep.clear()

    def _inherit(self, new: int, old: int, key: int) -> None:
        """The new storage is the old buffer, added to in place: forget the birth, keep the old number."""
        self._takeover = None
        self.log.live_bytes -= self.log.births[new].num_bytes
        if self.log.entries and self.log.entries[-1] == ("alloc", new):
            self.log.entries.pop()
        else:
            self.log.entries.remove(("alloc", new))
        self._uid_of[key] = old

    def _as_run(self, func: OpOverload, args: Arguments) -> OpOverload:
        """The operator that the engine would have called: the gradient of an indexing is written in place."""
        is_written = func is aten.index_put.default and self._accumulated_into(func, args) is not None
        return aten.index_put_.default if is_written else func

    def _as_taken(self, func: OpOverload, args: Arguments) -> OpOverload:
        """The same step of a backward, in place where torch takes it so on what this backward made itself."""
        step = _in_place_step(func)
        own = None if step is None else self.uid_of(tensor_at(args, 0))
        if step is None or own is None:
            return func
        if func is aten.sub.Tensor:
            self._chained = own
        return step if own == self._chained else func

    def _accumulated_into(self, func: OpOverload, args: Arguments) -> int | None:
        """The storage the engine would have added into; never one it sees through a view, whose base holds on to it."""
        if self._task == -1 or not isinstance(args[0], torch.Tensor):
            return None
        if func not in ENGINE_ACCUMULATES:
            return None
        return None if args[0]._is_view() else self.uid_of(args[0])

    def _note_resize(self, tensor: torch.Tensor) -> None:
        """A storage that changed its size dies and is born again."""
        uid, is_new = self.see(tensor, "resize")
        storage = storage_of(tensor)
        if is_new or storage is None or self.log.births[uid].num_bytes == storage.nbytes():
            return
        self.log.free(uid)
        self._uid_of.pop(id(storage))
        new_uid, _ = self.see(tensor, "resize")
        self.log.claim(new_uid, self.log.births[uid].category)

    def moves_outside(self, tensor: torch.Tensor) -> None:
        """What a tensor holds is copied to memory that the allocator does not hand out, and its own is freed."""
        storage, uid = storage_of(tensor), self.uid_of(tensor)
        if storage is not None and uid is not None:
            self.log.free(uid)
            self._uid_of.pop(id(storage))
            with self.outside.made_here():
                self.see(tensor, "share_memory_", self.log.births[uid].category)

    def note_storage_size(self, storage: torch.UntypedStorage) -> None:
        """A storage was resized by its own method, as FSDP does to free gathered parameters."""
        key = id(storage)
        uid = self._uid_of.get(key)
        if uid is None or self.log.births[uid].num_bytes == storage.nbytes():
            return
        old = self.log.births[uid]
        self.log.free(uid)
        phase, module, line = self.places.here()
        self.log.phase(self.places.step, phase)
        birth = Birth(
            storage.nbytes(), old.device, "resize", phase, self.places.step, module, line, old.category
        )  # fmt: skip
        self._uid_of[key] = self.log.alloc(birth)

    # ---- calls and phases --------------------------------------------------------------------------------------------

    def _note_call(self, signature: int, uids: list[int], position: int) -> None:
        phase, module, line = self.places.here()
        self.log.calls.append(ProbedCall(signature, tuple(uids), phase, module, line))
        self.log.entries.insert(position, ("call", len(self.log.calls) - 1))

    def _note_gemm(self, device: torch.device) -> None:
        """A product takes a workspace of cuBLAS after its result: every one, or, where it stays, a thread's first on
        a stream.

        A backward on a GPU runs in a thread of its own; here it is kept in the one that asked for it.
        """
        if self._gemm_stays is None:
            self._gemm_stays = workspace_stays(str(torch.__version__), os.environ)
            self._gemm_workspace_bytes = workspace_bytes(self._gemm_workspace_bytes, os.environ)
        thread = ("backward" if self.places.in_backward else threading.get_ident()), self.log.stream
        if not self._gemm_stays:
            self.log.free(self._note_workspace(device))
        elif thread not in self._gemm_threads:
            self._gemm_threads.add(thread)
            self._note_workspace(device)

    def _note_workspace(self, device: torch.device) -> int:
        phase, module, line = self.places.here()
        self.log.phase(self.places.step, phase)
        num_bytes, step = self._gemm_workspace_bytes, self.places.step
        return self.log.alloc(Birth(num_bytes, str(device), CUBLAS_WORKSPACE, phase, step, module, line, "workspace"))

    def _note_wrapped_numbers(self, func: OpOverload, args: Arguments) -> int | None:
        """A Python number in place of a CPU tensor becomes a tensor, and is cast to the result's type, for one call."""
        rule = self._number_rules.get(func)
        if rule is None:
            rule = self._number_rules[func] = NumberRule.of(func)
        num_bytes = rule.num_bytes(args)
        if not num_bytes:
            return None
        phase, module, line = self.places.here()
        return self.log.alloc(Birth(num_bytes, "cpu", str(func), phase, self.places.step, module, line, "workspace"))

    def _notice_backward(self) -> None:
        """When a backward begins, whatever the forward made and is still alive was kept for it."""
        task = torch._C._current_graph_task_id()
        if task == self._task:
            return
        self._task = task
        self.places.in_backward = task != -1
        if task != -1:
            for uid in self._forward_born:
                self.log.claim(uid, "activation")
            self._forward_born.clear()


def _where_of_bytes(condition: torch.Tensor, chosen: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The kernel makes a mask of a condition of bytes; fake tensors refuse one."""
    return aten.where.self(condition.to(torch.bool), chosen, other)


def _as_eager(func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
    """What a recipe of others gives, by torch's own kernel: the decompositions written in Python for compilers differ
    (torch 2.13), that of a dropout which drops nothing copies its input. One that is answered for this device
    (attention and recurrent layers of a GPU) is answered so in inference mode too."""
    first = next(tensors_in(args), None)
    own = _OWN_KEYS.get(first.device.type) if first is not None else None
    if own is not None and torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), own.name):
        return func._op_dk(own, *args, **kwargs)
    return func._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)


def _in_order(func: OpOverload, args: Arguments, kwargs: Keywords) -> Arguments:
    """Arguments by position up to the last one that was given by name."""
    declared = func._schema.arguments
    last = max((place for place, each in enumerate(declared) if each.name in kwargs), default=-1)
    rest = declared[len(args) : last + 1]
    return (*args, *(kwargs.get(each.name, each.default_value) for each in rest))
