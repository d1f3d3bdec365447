"""A training as a function: model, optimizer, loss and one batch. `device` is where memfit wants them."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


def make(batch_size: int = 256, width: int = 256, device: str = "cpu"):
    model = nn.Sequential(*[Block(width) for _ in range(4)], nn.Linear(width, 10)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(batch_size, width, device=device), torch.randint(10, (batch_size,), device=device)
    return model, optimizer, nn.functional.cross_entropy, batch
