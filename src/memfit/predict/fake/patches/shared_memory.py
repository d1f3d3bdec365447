"""Tensors in memory that processes share: `share_memory_()` of fake tensors, and gradients that stay in one process."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor

from memfit.predict.observe.known_values import storage_of
from memfit.predict.observe.storage_tracker import Tracker


class SharedTensors:
    """Knows which storages a script has moved to shared memory, which torch's allocator does not hand out."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._shared: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    @contextlib.contextmanager
    def standing_in(self) -> Iterator[None]:
        """Within, fake tensors can be shared."""
        tensors = self

        def share(tensor: torch.Tensor) -> torch.Tensor:
            return tensors.share(tensor)

        def is_shared(tensor: torch.Tensor) -> bool:
            return tensor.device.type == "cuda" or storage_of(tensor) in tensors._shared

        with (
            patch.object(FakeTensor, "share_memory_", share, create=True),
            patch.object(FakeTensor, "is_shared", is_shared, create=True),
        ):
            yield

    def share(self, tensor: torch.Tensor) -> torch.Tensor:
        """As torch does: memory of a GPU is shared anyway, memory of the host is copied out of the allocator."""
        storage = storage_of(tensor)
        if tensor.device.type == "cpu" and storage is not None and storage not in self._shared:
            self._tracker.moves_outside(tensor)
            self._shared.add(storage)
        return tensor

    @contextlib.contextmanager
    def in_another_process(self) -> Iterator[None]:
        """Within, another process is at work: the gradients that it makes for shared parameters stay there."""
        before = {id(parameter): parameter.grad for parameter in self._parameters()}
        yield
        for parameter in self._parameters():
            parameter.grad = before.get(id(parameter))

    def _parameters(self) -> Iterator[torch.nn.Parameter]:
        """Shared parameters of all models that were called."""
        for module in self._tracker.places.living_roots():
            yield from (parameter for parameter in module.parameters() if storage_of(parameter) in self._shared)
