"""A small convolutional network with batch normalisation on square images."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import nn

from memfit.job.data.images import NUM_CLASSES, shape_of
from memfit.job.data.torch_feeds import feed_images
from memfit.job.training import Training
from memfit.job.workloads.build import RecipeSettings, make_training


def build_cnn(
    *,
    batch_size: int = 64,
    size: int = 32,
    width: int = 32,
    blocks: int = 3,
    classes: int = NUM_CLASSES,
    data: str | None = None,
    device: str = "cpu",
    **recipe: Unpack[RecipeSettings],
) -> Training:
    """Blocks of two convolutions, each halving the image and doubling the width; `data` is an image set."""
    channels = 3
    if data is not None:
        (channels, size, _), classes = shape_of(data), NUM_CLASSES
    images = torch.randn(batch_size, channels, size, size, device=device)
    labels = torch.randint(0, classes, (batch_size,), device=device)
    model = _layers(channels, width, blocks, classes).to(device)
    training = make_training(model, (images, labels), nn.functional.cross_entropy, **recipe)
    return training if data is None else feed_images(training, data, batch_size)


def _layers(channels: int, width: int, blocks: int, classes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for index in range(blocks):
        outside = width * 2**index
        for inside in (channels, outside):
            layers += [nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU()]
        layers.append(nn.MaxPool2d(2))
        channels = outside
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))
