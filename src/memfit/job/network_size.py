"""Size of a network: parameters, and outputs of its layers per example; imports no torch, takes any module.

Of a fully connected network on a known data set it is computed. Of any other, outputs are counted in the first forward
pass of the training itself, by hooks on the innermost modules, which are gone when that pass is over: nothing is run
twice and nothing is held.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

FEATURES = {"mnist": 784, "fashion-mnist": 784, "cifar-10": 3072}
NUM_CLASSES = 10


def fully_connected_size(features: int, hidden: str) -> tuple[int, int]:
    """Parameters, and outputs of layers per example, of a fully connected network with these hidden widths, '64-32'."""
    widths = [features, *(int(width) for width in hidden.split("-")), NUM_CLASSES]
    num_parameters = sum(inside * outside + outside for inside, outside in pairwise(widths))
    return num_parameters, sum(widths[1:])


def known_size(workload: str, settings: Mapping[str, object]) -> dict[str, object]:
    """Parameters and activations of the workload `mlp` on a known data set; nothing for any other training."""
    data, hidden = settings.get("data"), settings.get("hidden")
    if workload != "mlp" or not isinstance(data, str) or data not in FEATURES or not isinstance(hidden, str):
        return {}
    num_parameters, num_activations = fully_connected_size(FEATURES[data], hidden)
    return {"num_parameters": num_parameters, "num_activations": num_activations}


class NetworkSize:
    """Counts a model's parameters at once, and its activations when it is first run."""

    def __init__(self, model: Any) -> None:
        self.num_parameters: int | None = None
        self.num_activations: int | None = None
        """Per example; None before the first pass, and where the model cannot be asked."""
        self._outputs = 0
        self._handles: list[Any] = []
        if hasattr(model, "parameters") and hasattr(model, "named_modules"):
            self.num_parameters = sum(parameter.numel() for parameter in model.parameters())
            self._watch(model)

    def _watch(self, model: Any) -> None:
        for _, module in model.named_modules():
            if not list(module.children()):
                self._handles.append(module.register_forward_hook(self._count))
        self._handles.append(model.register_forward_hook(self._first_pass_is_over))

    def _count(self, module: object, inputs: object, output: object) -> None:
        first: Any = output[0] if isinstance(output, (tuple, list)) and output else output
        if hasattr(first, "numel") and getattr(first, "dim", lambda: 0)() > 0 and first.shape[0]:
            self._outputs += first.numel() // first.shape[0]

    def _first_pass_is_over(self, module: object, inputs: object, output: object) -> None:
        self.num_activations = self._outputs
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def known(self) -> dict[str, float]:
        """What is known, by the names a study keeps it under."""
        sizes = {"num_parameters": self.num_parameters, "num_activations": self.num_activations}
        return {name: float(value) for name, value in sizes.items() if value is not None}
