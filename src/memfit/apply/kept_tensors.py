"""Tensors that a plan keeps for the backward as autograd would: what is written into them in between is noticed."""

from __future__ import annotations

import torch

from memfit.model.tensors_in_arguments import version_of


class HoldTensors(torch.autograd.Function):
    """Saves tensors as autograd would, so that hooks around the model may move them, and writing is noticed."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: torch.autograd.function.FunctionCtx, _dummy: torch.Tensor, *tensors: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(*tensors)
        return torch.empty(0)

    @staticmethod
    def backward(ctx: object, *gradients: object) -> object:  # pragma: no cover
        raise AssertionError("nothing flows back through a hold")


class KeptTensor:
    """What autograd keeps in place of a tensor that is not dropped.

    Around hooks, torch hands a function's own output to them as it is, and compares no versions (read in 2.13). Kept as
    it is, such an output would hold its graph and the graph it: what no backward reaches would never be released.
    """

    __slots__ = ("tensor", "version")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor if tensor.is_leaf else tensor.detach()
        self.version = version_of(tensor)

    def find(self) -> torch.Tensor:
        """The tensor, if it was not written into since."""
        check_version(self.tensor, self.version)
        return self.tensor


def check_version(tensor: torch.Tensor, version: int) -> None:
    """Raise what autograd raises where a saved tensor was written into since."""
    if version_of(tensor) != version:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: "
            f"a tensor of shape {tuple(tensor.shape)} is at version {tensor._version}; expected version {version}"
        )
