"""Small models, each with one property that a plan has to cope with."""

from __future__ import annotations

import gc
import itertools
from typing import Any

import torch
from torch import nn

from memfit.fit.tensors_alive import alive_bytes
from memfit.model.step import Job, job_of


def left_over_bytes() -> int:
    """What earlier trainings of this process keep alive: it counts in every budget of a loop."""
    gc.collect()
    return alive_bytes(torch.device("cpu"))


class NormedBlock(nn.Module):
    """BatchNorm, dropout and an in-place ReLU beside a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(width, width), nn.BatchNorm1d(width)
        self.act, self.drop = nn.ReLU(inplace=True), nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(self.act(self.norm(self.linear(x))))


class Stack(nn.Module):
    """Blocks in a ModuleList, called in a loop."""

    def __init__(self, blocks: list[nn.Module], width: int = 16) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(width, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class TupleBlock(nn.Module):
    """Returns its one tensor in a tuple, and is called with a further argument."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> tuple[torch.Tensor, None]:
        return torch.tanh(self.linear(x)) * scale, None


class TupleStack(Stack):
    """Hands the same argument to every block and unpacks what it returns."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = torch.full((1, x.shape[1]), 0.5)
        for block in self.blocks:
            x, _ = block(x, scale=scale)
        return self.head(x)


class Skipping(Stack):
    """As a U-Net: what the first half returns is read again in the second."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = []
        half = len(self.blocks) // 2
        for block in self.blocks[:half]:
            x = block(x)
            seen.append(x)
        for block in self.blocks[half:]:
            x = block(x + seen.pop())
        return self.head(x)


class Logging(Stack):
    """Reads the output of its second block for a metric, outside of autograd."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        middle = x
        for number, block in enumerate(self.blocks):
            x = block(x)
            middle = x if number == 1 else middle
        self.metric = middle.detach().mean()
        return self.head(x)


class Remembering(nn.Module):
    """Its output depends on a buffer that it changes."""

    scale: torch.Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.register_buffer("scale", torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.scale.mul_(1.5)
        return torch.tanh(self.linear(x)) * self.scale.clone()


class Drifting(nn.Module):
    """Computes something else when it is run within a backward."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        drifted = self.linear(x) * (1.5 if self._in_backward() else 1.0)
        return torch.sigmoid(torch.sin(torch.exp(torch.tanh(drifted))))

    @staticmethod
    def _in_backward() -> bool:
        return torch._C._current_graph_task_id() != -1


class Jittery(nn.Module):
    """Never twice the same, and never far from itself: multiples of the golden ratio fall evenly between two whole.

    As kernels that add in another order each time: where it is taken from, nobody can see.
    Far enough for some thirty values in single precision: with fewer, runs that are 13 apart came out the same.
    """

    turns = itertools.count()

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(x)) * (1.0 + 4e-6 * (next(self.turns) * 0.618034 % 1.0))


def normed_stack(num_blocks: int = 5, width: int = 16) -> Stack:
    torch.manual_seed(0)
    return Stack([NormedBlock(width) for _ in range(num_blocks)], width)


def job_for(model: nn.Module, batch: Any = None, width: int = 16, rows: int = 64) -> Job:
    torch.manual_seed(1)
    if batch is None:
        batch = (torch.randn(rows, width), torch.randint(0, 4, (rows,)))
    return job_of(model, batch, nn.functional.cross_entropy, torch.optim.SGD(model.parameters(), lr=0.1))
