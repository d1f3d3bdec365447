"""Makes a training of a model and a batch: optimizer, precision, gradient accumulation, clipping."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from memfit.errors import UsageError
from memfit.job.torch_step import PRECISIONS, with_step
from memfit.job.training import StepOptions, Training

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adagrad": torch.optim.Adagrad,
    "adadelta": torch.optim.Adadelta,
    "adamax": torch.optim.Adamax,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "rmsprop": torch.optim.RMSprop,
    "rprop": torch.optim.Rprop,
    "asgd": torch.optim.ASGD,
    "adafactor": torch.optim.Adafactor,
}


def make_optimizer(name: str, parameters: Any, lr: float = 1e-3) -> torch.optim.Optimizer:
    """An optimizer by name: 'adamw', 'sgd-momentum', 'adam-amsgrad', and '-foreach', '-fused' or '-forloop'."""
    base, *words = name.lower().split("-")
    if base not in OPTIMIZERS:
        raise UsageError(
            f"there is no optimizer {name!r}", hint=f"one of {', '.join(OPTIMIZERS)}, with -foreach or -fused"
        )
    options: dict[str, Any] = {"lr": lr}
    for word in words:
        match word:
            case "foreach" | "fused" | "amsgrad":
                options[word] = True
            case "forloop":
                options["foreach"] = False
            case "momentum":
                options["momentum"] = 0.9
            case _:
                raise UsageError(
                    f"an optimizer cannot be {word!r}",
                    found=name,
                    hint="-foreach, -fused, -forloop, -momentum, -amsgrad",
                )
    return OPTIMIZERS[base](parameters, **options)


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
    chosen = make_optimizer(optimizer, model.parameters(), lr)
    training = Training(model=model, optimizer=chosen, loss=loss, batch=batch)
    options = StepOptions(precision=precision, accumulate=accumulate, clip=clip, set_to_none=set_to_none)
    return with_step(training, options)
