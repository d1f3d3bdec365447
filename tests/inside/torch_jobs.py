"""Small training programs whose memory is known, and the allocator's own account of it."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

torch.set_num_threads(1)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed, _ = self.attention(x, x, x, need_weights=False)
        x = self.norm(x + mixed)
        return x + self.feed(x)


class Transformer(nn.Module):
    def __init__(self, *, checkpointed: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(1000, 64)
        self.blocks = nn.ModuleList(Block(64) for _ in range(3))
        self.head = nn.Linear(64, 1000)
        self.checkpointed = checkpointed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)  # pyright: ignore[reportAssignmentType]
        return self.head(x)


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


def train_mlp(*, steps: int = 3, batch: int = 512, accumulate: int = 1, optimizer: str = "Adam", **options) -> None:
    model = mlp()
    x, y = torch.randn(batch, 256), torch.randint(0, 10, (batch,))
    _train(lambda: (model(x), y), model, steps, accumulate, optimizer, options)


def train_transformer(
    *, steps: int = 3, checkpointed: bool = False, accumulate: int = 1, optimizer: str = "Adam"
) -> None:
    model = Transformer(checkpointed=checkpointed)
    x = torch.randint(0, 1000, (8, 64))
    _train(lambda: (model(x).flatten(0, 1), x.flatten()), model, steps, accumulate, optimizer, {})


def train_tied(*, steps: int = 2) -> None:
    """The gradients of one weight used three times accumulate into new tensors: views are never reused."""
    model = nn.Linear(512, 512, bias=False)
    x, y = torch.randn(4, 512), torch.randint(0, 512, (4,))
    _train(lambda: (model(model(model(x))), y), model, steps, 1, "SGD", {})


def train_branching(*, steps: int = 2) -> None:
    """The gradients of one wide tensor from three branches accumulate in place, were no dispatch mode active."""
    model = nn.Linear(16, 256)
    x, y, narrow = torch.randn(4096, 16), torch.randint(0, 4, (4096,)), torch.ones(256, 4)

    def forward() -> tuple[torch.Tensor, torch.Tensor]:
        wide = model(x).relu()
        return wide @ narrow + wide @ narrow + wide @ narrow, y

    _train(forward, model, steps, 1, "SGD", {})


def _train(forward: Callable, model: nn.Module, steps: int, accumulate: int, optimizer: str, options: dict) -> None:
    updates = getattr(torch.optim, optimizer)(model.parameters(), lr=1e-3, **options)
    for _ in range(steps):
        updates.zero_grad()
        for _ in range(accumulate):
            nn.functional.cross_entropy(*forward()).backward()
        updates.step()


def allocator_peak_bytes(job: Callable[[], None]) -> int:
    """The largest running sum of the allocator's own events; no dispatch mode is on while they are taken.

    What earlier tests left to the garbage collector is collected first: freed in between, it would count as negative.
    """
    gc.collect()
    with _quiet(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        job()
    live = peak = 0
    assert profiler.profiler is not None
    results: Any = profiler.profiler.kineto_results
    for event in results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    return peak


@contextlib.contextmanager
def _quiet():
    """The profiler writes to the standard error of the process, not of Python."""
    kept = os.dup(2)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(null)
