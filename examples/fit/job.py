"""A training as a function; most of its memory is activations, so there is something to recompute."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(nn.functional.gelu(self.first(x)))


def make(batch_size: int = 2048, width: int = 128, layers: int = 8):
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(width) for _ in range(layers)), nn.Linear(width, 10))
    batch = torch.randn(batch_size, width), torch.randint(10, (batch_size,))
    return model, torch.optim.AdamW(model.parameters()), nn.functional.cross_entropy, batch
