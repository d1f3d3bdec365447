"""Runs a job on fake tensors and records its storages.

Everything is stacked in one place: the fake mode at the bottom (fallback kernels refused: they would run for real),
above it the mode that answers questions for values, on top the tracker. One step creates optimizer states, the
second is the steady state.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import _disable_current_modes

from memfit.job.training import Training, as_training, plain_step
from memfit.predict.fake.kernels.ctc import note_states
from memfit.predict.fake.kernels.fast_path import fast_path
from memfit.predict.fake.kernels.not_followed import note_gradient_by_zeros
from memfit.predict.fake.patches.allowed_operators import ChoosyFakeMode
from memfit.predict.fake.patches.fake_mode import blind_libraries, patched
from memfit.predict.fake.values.packed_sequences import RECIPES, note_packing
from memfit.predict.fake.values.values import Shadow
from memfit.predict.lengths import Survey
from memfit.predict.observe import own_threads
from memfit.predict.observe.flops_and_bytes import WorkCounter
from memfit.predict.observe.known_values import shadow_of
from memfit.predict.observe.later.recorded_models import RecordedModels
from memfit.predict.observe.phase_and_module import Places
from memfit.predict.observe.storage_log import TraceLog
from memfit.predict.observe.storage_tracker import Signer, Tracker, tensors_in
from memfit.predict.ranks.expert_routing import Routing
from memfit.predict.ranks.torch_rank_listener import RankFacts
from memfit.records.prediction import Assumption


@dataclass(slots=True)
class Trace:
    """What one traced run left behind."""

    log: TraceLog
    root_names: list[str]
    num_steps: int
    num_operators: int
    seconds: float
    assumptions: list[Assumption] = field(default_factory=list)
    route: str = "fake cpu"
    optimizer: str = ""
    """Class of the optimizer that stepped first."""
    half_flops: float = 0.0
    single_flops: float = 0.0
    moved_bytes: float = 0.0
    num_calls: int = 0
    """Work of the last whole step."""
    data_bytes: int = 0
    """What the job's data set will hold in memory of the host."""
    survey: Survey | None = None
    """The batches of an epoch, where they were chosen."""


