"""One training step of a live model that can be run again and again, with all state restored afterwards.

A job is one forward and backward of the user's own step, without the update. Before each run the random state is
set, the gradients are put aside; afterwards parameters, buffers, gradients and random state are what they were.
"""

from __future__ import annotations

import contextlib
import random
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, cast

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

from memfit.errors import RunExists, UsageError
from memfit.model.module_state import ALL_OBJECTS, State, Watch, lay, modules_beside
from memfit.model.optimizer_hooks import tensors_beside_state
from memfit.model.refused_models import refuse_model, refuse_scripts
from memfit.model.tensors_in_arguments import leaves_alive
from memfit.model.written_parameters import ParameterVersions, finding_written

Run = Callable[[], object]
"""One forward and backward; returns the loss, or None where it cannot be had."""


class LiveTraining(Protocol):
    """What a user's function built, as far as a job is made of it."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[..., object] | None
    batch: object
    step: Callable[[], object] | None
    on_loss: Callable[[torch.Tensor], None] | None


@dataclass(slots=True, kw_only=True)
class Job:
    """A model with everything needed to run its step."""

    model: torch.nn.Module
    run: Run
    optimizer: torch.optim.Optimizer | None = None
    batch: Any = None
    name: str = ""
    beside: tuple[torch.nn.Module, ...] = ()
    """Modules that belong to the step and are not in the model's tree: of its loss, or in a list of the model."""
    leaves: tuple[weakref.ref[torch.Tensor], ...] = ()
    """What else a backward may reach: an input that is attacked, weights in a plain list or of another model."""
    seen: dict[str, Any] = field(default_factory=dict)
    """What the last run returned beside gradients; filled by `run`."""
    limit_bytes: int | None = None
    """The budget that the step is to keep; None while none is named."""
    accumulates: bool = False
    """Whether gradients of earlier batches are there when a step begins: they add up over several."""
    never_cleared: frozenset[int] = frozenset()
    """Ids of parameters whose gradients `optimizer.zero_grad()` leaves, for the optimizer does not have them."""
    lent: set[int] = field(default_factory=set)
    """Ids of parameters whose gradients runs may write into: their values lie in a file (`gradients_aside.py`).

    Changed copies of a job share it.
    """
    update_transient_bytes: int = 0
    """What the optimizer's step holds in passing, as it was measured."""
    left_bytes: int = 0
    """Of tensors that earlier steps leave on the model and that the measured step did not find there."""
    reserved_bytes: int = 0
    """For blocks that the measured step did not call and another may."""
    around_bytes: int = 0
    """Of tensors that are neither parameters, buffers, batch nor optimizer state; they count.

    In a program that is watched, all of them; else those that hang on the model, and those that its step reads.
    """
    counts_everything: bool = False
    """Whether all of them are counted: the job is a pass of a program that is watched."""
    released_bytes: int = 0
    """Of tensors that are there when a step begins and not to its end; runs have them, and `around_bytes` does not."""
    varies: bool = False
    """Whether steps take different amounts: plans are then held to what they promise, not to one measured step."""
    reorders: bool = False
    """Whether blocks come in another order in another step, so that none is recomputed together with the next."""
    without_gradient: frozenset[int] = frozenset()
    """Ids of parameters that a step gives no gradient, so that the optimizer keeps no state for them."""
    is_exact: bool = True
    """Whether two runs of the step agree to the last bit."""
    inexact_because: str = ""
    """Why the step need not be the plain one to the bit, where somebody allowed that."""
    unsteppable: str = ""
    """Why the optimizer's step must not be taken in the backward, as far as the program was watched."""
    stepped: tuple[torch.Tensor, ...] = ()
    """Parameters that the optimizer updates within the backward: their gradients are gone after it."""
    knows_written: bool = False
    """Whether a run has shown which parameters the model itself writes into (`written_parameters.py`)."""
    block_by_block: Callable[[], contextlib.AbstractContextManager[object]] | None = None
    """What to enter around a run where the plain step is too large for this machine; None where it is not."""

    @property
    def whole(self) -> torch.nn.Module:
        """The model with the modules beside it: all of whose state and gradients runs change."""
        return Whole(self.model, self.beside) if self.beside else self.model

    @property
    def device(self) -> torch.device:
        """Where the model lives."""
        first = next(self.model.parameters(), None)
        return torch.device("cpu") if first is None else first.device


