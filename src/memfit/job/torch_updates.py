"""One training step by any optimizer: plain, with a closure, with a graph of the gradients, or in the backward."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any, Literal

import torch

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
