"""DenseNet-121 (Huang et al., 2016) on square images: every layer reads what all layers before it made.

Each layer returns its input with what it adds behind it, so that one tensor passes from layer to layer and a plan can
choose for each of them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from memfit.job.data.images import NUM_CLASSES
from memfit.job.data.torch_image_feed import feed_images, to_shape
from memfit.job.training import Training
from memfit.job.workloads.build import make_training

DEPTHS = (6, 12, 24, 16)
BOTTLENECK = 4
STEM_WIDTH = 64


def _normed(inside: int, outside: int, kernel: int) -> list[nn.Module]:
    convolution = nn.Conv2d(inside, outside, kernel, padding=kernel // 2, bias=False)
    return [nn.BatchNorm2d(inside), nn.ReLU(inplace=True), convolution]


class DenseLayer(nn.Module):
    """Norm, ReLU and convolution twice, 1x1 and 3x3; the new channels stand behind the old ones."""

    def __init__(self, inside: int, growth: int) -> None:
        super().__init__()
        width = BOTTLENECK * growth
        self.new = nn.Sequential(*_normed(inside, width, 1), *_normed(width, growth, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Everything so far, and what this layer adds."""
        return torch.cat([x, self.new(x)], dim=1)


class DenseNet(nn.Module):
    """Stem, dense layers with a halving of channels and image between their four groups, and a linear head."""

    def __init__(self, depths: tuple[int, ...], growth: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, STEM_WIDTH, 7, 2, 3, bias=False), nn.BatchNorm2d(STEM_WIDTH), nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )  # fmt: skip
        layers: list[nn.Module] = []
        width = STEM_WIDTH
        for group, depth in enumerate(depths):
            layers += [DenseLayer(width + index * growth, growth) for index in range(depth)]
            width += depth * growth
            if group < len(depths) - 1:
                layers.append(nn.Sequential(*_normed(width, width // 2, 1), nn.AvgPool2d(2)))
                width //= 2
        self.layers = nn.ModuleList(layers)
        self.norm = nn.BatchNorm2d(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Class scores."""
        x = self.stem(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(nn.functional.relu(self.norm(x)).mean((2, 3)))


def build_densenet121(
    *,
    batch_size: int = 8,
    size: int = 224,
    growth: int = 32,
    classes: int | None = None,
    data: str | None = None,
    device: str = "cpu",
    **recipe: Any,
) -> Training:
    """DenseNet-121; `data` is an image set, resized to `size`."""
    model = DenseNet(DEPTHS, growth, classes or (1000 if data is None else NUM_CLASSES)).to(device)
    images = torch.randn(batch_size, 3, size, size, device=device)
    labels = torch.randint(0, model.head.out_features, (batch_size,), device=device)
    chosen = {"optimizer": "sgd-momentum", **recipe}
    training = make_training(model, (images, labels), nn.functional.cross_entropy, **chosen)
    return training if data is None else feed_images(training, data, batch_size, shape=to_shape(3, size))