class Whole(torch.nn.Module):
    """A model and modules that are not in its tree, as one tree."""

    def __init__(self, model: torch.nn.Module, beside: tuple[torch.nn.Module, ...]) -> None:
        super().__init__()
        self.model, self.beside = model, torch.nn.ModuleList(beside)

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Those of the model under the names that it gives them, then the others."""
        names = {id(p): name for name, p in self.model.named_parameters()}
        for name, parameter in super().named_parameters(prefix, recurse, remove_duplicate):
            yield names.get(id(parameter), name), parameter


def job_of(
    model: object,
    batch: object,
    loss: Callable[..., object] | None,
    optimizer: object,
    name: str = "",
) -> Job:
    """A job from the four things everybody has."""
    if not isinstance(model, torch.nn.Module):
        raise UsageError("this is not a model", found=type(model).__name__, hint="give a torch.nn.Module")
    refuse_model(model)
    given = cast("torch.optim.Optimizer | None", optimizer)
    job = Job(model=model, run=lambda: None, optimizer=given, batch=batch, name=name)

    def run() -> object:
        value = _loss_of(model, batch, loss)
        job.seen["loss"] = value.detach()
        value.backward()
        return value.detach()

    job.run = run
    _count_what_is_there(job, loss)
    return job


def _count_what_is_there(job: Job, loss: object) -> None:
    """Find what belongs to the step beside the model's tree, and count what is there before it begins."""
    hanging = modules_beside(job.model, [])
    job.beside = tuple(modules_beside(job.model, [loss]))
    for each in job.beside:
        refuse_scripts(type(each).__name__, each)
    own = {id(parameter) for parameter in job.whole.parameters()}
    job.leaves = tuple(weakref.ref(leaf) for leaf in leaves_alive() if id(leaf) not in own)
    job.around_bytes = hanging_bytes(job.whole, job.batch, job.optimizer)
    # What hangs on the model may be called without gradients, as a teacher is; the loss is what is trained.
    of_loss = tuple(each for each in job.beside if not any(each is other for other in hanging))
    trained = Whole(job.model, of_loss) if of_loss else job.model
    job.never_cleared = _never_cleared(trained, job.optimizer)