class Recording:
    """The modes and hooks of one traced run; a step counter that others may listen to."""

    def __init__(
        self,
        sign: Signer | None = None,
        *,
        truth: bool = True,
        answers: Mapping[str, float] | None = None,
        allow_real: tuple[str, ...] = (),
        gemm_workspace_bytes: int = 0,
        mail: Mapping[str, str] | None = None,
        routing: Routing | None = None,
    ) -> None:
        self.places = Places()
        self.facts = RankFacts(mail)
        self.mode = ChoosyFakeMode(allow_real)
        self.shadow = Shadow(self.places.line, truth, answers, routing)
        self.shadow.has_probes = sign is not None
        self.tracker = Tracker(self.places, sign, gemm_workspace_bytes)
        self.tracker.scratch_notes += [note_packing, note_states, partial(note_gradient_by_zeros, self.shadow.note)]
        self.tracker.left_whole.update(RECIPES)
        self.tracker.recipe_of = fast_path
        self.on_update: Callable[[Optimizer], None] | None = None
        self.on_root: Callable[[object], None] | None = None
        self._work: WorkCounter | None = None
        self.num_updates: dict[int, int] = {}
        """Updates by the number of an optimizer."""
        self._optimizers: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._numbers = itertools.count()
        self._optimizer = ""
        self._blinded = contextlib.ExitStack()
        self.recorded_models = RecordedModels()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Within, every tensor made is fake and followed."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(patched(self.mode, self.shadow))
            stack.enter_context(self._hooked())
            stack.enter_context(self.places.follow_modules(self._enter_root))
            stack.enter_context(own_threads.followed(self._followed_here))
            stack.enter_context(self._followed_here())
            yield
            self.tracker.release()

    @contextlib.contextmanager
    def _followed_here(self) -> Iterator[None]:
        """Within, every tensor that this thread makes is fake and followed."""
        with contextlib.ExitStack() as stack:
            with self.tracker.turn:
                for mode in (self.mode, self.shadow, self.tracker):
                    stack.enter_context(mode)
                # a backward in threads of its own would leave the modes, and hooks there would make real tensors
                stack.enter_context(torch.autograd.set_multithreading_enabled(False))
            yield

    def finish(self, seconds: float) -> Trace:
        """Close the log."""
        num_steps = max(self.num_updates.values(), default=0)
        work = self._work or self.tracker.work
        return Trace(
            self.tracker.log, self.places.root_names(), num_steps, self.tracker.num_operators, seconds,
            self.shadow.assumptions(), optimizer=self._optimizer,
            half_flops=work.half_flops, single_flops=work.single_flops, moved_bytes=work.moved_bytes,
            num_calls=work.num_calls,
        )  # fmt: skip

    def keep_work(self) -> None:
        """The work counted so far is that of the last whole step."""
        self._work = copy.copy(self.tracker.work)

    def number_of(self, optimizer: Optimizer) -> int:
        """A number for each optimizer, given to no other when it is gone."""
        if optimizer not in self._optimizers:
            self._optimizers[optimizer] = next(self._numbers)
        return self._optimizers[optimizer]

    def optimizers(self) -> list[Optimizer]:
        """Those that the job still holds."""
        return list(self._optimizers)

    def living_optimizers(self) -> set[int]:
        """The numbers of those that the job still holds."""
        return set(self._optimizers.values())

    # ---- hooks -------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _hooked(self) -> Iterator[None]:
        before = register_optimizer_step_pre_hook(self._before_update)
        after = register_optimizer_step_post_hook(self._after_update)
        zero_grad: Callable[..., None] = Optimizer.zero_grad
        get_rng_state, set_rng_state = torch.get_rng_state, torch.set_rng_state
        recording = self

        def zeroing(self: Optimizer, *args: object, **kwargs: object) -> None:
            recording._claim_gradients(self)
            zero_grad(self, *args, **kwargs)

        def rng_state() -> torch.Tensor:  # a generator's state never passes the dispatcher
            state = get_rng_state()
            recording.tracker.see(state, "get_rng_state")
            return state

        def put_back(state: torch.Tensor) -> None:  # one out of a checkpoint, or moved, is fake by now
            known = shadow_of(state) if isinstance(state, FakeTensor) else state
            if known is not None:
                with _disable_current_modes():
                    set_rng_state(known)

        Optimizer.zero_grad, torch.get_rng_state = zeroing, rng_state
        try:
            with (
                patch.object(torch, "set_rng_state", put_back),
                patch.object(torch.random, "set_rng_state", put_back),
                self._storages_followed(),
                self._blinded,
            ):
                yield
        finally:
            Optimizer.zero_grad, torch.get_rng_state = zero_grad, get_rng_state
            before.remove()
            after.remove()

    @contextlib.contextmanager
    def _storages_followed(self) -> Iterator[None]:
        """Resizing a storage never passes the dispatcher either."""
        original = torch.UntypedStorage.resize_
        tracker = self.tracker

        def resize(self: torch.UntypedStorage, size: int) -> object:
            result = original(self, size)
            tracker.note_storage_size(self)
            return result

        with patch.object(torch.UntypedStorage, "resize_", resize, create=True):
            yield

    def _before_update(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        self._claim_gradients(optimizer)
        self.places.forced = "update"

    def _after_update(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        self._optimizer = self._optimizer or type(optimizer).__name__
        for parameter, state in optimizer.state.items():
            self.tracker.claim_all(state, "optimizer state", beside=parameter)
        self.places.forced = None
        number = self.number_of(optimizer)
        self.num_updates[number] = self.num_updates.get(number, 0) + 1
        if self.on_update is not None:
            self.on_update(optimizer)

    def _claim_gradients(self, optimizer: Optimizer) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self.tracker.see(parameter, "given", "parameter")
                if parameter.grad is not None:
                    self.tracker.see(parameter.grad, "given", "gradient")

    def _enter_root(self, module: torch.nn.Module, inputs: object) -> None:
        """An outermost module is called: its parameters, buffers and inputs say what they are."""
        if (
            self.on_root is not None
            and self.places.forced != "data"
            and next(iter(module.parameters()), None) is not None
        ):
            self.on_root(inputs)  # neither a transform of the data nor a loss or a metric is an evaluation
        if not self.places.knows_root(module):
            blind_libraries(self._blinded)
            self._claim_module(module)
        for tensor in tensors_in(inputs):
            if tensor.grad_fn is None and not tensor.requires_grad:
                self.tracker.see(tensor, "given", "input")

    def _claim_module(self, module: torch.nn.Module) -> None:
        """Parameters and buffers belong to the module that holds them."""
        root = self.places.root_of(module)
        for path, child in module.named_modules():
            # not child.parameters(recurse=False): a script may have a method `parameters` of its own
            self.tracker.claim_all(list(child._parameters.values()), "parameter", place=(root, path))
            self.tracker.claim_all(list(child._buffers.values()), "buffer", place=(root, path))


def trace_training(
    build: Callable[[], object], *, num_steps: int = 2, recording: Recording, origin: str = "the job"
) -> Trace:
    """Build a job and run some steps of it, all on fake tensors."""
    started = time.perf_counter()
    places, tracker = recording.places, recording.tracker
    with recording.running():
        training = as_training(build(), origin)
        tracker.claim_all(training.batch, "input")
        step = plain_step(training)
        for index in range(num_steps):
            places.step, places.forced = index + 1, None
            tracker.work.reset()
            step()
            places.forced = "other"
        _claim_rest(training, tracker)
    trace = recording.finish(time.perf_counter() - started)
    trace.num_steps, trace.data_bytes = num_steps, training.data_bytes
    return trace


def _claim_rest(training: Training, tracker: Tracker) -> None:
    """Parameters that were never updated are parameters all the same."""
    if training.model is not None and hasattr(training.model, "parameters"):
        tracker.claim_all(list(training.model.parameters()), "parameter")
        tracker.claim_all(list(training.model.buffers()), "buffer")
