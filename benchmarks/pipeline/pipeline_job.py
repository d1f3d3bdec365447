"""Network of eight blocks for the pipelines of `ranks.py`: model, optimizer, loss and batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.pipeline.rank_job import Block


class Net(nn.Module):
    """Blocks between an embedding and a head."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Linear(16, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(8)])
        self.head = nn.Linear(width, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def make() -> tuple[nn.Module, torch.optim.Optimizer, Callable[..., torch.Tensor], Any]:
    """A training that `memfit.run_pipeline` can cut."""
    model = Net()
    batch = torch.randn(64, 16), torch.randn(64, 16)
    return model, torch.optim.AdamW(model.parameters()), nn.functional.l1_loss, batch
