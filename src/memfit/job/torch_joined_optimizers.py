"""Two optimizers on one model, no optimizer at all, and which parameters are matrices of hidden layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.optim.optimizer import ParamsT


class JoinedOptimizers(torch.optim.Optimizer):
    """Several optimizers, each with its own parameters, stepped one after the other."""

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        self.parts = tuple(parts)
        super().__init__([group for part in parts for group in part.param_groups], {})

    def step(self, closure: Callable[[], object] | None = None) -> object:  # pyright: ignore[reportIncompatibleMethodOverride]
        """A step of each; the loss is computed once."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self.parts:
            part.step()
        return loss

    def state_dict(self) -> dict[str, object]:
        """The states of the parts, in order."""
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: dict[str, list[dict[str, object]]]) -> None:
        """Give each part its state back."""
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self.param_groups = [group for part in self.parts for group in part.param_groups]


class NoUpdate(torch.optim.Optimizer):
    """Leaves the parameters as they are: a training without the memory of an optimizer."""

    def __init__(self, parameters: ParamsT) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Callable[[], object] | None = None) -> object:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Computes the loss where it is asked to, and changes nothing."""
        return None if closure is None else closure()


def hidden_matrices(tensors: Sequence[torch.Tensor], model: torch.nn.Module | None) -> list[torch.Tensor]:
    """Two-dimensional weights that Muon is meant for: neither an embedding nor, below a model, its last matrix."""
    matrices = [tensor for tensor in tensors if tensor.ndim == 2]
    if model is None:
        return matrices
    tables = [m.weight for m in model.modules() if isinstance(m, (torch.nn.Embedding, torch.nn.EmbeddingBag))]
    others = {id(weight) for weight in tables}
    layers = [m.weight for m in model.modules() if isinstance(m, torch.nn.Linear)]
    others |= {id(weight) for weight in layers[-1:]}
    return [tensor for tensor in matrices if id(tensor) not in others]


def sparse_weights(model: torch.nn.Module | None) -> list[torch.Tensor]:
    """Weights of embeddings whose gradients are sparse."""
    kinds = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    modules = [] if model is None else model.modules()
    return [module.weight for module in modules if isinstance(module, kinds) and module.sparse]
