"""A small convolutional network with batch normalisation on square images."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from memfit.job.torch_training import make_training
from memfit.job.training import Training


def build_cnn(
    *,
    batch_size: int = 64,
    size: int = 32,
    width: int = 32,
    blocks: int = 3,
    classes: int = 10,
    device: str = "cpu",
    **recipe: Any,
) -> Training:
    """Blocks of two convolutions, each halving the image and doubling the width."""
    layers: list[nn.Module] = []
    channels = 3
    for index in range(blocks):
        outside = width * 2**index
        for inside in (channels, outside):
            layers += [nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU()]
        layers.append(nn.MaxPool2d(2))
        channels = outside
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]
    model = nn.Sequential(*layers, *head).to(device)
    images = torch.randn(batch_size, 3, size, size, device=device)
    labels = torch.randint(0, classes, (batch_size,), device=device)
    return make_training(model, (images, labels), nn.functional.cross_entropy, **recipe)
