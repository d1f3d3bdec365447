"""One rank of a pipeline: its stages of a live model, its part of the optimizer, and its steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from memfit.apply.pipeline.cut import find_stages, release_foreign
from memfit.apply.pipeline.schedule import make_schedule, make_stages
from memfit.errors import UsageError
from memfit.records.pipeline import PipelineOrder

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class PipelineRank:
    """The stages that this process holds, ready to step."""

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss, batch: object, order: PipelineOrder,
        rank: int,
    ) -> None:  # fmt: skip
        inputs, targets = checked_batch(batch, order.num_micro_batches)
        own = order.stages_of(rank)
        micro_batch = inputs[: inputs.shape[0] // order.num_micro_batches]
        parts = find_stages(model, order.starts, micro_batch)
        names = {parameter: name for name, parameter in model.named_parameters()}
        release_foreign(model, parts, own)
        self.stages = make_stages(model, parts, own, order.device)
        kept = set(dict(model.named_parameters()).values())
        self.optimizer = own_optimizer(optimizer, kept)
        self.names = {parameter: name for parameter, name in names.items() if parameter in kept}
        self.schedule: Any = make_schedule(
            self.stages, name=order.schedule, num_micro_batches=order.num_micro_batches, loss=loss, orders=order.orders
        )
        self._inputs = inputs if 0 in own else None
        self._targets = targets if parts.num_stages - 1 in own else None

    def step(self, before_update: Callable[[], None] | None = None) -> list[float]:
        """All micro-batches and the update; the losses of the micro-batches where this rank has the last stage."""
        losses: list[torch.Tensor] | None = [] if self._targets is not None else None
        given = () if self._inputs is None else (self._inputs,)
        self.schedule.step(*given, target=self._targets, losses=losses, return_outputs=False)
        if before_update is not None:
            before_update()
        if self.optimizer is not None:
            self.optimizer.step()
            self.optimizer.zero_grad()
        return [float(loss.detach()) for loss in losses or ()]

    def gradients(self) -> dict[str, torch.Tensor]:
        """The gradients of its own parameters, by the names of the whole model."""
        found = {name: parameter.grad for parameter, name in self.names.items()}
        return {name: grad.clone() for name, grad in found.items() if grad is not None}


def checked_batch(batch: object, num_micro_batches: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets as one tensor each, in whole micro-batches."""
    if not isinstance(batch, (tuple, list)) or len(batch) != 2 or not all(isinstance(b, torch.Tensor) for b in batch):
        what = "a pipeline is given a batch of one tensor of inputs and one of targets"
        raise UsageError(what, found=type(batch).__name__, hint="return (model, optimizer, loss, (inputs, targets))")
    inputs, targets = batch
    if inputs.shape[0] % num_micro_batches:
        what = f"a batch of {inputs.shape[0]} is no multiple of {num_micro_batches} micro-batches"
        raise UsageError(what, hint="another --micro-batches, or another batch size")
    if not targets.dim() or targets.shape[0] % num_micro_batches:
        shape = " x ".join(map(str, targets.shape)) or "a number"
        what = f"targets ({shape}) cannot be divided among {num_micro_batches} micro-batches"
        raise UsageError(what, found=f"{inputs.shape[0]} inputs", hint="targets with the examples in front, as inputs")
    return inputs, targets


def own_optimizer(optimizer: torch.optim.Optimizer, kept: set[nn.Parameter]) -> torch.optim.Optimizer | None:
    """The optimizer with the parameters of this rank alone; None for a rank without any."""
    if optimizer.state:
        raise UsageError("the optimizer has state already", hint="return it before its first step")
    groups = []
    for group in optimizer.param_groups:
        own = [parameter for parameter in group["params"] if parameter in kept]
        if own:
            groups.append({**group, "params": own})
    optimizer.param_groups[:] = groups
    return optimizer if groups else None
