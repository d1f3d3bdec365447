"""Training step in plain torch: autocast, gradient scaler, accumulation, clipping and offloaded activations.

One training step by any optimizer: plain, with a closure, with a graph of the gradients, or in the backward.
"""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Literal

import torch

from memfit.errors import UsageError
from memfit.job.training import StepOptions, Training, loss_of

PRECISIONS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def with_step(training: Training, options: StepOptions) -> Training:
    """The training with a step that is put together as the options say."""
    training.options = options
    training.step = _TrainingStep(training, options)
    kind = update_kind(training.optimizer) if isinstance(training.optimizer, torch.optim.Optimizer) else "plain"
    if kind != "plain":
        _refuse_own_loop(training, options)
        training.step = training.step.as_the_optimizer_wants
    return training


def _refuse_own_loop(training: Training, options: StepOptions) -> None:
    """An optimizer that asks for the loss itself leaves no place between backward and update."""
    asked = {
        "accumulate": options.accumulate > 1 or options.num_parts > 1,
        "clip": bool(options.clip),
        "precision=fp16, which is scaled": PRECISIONS[options.precision] is torch.float16,
    }
    found = [name for name, is_asked in asked.items() if is_asked]
    if found:
        what = f"{type(training.optimizer).__name__} computes loss and gradients inside of its step"
        raise UsageError(what, found=", ".join(found), hint="leave these out, or take another optimizer")


class _TrainingStep:
    """Forward and backward over every part of the batch, then the update."""

    def __init__(self, training: Training, options: StepOptions) -> None:
        self.training = training
        self.options = options
        self.kind = next(training.model.parameters()).device.type
        self.dtype = PRECISIONS[options.precision]
        self.scaler = torch.amp.GradScaler(self.kind) if self.dtype is torch.float16 else None

    def __call__(self) -> None:
        value = None  # the last loss lives until the next one is there, and through the update: the usual loop
        for _ in range(self.options.accumulate):
            for num_parts in batch_parts(self.training, self.options.num_parts):
                value = self._loss()
                value = value if num_parts == 1 else value / num_parts
                (value if self.scaler is None else self.scaler.scale(value)).backward()
        self._update()

    def as_the_optimizer_wants(self) -> None:
        """A step with a closure, with a graph of the gradients, or inside of the backward."""
        take_step(self.training.optimizer, self._loss)
        self.training.optimizer.zero_grad(set_to_none=self.options.set_to_none)

    def _loss(self) -> torch.Tensor:
        with self._autocast(), self._offloaded():
            return loss_of(self.training)

    def _autocast(self) -> AbstractContextManager[object]:
        return contextlib.nullcontext() if self.dtype is None else torch.autocast(self.kind, dtype=self.dtype)

    def _offloaded(self) -> AbstractContextManager[object]:
        if not self.options.offload_activations:
            return contextlib.nullcontext()
        return torch.autograd.graph.save_on_cpu(pin_memory=True)

    def _update(self) -> None:
        training, options = self.training, self.options
        if options.clip:
            if self.scaler is not None:
                self.scaler.unscale_(training.optimizer)
            torch.nn.utils.clip_grad_norm_(training.model.parameters(), options.clip)
        if self.scaler is not None:
            self.scaler.step(training.optimizer)
            self.scaler.update()
        else:
            training.optimizer.step()
        training.optimizer.zero_grad(set_to_none=options.set_to_none)


def batch_parts(training: Training, num_parts: int) -> Iterator[int]:
    """Put one part of the batch after the other into the training, and the whole batch back; yields their number."""
    if num_parts == 1:
        yield 1
        return
    whole = training.batch
    try:
        for part in cut_batch(whole, num_parts):
            training.batch = part
            yield num_parts
    finally:
        training.batch = whole


def cut_batch(batch: object, num_parts: int) -> Sequence[object]:
    """A batch in equal parts along its first dimension: a tensor, a tuple of tensors or a dictionary of them."""
    sizes = {len(tensor) for tensor in _tensors_in(batch)}
    size = next(iter(sizes)) if len(sizes) == 1 else 0
    if not size or size % num_parts:
        found = f"{size} examples" if size else "tensors of several lengths"
        raise UsageError(f"the batch cannot be cut into {num_parts} equal parts", found=found, hint="another number")
    length = size // num_parts
    return [map_batch(batch, partial(_slice_of, index, length)) for index in range(num_parts)]


def _slice_of(index: int, length: int, tensor: torch.Tensor) -> torch.Tensor:
    return tensor[index * length : (index + 1) * length]


def _tensors_in(batch: object) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim():
            found.append(tensor)
        return tensor

    map_batch(batch, keep)
    return found


def map_batch(batch: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same batch with every tensor of one dimension or more changed."""
    if isinstance(batch, torch.Tensor):
        return change(batch) if batch.dim() else batch
    if isinstance(batch, tuple | list):
        return type(batch)([map_batch(part, change) for part in batch])
    if hasattr(batch, "items"):
        return {name: map_batch(part, change) for name, part in batch.items()}
    return batch


UpdateKind = Literal["plain", "closure", "closure after gradients", "graph", "in backward"]
CLOSURE_AFTER_GRADIENTS = {"SAM", "LookSAM", "FriendlySAM", "BSAM"}
CLOSURE = {"AliG", "WSAM", "OrthoGrad"}
GRAPH = {"AdaHessian", "SophiaH"}
"""Classes of pytorch_optimizer 4.1, by what their `step` needs."""


def update_kind(optimizer: torch.optim.Optimizer) -> UpdateKind:
    """What a step of this optimizer needs; a wrapper needs what the wrapped one needs."""
    name = type(optimizer).__name__
    if callable(getattr(optimizer, "fused_backward", None)):
        return "in backward"
    if name in CLOSURE_AFTER_GRADIENTS:
        return "closure after gradients"
    if name in CLOSURE or _closure_is_required(optimizer):
        return "closure"
    if name in GRAPH:
        return "graph"
    inner = getattr(optimizer, "optimizer", None)
    return update_kind(inner) if isinstance(inner, torch.optim.Optimizer) else "plain"


def _closure_is_required(optimizer: torch.optim.Optimizer) -> bool:
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is closure.empty


def take_step(
    optimizer: torch.optim.Optimizer,
    loss: Callable[[], torch.Tensor],
    before_update: Callable[[], None] | None = None,
) -> None:
    """Forward, backward and update; `before_update` is called between the last two, where they are separate."""
    kind = update_kind(optimizer)
    step: Callable[..., Any] = optimizer.step  # torch's stub wants a float from a closure; losses are tensors

    @torch.enable_grad()
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    match kind:
        case "in backward":
            optimizer.fused_backward(loss(), optimizer.param_groups[0]["lr"])  # pyright: ignore[reportAttributeAccessIssue]
        case "closure":
            step(closure)
        case "closure after gradients":
            closure()
            step(closure)
        case _:
            with warnings.catch_warnings():  # the cycle it warns of ends with the gradients, after the step
                warnings.filterwarnings("ignore", message="Using backward\\(\\) with create_graph=True")
                loss().backward(create_graph=kind == "graph")
            if before_update is not None:
                before_update()
            optimizer.step()
