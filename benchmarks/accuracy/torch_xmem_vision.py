"""The convolutional networks of xMem's evaluation, written out from their published descriptions.

VGG (Simonyan and Zisserman, 2014), ResNet (He et al., 2015), MnasNet-A1's plain variant (Tan et al., 2018) and
RegNet-400MF, X and Y (Radosavovic et al., 2020), in the form torchvision trains them: the order of operators, what
works in place, and the number of parameters (checked by a test) are the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

VGG_16 = (2, 2, 3, 3, 3)
VGG_19 = (2, 2, 4, 4, 4)
RESNET_101 = (3, 4, 23, 3)
RESNET_152 = (3, 8, 36, 3)
REGNET_X_400 = ((32, 1), (64, 2), (160, 7), (400, 12))
"""Channels and blocks of each stage."""
REGNET_Y_400 = ((48, 1), (104, 3), (208, 6), (440, 6))


def norm_conv(inside: int, outside: int, kernel: int, stride: int = 1, groups: int = 1, relu: bool = True) -> list[Any]:
    """A convolution without bias, batch normalisation and, unless refused, a ReLU in place."""
    layers: list[Any] = [
        nn.Conv2d(inside, outside, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outside),
    ]
    return [*layers, nn.ReLU(inplace=True)] if relu else layers


class Vgg(nn.Module):
    """Stages of 3x3 convolutions, each ended by pooling, and three wide linear layers."""

    def __init__(self, depths: tuple[int, ...], classes: int = 1000) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inside = 3
        for stage, depth in enumerate(depths):
            for _ in range(depth):
                outside = min(512, 64 * 2**stage)
                layers += [nn.Conv2d(inside, outside, 3, padding=1), nn.ReLU(inplace=True)]
                inside = outside
            layers.append(nn.MaxPool2d(2, 2))
        self.features, self.pool = nn.Sequential(*layers), nn.AdaptiveAvgPool2d(7)
        self.classifier = nn.Sequential(
            nn.Linear(512 * 49, 4096), nn.ReLU(True), nn.Dropout(),
            nn.Linear(4096, 4096), nn.ReLU(True), nn.Dropout(), nn.Linear(4096, classes),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Class scores."""
        return self.classifier(torch.flatten(self.pool(self.features(x)), 1))


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions beside a shortcut, which is computed last."""

    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *norm_conv(inside, width, 1),
            *norm_conv(width, width, 3, stride),
            *norm_conv(width, 4 * width, 1, relu=False),
        )
        changes = stride != 1 or inside != 4 * width
        self.shortcut = nn.Sequential(*norm_conv(inside, 4 * width, 1, stride, relu=False)) if changes else None
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sum after its ReLU."""
        out = self.body(x)
        out += x if self.shortcut is None else self.shortcut(x)
        return self.relu(out)


class ResNet(nn.Module):
    """Stem, bottlenecks in four stages, pooling and a linear head."""

    def __init__(self, depths: tuple[int, ...] = RESNET_101, classes: int = 1000) -> None:
        super().__init__()
        stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
        blocks: list[nn.Module] = []
        inside = 64
        for stage, depth in enumerate(depths):
            for index in range(depth):
                blocks.append(Bottleneck(inside, 64 * 2**stage, 2 if stage and not index else 1))
                inside = 256 * 2**stage
        self.body, self.pool = nn.Sequential(*stem, *blocks), nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(inside, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Class scores."""
        return self.head(torch.flatten(self.pool(self.body(x)), 1))


class InvertedResidual(nn.Module):
    """Widen, filter each channel by itself, narrow; a shortcut where shapes allow it."""

    def __init__(self, inside: int, outside: int, kernel: int, stride: int, widening: int) -> None:
        super().__init__()
        middle = inside * widening
        self.body = nn.Sequential(
            *norm_conv(inside, middle, 1),
            *norm_conv(middle, middle, kernel, stride, groups=middle),
            *norm_conv(middle, outside, 1, relu=False),
        )
        self.has_shortcut = inside == outside and stride == 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The narrowed features, with the input added where shapes allow it."""
        return self.body(x) + x if self.has_shortcut else self.body(x)


MNASNET_STAGES = (
    (16, 24, 3, 2, 3, 3), (24, 40, 5, 2, 3, 3), (40, 80, 5, 2, 6, 3), (80, 96, 3, 1, 6, 2), (96, 192, 5, 2, 6, 4),
    (192, 320, 3, 1, 6, 1),
)  # fmt: skip
"""Channels before and after, kernel, first stride, widening, blocks."""


class MnasNet(nn.Module):
    """A separable stem and six stages of inverted residuals."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        layers = [*norm_conv(3, 32, 3, 2), *norm_conv(32, 32, 3, groups=32), *norm_conv(32, 16, 1, relu=False)]
        for inside, outside, kernel, stride, widening, depth in MNASNET_STAGES:
            layers.append(InvertedResidual(inside, outside, kernel, stride, widening))
            layers += [InvertedResidual(outside, outside, kernel, 1, widening) for _ in range(depth - 1)]
        self.body = nn.Sequential(*layers, *norm_conv(320, 1280, 1))
        self.head = nn.Sequential(nn.Dropout(p=0.2, inplace=True), nn.Linear(1280, classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Class scores."""
        return self.head(self.body(x).mean([2, 3]))


class SqueezeExcitation(nn.Module):
    """Scales every channel by what the whole picture says about it."""

    def __init__(self, channels: int, squeezed: int, gate: type[nn.Module] = nn.Sigmoid) -> None:
        super().__init__()
        self.pool, self.relu, self.gate = nn.AdaptiveAvgPool2d(1), nn.ReLU(), gate()
        self.down, self.up = nn.Conv2d(channels, squeezed, 1), nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The scaled features."""
        return self.gate(self.up(self.relu(self.down(self.pool(x))))) * x


class RegNetBlock(nn.Module):
    """1x1, grouped 3x3, perhaps squeeze and excitation, 1x1, beside a shortcut, which is computed first."""

    def __init__(self, inside: int, width: int, stride: int, group: int, squeezes: bool) -> None:
        super().__init__()
        changes = stride != 1 or inside != width
        self.shortcut = nn.Sequential(*norm_conv(inside, width, 1, stride, relu=False)) if changes else None
        self.body = nn.Sequential(
            *norm_conv(inside, width, 1),
            *norm_conv(width, width, 3, stride, groups=width // group),
            *([SqueezeExcitation(width, round(inside / 4))] if squeezes else []),
            *norm_conv(width, width, 1, relu=False),
        )
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sum after its ReLU."""
        return self.relu((x if self.shortcut is None else self.shortcut(x)) + self.body(x))


class RegNet(nn.Module):
    """A stem and blocks in four stages."""

    def __init__(self, stages: tuple[tuple[int, int], ...], group: int, squeezes: bool, classes: int = 1000) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        inside = 32
        for width, depth in stages:
            for index in range(depth):
                blocks.append(RegNetBlock(inside, width, 1 if index else 2, group, squeezes))
                inside = width
        self.body, self.pool = nn.Sequential(*norm_conv(3, 32, 3, 2), *blocks), nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(inside, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Class scores."""
        return self.head(self.pool(self.body(x)).flatten(start_dim=1))
