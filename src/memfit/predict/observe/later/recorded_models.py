"""Models whose graph TorchScript records: in a real run what it records hangs in reference cycles, and holds the model.

A prediction leaves `torch.jit.trace` out, so that a model which was traced goes with its last name. In a real run it
stays, with its gradients, until Python's garbage collector comes by: beside the models of later trainings.
"""

from __future__ import annotations

import weakref
from functools import partial

import torch

from memfit.units import format_bytes

LIVES_ON = (
    "a model whose graph was recorded (torch.jit.trace, TensorBoard's add_graph) was given up before another training: "
    "in a real run up to {size} of it live on until Python's garbage collector comes by"
)


class RecordedModels:
    """Remembers how much of recorded models was given up, and whether a training began after it."""

    def __init__(self) -> None:
        self._given_up_bytes = self.beside_bytes = 0

    def recorded(self, model: object) -> None:
        """The graph of a model was asked for."""
        if isinstance(model, torch.nn.Module):
            num_bytes = 2 * sum(parameter.nbytes for parameter in model.parameters())
            weakref.finalize(model, partial(self._gone, num_bytes)).atexit = False

    def _gone(self, num_bytes: int) -> None:
        self._given_up_bytes += num_bytes

    def training_begins(self) -> None:
        """An optimizer is made."""
        self.beside_bytes = self._given_up_bytes

    def text(self, negligible_bytes: float) -> str:
        """What there is to say; empty where nothing that matters lives on."""
        return LIVES_ON.format(size=format_bytes(self.beside_bytes)) if self.beside_bytes > negligible_bytes else ""
