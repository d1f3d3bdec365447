"""What is trained here? Three small models: the cost of a tool per operator shows most where operators are small."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

Batch = tuple[torch.Tensor, torch.Tensor]


class Training:
    """A model, its optimizer and one batch; `step` is one whole training step."""

    def __init__(self, name: str) -> None:
        torch.manual_seed(0)
        torch.set_num_threads(1)
        self.model, self.batch = MODELS[name]()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.loss = nn.CrossEntropyLoss()

    def step(self, batch: Batch | None = None) -> None:
        """Forward, backward, update."""
        inputs, labels = batch or self.batch
        self.optimizer.zero_grad()
        self.loss(self.model(inputs), labels).backward()
        self.optimizer.step()


def mlp_batch(num_rows: int) -> Batch:
    """A batch shaped like MNIST."""
    return torch.randn(num_rows, 784), torch.randint(0, 10, (num_rows,))


def _mlp() -> tuple[nn.Module, Batch]:
    model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    return model, mlp_batch(64)


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


MODELS: dict[str, Callable[[], tuple[nn.Module, Batch]]] = {
    "mlp": _mlp,
    "transformer": _transformer,
    "conv net": _conv_net,
}
