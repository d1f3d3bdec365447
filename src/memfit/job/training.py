"""The description of one training step that every way of building a job ends in; imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from memfit.errors import UsageError

Step = Callable[[], Any]
Feed = Callable[[int], Iterable[Any]]
"""From the number of an epoch to its batches."""
Evaluate = Callable[[], dict[str, float]]
"""Named metrics on held-out examples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOptions:
    """How one step is put together out of model, optimizer, loss and batch."""

    precision: str = "fp32"
    """'bf16' or 'fp16' for autocast; float16 has a gradient scaler where that can be had."""
    accumulate: int = 1
    """Backwards over the whole batch before a step."""
    num_parts: int = 1
    """Equal parts that a batch is cut into, with a backward each."""
    clip: float = 0.0
    """The norm that gradients are clipped to; 0 for none."""
    set_to_none: bool = True
    """Whether gradients are dropped after the step."""
    offload_activations: bool = False
    """Whether what the backward needs waits for it in host memory."""


@dataclass(slots=True, kw_only=True)
class Training:
    """A model, its optimizer, its loss and one batch; `step` overrides how they are put together."""

    model: Any = None
    optimizer: Any = None
    loss: Callable[..., Any] | None = None
    """loss(model(inputs), targets) for a batch of two, loss(outputs, batch) for a dictionary, loss(outputs) for one
    tensor; without it, outputs.loss or the outputs themselves."""
    batch: Any = None
    step: Step | None = None
    options: StepOptions | None = None
    """How `step` was put together; None where it is the job's own, which cannot be put together in another way."""
    feed: Feed | None = None
    """Where further batches come from; without it every step sees the one batch. Nothing is read before it is
    called."""
    evaluate: Evaluate | None = None
    on_loss: Callable[[Any], None] | None = None
    """Called with the loss of every forward pass. Whoever runs the training sets it and keeps the number only: a
    step that returned its loss would keep a tensor alive through the update."""
    data: str = ""
    """The data set, as the user named it; empty when the batch is all there is."""
    data_bytes: int = 0
    """What the data set will hold in memory once the feed is called."""


@dataclass(slots=True, kw_only=True)
class Fitting:
    """A training that is no neural network: it can be run and measured, not predicted."""

    name: str
    step: Step
    """One round of fitting; returns a training loss where there is one."""
    num_rounds: int = 1
    """Rounds after which it is done."""
    evaluate: Evaluate | None = None
    data: str = ""


def as_training(built: object, origin: str) -> Training:
    """Read what a user's function returned: a Training, a step function, or model, optimizer, loss and batch."""
    if isinstance(built, Training):
        return built
    if isinstance(built, dict) and {"model", "optimizer", "batch"} <= built.keys():
        known: dict[str, Any] = {
            name: built.get(name) for name in ("model", "optimizer", "loss", "batch", "step", "feed", "evaluate")
        }
        return Training(**known)
    if isinstance(built, (tuple, list)) and len(built) == 4:
        model, optimizer, loss, batch = built
        return Training(model=model, optimizer=optimizer, loss=loss, batch=batch)
    if isinstance(built, Fitting):
        raise UsageError(
            f"{origin} is no neural network: its memory can be measured, not predicted",
            found=built.name,
            hint=f"memfit measure -- python -m memfit.job.run {origin}",
        )
    if callable(built) and not hasattr(built, "named_modules"):
        return Training(step=built)
    raise UsageError(
        f"{origin} did not return a training",
        found=type(built).__name__,
        hint="return (model, optimizer, loss, batch), a Training, or a step function without arguments",
    )


def plain_step(training: Training) -> Step:
    """Forward, loss, backward, update, gradients dropped: the loop everybody writes."""
    if training.step is not None:
        return training.step
    model, optimizer = training.model, training.optimizer

    def step() -> None:
        loss_of(training).backward()
        optimizer.step()
        optimizer.zero_grad()

    if model is None or optimizer is None:
        raise UsageError(
            "the training has no model or no optimizer", hint="return all four of model, optimizer, loss, batch"
        )
    check_steps(optimizer)
    return step


def check_steps(optimizer: object) -> None:
    """Refuse what cannot step, such as the two optimizers of a GAN in a list: their order is the job's own."""
    if not callable(getattr(optimizer, "step", None)):
        raise UsageError(
            "the training's optimizer cannot step", found=type(optimizer).__name__,
            hint="return one optimizer; with several, a step function that steps each in its turn",
        )  # fmt: skip


def loss_of(training: Training) -> Any:
    """One forward pass up to the loss."""
    value = _forward(training)
    if training.on_loss is not None:
        training.on_loss(value)
    return value


def _forward(training: Training) -> object:
    batch = training.batch
    if isinstance(batch, dict) or hasattr(batch, "keys"):
        outputs = training.model(**batch)
        return outputs.loss if training.loss is None else training.loss(outputs, batch)
    if not isinstance(batch, (tuple, list)):
        outputs = training.model(batch)
        return outputs if training.loss is None else training.loss(outputs)
    if len(batch) != 2:
        raise UsageError(
            "this batch cannot be given to a model",
            found=f"{len(batch)} parts",
            hint="return inputs, (inputs, targets) or a dictionary as the batch, or a step function",
        )
    inputs, targets = batch
    outputs = training.model(inputs)
    return outputs if training.loss is None else training.loss(outputs, targets)
