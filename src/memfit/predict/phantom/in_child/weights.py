"""Builds large models on the host without time or memory where the values of their weights are not read.

Kernels do nothing, so the values of weights cannot matter on the device. A large tensor on the host that is never
written takes no memory: its pages are never touched. So random initialisation of large host tensors is skipped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from unittest.mock import patch

import torch

LARGE_ELEMENTS = 1 << 16
RANDOM = ("normal_", "uniform_", "exponential_", "log_normal_", "cauchy_")
INITIALISERS = ("trunc_normal_", "orthogonal_", "sparse_", "dirac_")


class SkippedWeights:
    """Counts what was left uninitialised."""

    def __init__(self) -> None:
        self.count = 0

    @contextlib.contextmanager
    def skipping(self) -> Iterator[None]:
        """Within, large floating host tensors are left as they are."""
        with contextlib.ExitStack() as stack:
            for name in RANDOM:
                stack.enter_context(patch.object(torch.Tensor, name, self._unless_large(getattr(torch.Tensor, name))))
            for name in INITIALISERS:
                stack.enter_context(patch.object(torch.nn.init, name, self._unless_large(getattr(torch.nn.init, name))))
            yield

    def _unless_large(self, original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def fill(tensor: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
            if tensor.device.type == "cpu" and tensor.is_floating_point() and tensor.numel() >= LARGE_ELEMENTS:
                self.count += 1
                return tensor
            return original(tensor, *args, **kwargs)

        return fill
