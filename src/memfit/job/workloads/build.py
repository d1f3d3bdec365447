"""Makes a training of a model and a batch: optimizer, precision, gradient accumulation, clipping."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from memfit.errors import UsageError
from memfit.job.recipes.torch_optimizers import make_optimizer
from memfit.job.recipes.torch_step import PRECISIONS, with_step
from memfit.job.training import StepOptions, Training


def make_training(
    model: torch.nn.Module,
    batch: Any,
    loss: Callable[..., Any] | None,
    *,
    optimizer: str = "adam",
    lr: float = 1e-3,
    precision: str = "fp32",
    accumulate: int = 1,
    clip: float = 0.0,
    set_to_none: bool = True,
    channels_last: bool = False,
) -> Training:
    """A training whose step uses autocast, gradient accumulation and clipping as asked for."""
    if precision not in PRECISIONS:
        raise UsageError(f"there is no precision {precision!r}", hint=", ".join(PRECISIONS))
    if channels_last:
        model = model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        batch = (batch[0].to(memory_format=torch.channels_last), *batch[1:])
    chosen = make_optimizer(optimizer, model, lr)
    training = Training(model=model, optimizer=chosen, loss=loss, batch=batch)
    options = StepOptions(precision=precision, accumulate=accumulate, clip=clip, set_to_none=set_to_none)
    return with_step(training, options)
