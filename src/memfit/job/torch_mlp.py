"""A stack of fully connected layers on flat inputs, such as flattened images."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import nn

from memfit.job.torch_training import make_training
from memfit.job.training import Training


def build_mlp(
    *,
    batch_size: int = 64,
    features: int = 784,
    hidden: int = 1024,
    layers: int = 6,
    classes: int = 10,
    dropout: float = 0.0,
    device: str = "cpu",
    **recipe: Any,
) -> Training:
    """Layers of `hidden` units with ReLU between them, trained by cross entropy."""
    widths = [features] + [hidden] * (layers - 1)
    blocks: list[nn.Module] = []
    for inside, outside in itertools.pairwise(widths):
        blocks += [nn.Linear(inside, outside), nn.ReLU()] + ([nn.Dropout(dropout)] if dropout else [])
    model = nn.Sequential(*blocks, nn.Linear(widths[-1], classes)).to(device)
    images = torch.randn(batch_size, features, device=device)
    labels = torch.randint(0, classes, (batch_size,), device=device)
    return make_training(model, (images, labels), nn.functional.cross_entropy, **recipe)
