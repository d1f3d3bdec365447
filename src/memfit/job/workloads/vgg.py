"""VGG-16 (Simonyan and Zisserman, 2014; without batch normalisation) on square images."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from memfit.job.data.images import NUM_CLASSES
from memfit.job.data.torch_image_feed import feed_images, to_shape
from memfit.job.training import Training
from memfit.job.workloads.build import make_training

GROUPS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
"""Output channels of the 3x3 convolutions; each group ends in a pooling that halves the image."""
POOLED = 7


def vgg_layers(classes: int, width: int, dropout: float) -> nn.Sequential:
    """Thirteen convolutions and three fully connected layers, in one chain."""
    layers: list[nn.Module] = []
    channels = 3
    for group in GROUPS:
        for outside in group:
            layers += [nn.Conv2d(channels, outside, 3, padding=1), nn.ReLU(inplace=True)]
            channels = outside
        layers.append(nn.MaxPool2d(2))
    layers += [nn.AdaptiveAvgPool2d(POOLED), nn.Flatten()]
    features = channels * POOLED**2
    for inside in (features, width):
        layers += [nn.Linear(inside, width), nn.ReLU(inplace=True), nn.Dropout(dropout)]
    return nn.Sequential(*layers, nn.Linear(width, classes))


def build_vgg16(
    *,
    batch_size: int = 8,
    size: int = 224,
    width: int = 4096,
    dropout: float = 0.5,
    classes: int | None = None,
    data: str | None = None,
    device: str = "cpu",
    **recipe: Any,
) -> Training:
    """VGG-16; `width` is that of its fully connected layers, `data` is an image set, resized to `size`."""
    num_classes = classes or (1000 if data is None else NUM_CLASSES)
    model = vgg_layers(num_classes, width, dropout).to(device)
    images = torch.randn(batch_size, 3, size, size, device=device)
    labels = torch.randint(0, num_classes, (batch_size,), device=device)
    chosen = {"optimizer": "sgd-momentum", **recipe}
    training = make_training(model, (images, labels), nn.functional.cross_entropy, **chosen)
    return training if data is None else feed_images(training, data, batch_size, shape=to_shape(3, size))
