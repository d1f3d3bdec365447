"""Makes a training of a model and a batch: optimizer, precision, gradient accumulation, clipping."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypedDict, cast

import torch

from memfit.errors import UsageError
from memfit.job.recipes.torch_optimizers import make_optimizer
from memfit.job.recipes.torch_step import PRECISIONS, with_step
from memfit.job.training import StepOptions, Training


class RecipeSettings(TypedDict, total=False):
    """What workloads hand on to `make_training`."""

    optimizer: str
    lr: float
    precision: str
    accumulate: int
    clip: float
    set_to_none: bool
    channels_last: bool


def make_training(
    model: torch.nn.Module,
    batch: Sequence[torch.Tensor] | Mapping[str, torch.Tensor],
    loss: Callable[..., object] | None,
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
        given = cast("Sequence[torch.Tensor]", batch)
        batch = (given[0].to(memory_format=torch.channels_last), *given[1:])
    chosen = make_optimizer(optimizer, model, lr)
    training = Training(model=model, optimizer=chosen, loss=loss, batch=batch)
    options = StepOptions(precision=precision, accumulate=accumulate, clip=clip, set_to_none=set_to_none)
    return with_step(training, options)