def _never_cleared(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> frozenset[int]:
    if optimizer is None:
        return frozenset()
    handled = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return frozenset(id(p) for p in model.parameters() if p.requires_grad and id(p) not in handled)


def _loss_of(model: torch.nn.Module, batch: Any, loss: Callable[..., object] | None) -> torch.Tensor:
    if isinstance(batch, dict) or hasattr(batch, "keys"):
        outputs = model(**batch)
        value = outputs.loss if loss is None else loss(outputs, batch)
    elif isinstance(batch, (tuple, list)) and len(batch) == 2:
        outputs = model(batch[0])
        value = outputs if loss is None else loss(outputs, batch[1])
    elif isinstance(batch, torch.Tensor):
        outputs = model(batch)
        value = outputs if loss is None else loss(outputs)
    else:
        raise UsageError(
            "this batch cannot be given to a model",
            found=type(batch).__name__,
            hint="give inputs, (inputs, targets), or a dictionary of keyword arguments",
        )
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        raise UsageError("the loss is not one number", found=type(value).__name__, hint="return a tensor of one value")
    return value


def job_of_step(training: LiveTraining, name: str = "") -> Job:
    """A job from a training with a step of its own: the step runs, its update does not."""
    refuse_model(training.model)
    job = Job(model=training.model, run=lambda: None, optimizer=training.optimizer, batch=training.batch, name=name)

    def note(value: torch.Tensor) -> None:
        job.seen["loss"] = value.detach()

    _count_what_is_there(job, [training.loss, training.step])

    def run() -> object:
        assert training.step is not None
        before, training.on_loss = training.on_loss, note
        try:
            with _without_update(training.optimizer):
                training.step()
        finally:
            training.on_loss = before
        return job.seen.get("loss")

    job.run = run
    return job


@contextlib.contextmanager
def _without_update(optimizer: Any) -> Iterator[None]:
    """Let `step` and `zero_grad` of one optimizer do nothing; a scheduler may have set its own `step` on it."""
    before = {name: optimizer.__dict__[name] for name in ("step", "zero_grad") if name in optimizer.__dict__}
    optimizer.step = lambda *_, **__: None
    optimizer.zero_grad = lambda *_, **__: None
    try:
        yield
    finally:
        del optimizer.step, optimizer.zero_grad
        optimizer.__dict__.update(before)


# ---- state -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class RandomState:
    """All random generators a model may use."""

    cpu: torch.Tensor
    devices: list[torch.Tensor]
    python: Any
    numpy: Any

    @classmethod
    def now(cls) -> RandomState:
        devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        return cls(torch.get_rng_state(), devices, random.getstate(), _numpy_random().get_state())

    def put_back(self) -> None:
        """Make it the current state."""
        torch.set_rng_state(self.cpu)
        if self.devices:
            torch.cuda.set_rng_state_all(self.devices)
        random.setstate(self.python)
        _numpy_random().set_state(self.numpy)

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Make it the current state for a while; afterwards all generators are where they were."""
        before = RandomState.now()
        self.put_back()
        try:
            yield
        finally:
            before.put_back()

    def same_as(self, other: RandomState) -> bool:
        """Whether both would draw the same numbers."""
        tensors = zip([self.cpu, *self.devices], [other.cpu, *other.devices], strict=True)
        return all(torch.equal(a, b) for a, b in tensors) and self.same_beside_torch(other)

    def same_beside_torch(self, other: RandomState) -> bool:
        """Whether the generators of Python and NumPy would draw the same numbers."""
        mine, theirs = self.numpy, other.numpy
        return self.python == other.python and bool((mine[1] == theirs[1]).all()) and mine[2:] == theirs[2:]


def _numpy_random() -> ModuleType:
    from numpy import random as numpy_random

    return numpy_random


@contextlib.contextmanager
def leaving_no_trace(job: Job, *, runs: bool = True) -> Iterator[State]:
    """Put gradients aside (zeros take their place where they add up); then restore them and all that runs change.

    That is the random state, buffers, counters and other attributes of modules, what hangs on them, hooks, modules
    that a forward replaces or adds, and parameters that it writes into. Those are found in the first run; `runs` is
    False where none will take place with real parameters.
    """
    runs = runs and not any(isinstance(p, FakeTensor) for p in job.whole.parameters())
    finds = runs and not job.knows_written
    job.knows_written = job.knows_written or runs
    with finding_written(job.whole) if finds else contextlib.nullcontext():
        versions = ParameterVersions(job.whole) if runs and not (finds or job.stepped) else None
        with _put_back_afterwards(job) as before:
            yield before
        if versions is not None:
            versions.refuse_changes()


@contextlib.contextmanager
def _put_back_afterwards(job: Job) -> Iterator[State]:
    random_state, before = RandomState.now(), State.now(Watch(job.whole, ALL_OBJECTS))
    gradients = [(p, p.grad) for p in job.whole.parameters()]
    trees = [(module._modules, dict(module._modules)) for module in job.whole.modules()]
    try:
        for parameter, gradient in gradients:
            parameter.grad = _gradient_to_begin_with(job, parameter, gradient)
        torch.clear_autocast_cache()  # a run within the user's autocast casts weights itself, as a step of theirs does
        with without_gradients([leaf for each in job.leaves if (leaf := each()) is not None]):
            yield before
    finally:
        torch.clear_autocast_cache()
        for parameter, gradient in gradients:
            parameter.grad = gradient
        for tree, content in trees:
            lay(tree, content)
        before.hooks.remember_added()
        before.lay()
        random_state.put_back()


@contextlib.contextmanager
def without_gradients(leaves: list[torch.Tensor]) -> Iterator[None]:
    """Within, leaves begin without a gradient; then they have their own again."""
    read: Any = torch._C.TensorBase.grad  # not noticed by what watches the program read its gradients
    own = [(leaf, read.__get__(leaf)) for leaf in leaves]
    try:
        for leaf, gradient in own:
            if gradient is not None:
                leaf.grad = None
        yield
    finally:
        for leaf, gradient in own:
            if read.__get__(leaf) is not gradient:
                leaf.grad = gradient


@torch.no_grad()
def _gradient_to_begin_with(
    job: Job, parameter: torch.nn.Parameter, gradient: torch.Tensor | None
) -> torch.Tensor | None:
    if not _begins_with_gradient(job, parameter):
        return None
    if gradient is not None and id(parameter) in job.lent:
        return gradient.zero_()
    return torch.zeros_like(parameter)


def _begins_with_gradient(job: Job, parameter: torch.Tensor) -> bool:
    """Whether the gradient of an earlier step is there when a step begins."""
    return parameter.requires_grad and (job.accumulates or id(parameter) in job.never_cleared)


def gradient_bytes_there(job: Job) -> int:
    """Bytes of the gradients that are there when a step begins."""
    return storage_bytes([p for p in job.whole.parameters() if _begins_with_gradient(job, p)])


def gradient_bytes_in_passing(job: Job) -> int:
    """The most that new gradients of one module take before they are added to those that are there."""
    own = [[p for p in m.parameters(recurse=False) if _begins_with_gradient(job, p)] for m in job.whole.modules()]
    return max(map(storage_bytes, own), default=0)


def tensors_of(value: object) -> list[torch.Tensor]:
    """Every tensor in a nest of containers."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def storage_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of the storages under some tensors, each counted once."""
    found = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(found.values())


def hanging_bytes(model: torch.nn.Module, batch: object = None, optimizer: torch.optim.Optimizer | None = None) -> int:
    """Bytes of tensors that hang on a model, in lists, objects and caches as well, beside what is counted elsewhere.

    That is its parameters, its buffers, the batch, and the state of its optimizer, which may hang on the model as well.
    What the optimizer has beside its state, and what hooks of both carry with them, hangs on the model too.
    """
    counted, hanging = _counted_and_hanging(model, batch, optimizer)
    return sum(num_bytes for key, num_bytes in hanging.items() if key not in counted)


def bytes_from_elsewhere(job: Job, read: dict[int, int]) -> int:
    """Of what a step read, by address, what hangs nowhere: a mask in a global, a table that a function closes over."""
    if job.counts_everything:
        return 0
    counted, hanging = _counted_and_hanging(job.whole, job.batch, job.optimizer)
    return sum(size for address, size in read.items() if address and address not in counted and address not in hanging)


def _counted_and_hanging(
    model: torch.nn.Module, batch: object, optimizer: torch.optim.Optimizer | None
) -> tuple[dict[int, int], dict[int, int]]:
    watch = Watch(model, ALL_OBJECTS)
    state = [] if optimizer is None else tensors_of([dict(each) for each in optimizer.state.values()])
    counted = storages_of([*watch.parameters(), *watch.buffers(), *tensors_of(batch), *state])
    hanging = [tensor for tensor, _ in watch.attributes().tensors]
    return counted, storages_of([*hanging, *tensors_beside_state(watch.parameters(), optimizer)])


def storages_of(tensors: Iterable[torch.Tensor], device: torch.device | None = None) -> dict[int, int]:
    """Address and bytes of every storage that lies in memory, on one kind of device or on any; the rest have none."""
    found: dict[int, int] = {}
    for tensor in tensors:
        is_there = tensor.layout == torch.strided and not tensor.is_meta and not isinstance(tensor, FakeTensor)
        if is_there and (device is None or tensor.device.type == device.type):
            # ValueError: lazy parameters; the others: those that torch.func makes.
            with contextlib.suppress(RuntimeError, NotImplementedError, ValueError):
                storage = tensor.untyped_storage()
                if address := storage.data_ptr():
                    found[address] = storage.nbytes()
    return found


# How does what a user's function built become a job, and is everything in order before the slow part?


def build_job(training: LiveTraining, name: str) -> Job:
    """A job from a training: its own step where it has one, else forward, loss and backward."""
    if training.model is None or training.optimizer is None:
        raise UsageError(
            f"{name} builds a step, but no model to change",
            hint="return (model, optimizer, loss, batch), or a Training with a model",
        )
    if training.step is None:
        return job_of(training.model, training.batch, training.loss, training.optimizer, name)
    return job_of_step(training, name)


def check_output(path: str, force: bool) -> None:
    """Refuse to replace a file before anything slow is done."""
    if Path(path).exists() and not force:
        raise RunExists(f"{path} is there already", hint="--force replaces it, -o chooses another name")
    if not Path(path).absolute().parent.is_dir():
        raise UsageError(f"{path} cannot be written", found="no such folder", hint="choose another path")


def set_threads(num_threads: int | None) -> None:
    """Fix the number of threads, where one was given."""
    if num_threads is not None:
        torch.set_num_threads(num_threads)
