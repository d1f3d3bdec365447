"""Work object of a finished transfer that owns its tensors, as those of gloo and NCCL do; both engines.

A transfer holds on to its tensors: gloo's as long as its work object lives, NCCL's until it is waited for. The works of
torch's fake process group hold nothing (read in torch 2.13).
"""

from __future__ import annotations

import torch
from torch._C._distributed_c10d import Work


class OwningWork(Work):
    """A finished transfer that holds its tensors until it is waited for (CUDA), or gone (CPU)."""

    def __init__(self, tensors: list[torch.Tensor], results: list[torch.Tensor]) -> None:
        super().__init__()
        self._tensors, self._results = tensors, results
        self._until_waited = any(tensor.device.type == "cuda" for tensor in tensors)

    def wait(self, timeout: object = None) -> bool:
        """At once."""
        if self._until_waited:
            self._tensors = []
        return True

    def is_completed(self) -> bool:
        """It is."""
        return True

    def is_success(self) -> bool:
        """It was."""
        return True

    def exception(self) -> None:
        """None."""

    def synchronize(self) -> None:
        """As waiting."""
        self.wait()

    def result(self) -> list[torch.Tensor]:
        """What arrived."""
        return self._results

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """What arrived, already."""
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        future.set_result(self._results)
        return future
