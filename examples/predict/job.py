"""A training as a function: model, optimizer, loss and one batch. `device` is where memfit wants them."""

import torch
from torch import nn


def make(batch_size: int = 32, width: int = 1024, device: str = "cpu"):
    layers = [layer for _ in range(8) for layer in (nn.Linear(width, width), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(width, 10)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    images = torch.randn(batch_size, width, device=device)
    labels = torch.randint(10, (batch_size,), device=device)
    return model, optimizer, nn.functional.cross_entropy, (images, labels)
