"""What is trained here? Three small models: the cost of a tool per operator shows most where operators are small."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

Batch = tuple[torch.Tensor, torch.Tensor]


class Training:
    """A model, its optimizer and one batch; `step` is one whole training step."""

    def __init__(self, name: str) -> None:
        torch.manual_seed(0)
        torch.set_num_threads(1)
        wanted_ms = WANTED_MS.get(name)
        self.model, self.batch = MODELS[name]() if wanted_ms is None else (_mlp_of(WIDTHS[name]), mlp_batch(8))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.loss = nn.CrossEntropyLoss()
        if wanted_ms is not None:
            self._grow_the_batch(wanted_ms / 1e3)

    def _grow_the_batch(self, wanted_seconds: float) -> None:
        """Give a step as many rows as make it take this long on this machine."""
        num_rows = 8
        while (seconds := self.step_seconds()) < 0.9 * wanted_seconds and num_rows < MOST_ROWS:
            num_rows = min(max(num_rows + 8, int(num_rows * min(wanted_seconds / seconds, 1.5))), MOST_ROWS)
            self.batch = mlp_batch(num_rows)

    def step_seconds(self) -> float:
        """What a step takes now: the median of a few."""
        times = [time.perf_counter()]
        for _ in range(30):
            self.step()
            times.append(time.perf_counter())
        return statistics.median(after - before for before, after in itertools.pairwise(times))

    def step(self, batch: Batch | None = None) -> None:
        """Forward, backward, update."""
        inputs, labels = batch or self.batch
        self.optimizer.zero_grad()
        self.loss(self.model(inputs), labels).backward()
        self.optimizer.step()


def mlp_batch(num_rows: int) -> Batch:
    """A batch shaped like MNIST."""
    return torch.randn(num_rows, 784), torch.randint(0, 10, (num_rows,))


def _mlp_of(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))


def _mlp() -> tuple[nn.Module, Batch]:
    return _mlp_of(512), mlp_batch(64)


class _Encoder(nn.Module):
    """Two transformer layers over 64 tokens, and a classifier of their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, 128)
        layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(128, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.embedding(tokens)).mean(dim=1))


def _transformer() -> tuple[nn.Module, Batch]:
    return _Encoder(), (torch.randint(0, 1000, (8, 64)), torch.randint(0, 10, (8,)))


def _convolution(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 3, stride, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]


def _conv_net() -> tuple[nn.Module, Batch]:
    blocks = [*_convolution(3, 32, 1), *_convolution(32, 64, 2), *_convolution(64, 64, 2)]
    model = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    return model, (torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,)))


WANTED_MS = {"mlp, 1 ms": 1.0, "mlp, 2 ms": 2.0, "mlp, 5 ms": 5.0, "mlp, 50 ms": 50.0}
"""Step lengths: the same network, as wide as here, with as many rows as the length needs on this machine."""
WIDTHS = {"mlp, 1 ms": 48, "mlp, 2 ms": 96, "mlp, 5 ms": 256, "mlp, 50 ms": 512}
MOST_ROWS = 16384
MODELS: dict[str, Callable[[], tuple[nn.Module, Batch]]] = {
    "mlp": _mlp,
    "transformer": _transformer,
    "conv net": _conv_net,
}
