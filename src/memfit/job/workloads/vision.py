"""ResNet-18 and -50 (with the stride in the 3x3 convolution), DenseNet-121 and VGG-16 on square images."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint as recomputed

from memfit.errors import UsageError
from memfit.job.data.images import NUM_CLASSES
from memfit.job.data.torch_feeds import feed_images, to_shape
from memfit.job.training import Training
from memfit.job.workloads.build import make_training


def _conv(inside: int, outside: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inside, outside, kernel, stride, padding=kernel // 2, bias=False)


class Residual(nn.Module):
    """Two 3x3 convolutions, or a 1x1 - 3x3 - 1x1 bottleneck, beside a shortcut."""

    def __init__(self, inside: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        outside = width * 4 if bottleneck else width
        if bottleneck:
            convolutions = [_conv(inside, width, 1), _conv(width, width, 3, stride), _conv(width, outside, 1)]
        else:
            convolutions = [_conv(inside, width, 3, stride), _conv(width, outside, 3)]
        self.convolutions = nn.ModuleList(convolutions)
        self.norms = nn.ModuleList([nn.BatchNorm2d(c.out_channels) for c in convolutions])
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module | None = None
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(_conv(inside, outside, 1, stride), nn.BatchNorm2d(outside))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block's sum, after the last ReLU."""
        identity = x if self.shortcut is None else self.shortcut(x)
        out = x
        for index, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            out = norm(convolution(out))
            if index < len(self.convolutions) - 1:
                out = self.relu(out)
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    """Stem, four stages, pooling and a linear head."""

    def __init__(self, depths: tuple[int, ...], bottleneck: bool, classes: int, recompute: bool) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        )
        blocks: list[nn.Module] = []
        inside = 64
        for stage, depth in enumerate(depths):
            for index in range(depth):
                width = 64 * 2**stage
                blocks.append(Residual(inside, width, 2 if stage and not index else 1, bottleneck))
                inside = width * 4 if bottleneck else width
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(inside, classes)
        self.recompute = recompute

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Class scores."""
        x = self.stem(x)
        for block in self.blocks:
            x = recomputed(block, x, use_reentrant=False) if self.recompute else block(x)  # pyright: ignore[reportAssignmentType]
        return self.head(x.mean((2, 3)))


def build_resnet18(
    *,
    batch_size: int = 8,
    size: int = 224,
    classes: int | None = None,
    checkpoint: bool = False,
    data: str | None = None,
    device: str = "cpu",
    **recipe: object,
) -> Training:
    """ResNet-18; `data` is an image set, resized to `size`."""
    model = ResNet((2, 2, 2, 2), False, classes or _classes_of(data), checkpoint).to(device)
    return _train(model, batch_size, size, data, device, recipe)


def build_resnet50(
    *,
    batch_size: int = 8,
    size: int = 224,
    classes: int | None = None,
    checkpoint: bool = False,
    data: str | None = None,
    device: str = "cpu",
    **recipe: object,
) -> Training:
    """ResNet-50; `data` is an image set, resized to `size`."""
    model = ResNet((3, 4, 6, 3), True, classes or _classes_of(data), checkpoint).to(device)
    return _train(model, batch_size, size, data, device, recipe)


def _classes_of(data: str | None) -> int:
    return 1000 if data is None else NUM_CLASSES


def _train(
    model: ResNet, batch_size: int, size: int, data: str | None, device: str, recipe: dict[str, object]
) -> Training:
    images = torch.randn(batch_size, 3, size, size, device=device)
    labels = torch.randint(0, model.head.out_features, (batch_size,), device=device)
    chosen = {"optimizer": "sgd-momentum", **recipe}
    training = make_training(model, (images, labels), nn.functional.cross_entropy, **chosen)
    return training if data is None else feed_images(training, data, batch_size, shape=to_shape(3, size))


# Which ResNets are there by depth, and what are their stages called? From 18 to 152 layers, for tables over depths.

FAMILY: dict[str, tuple[tuple[int, ...], bool]] = {
    "ResNet-18": ((2, 2, 2, 2), False),
    "ResNet-34": ((3, 4, 6, 3), False),
    "ResNet-50": ((3, 4, 6, 3), True),
    "ResNet-101": ((3, 4, 23, 3), True),
    "ResNet-152": ((3, 8, 36, 3), True),
}
"""Name: blocks in each of the four groups, and whether they are bottlenecks."""


def family_called(names: Sequence[str]) -> tuple[str, ...]:
    """The ResNets that are meant, 'resnet18' or 'ResNet-18'; all of them when none is named."""
    known = {name.lower().replace("-", ""): name for name in FAMILY}
    unknown = [name for name in names if name.lower().replace("-", "") not in known]
    if unknown:
        raise UsageError("there is no such ResNet", found=", ".join(unknown), hint=f"one of {', '.join(FAMILY)}")
    return tuple(dict.fromkeys(known[name.lower().replace("-", "")] for name in names)) or tuple(FAMILY)


def resnet_called(name: str, classes: int = 1000) -> ResNet:
    """One of the family, with new parameters."""
    depths, bottleneck = FAMILY[name]
    return ResNet(depths, bottleneck, classes, False)


def stage_names(model: ResNet) -> tuple[str, ...]:
    """The modules that are called one after the other."""
    return ("stem", *(f"blocks.{index}" for index in range(len(model.blocks))), "head")


# DenseNet-121 (Huang et al., 2016) on square images: every layer reads what all layers before it made.
#
# Each layer returns its input with what it adds behind it, so that one tensor passes from layer to layer and a plan can
# choose for each of them.

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
    **recipe: object,
) -> Training:
    """DenseNet-121; `data` is an image set, resized to `size`."""
    model = DenseNet(DEPTHS, growth, classes or (1000 if data is None else NUM_CLASSES)).to(device)
    images = torch.randn(batch_size, 3, size, size, device=device)
    labels = torch.randint(0, model.head.out_features, (batch_size,), device=device)
    chosen = {"optimizer": "sgd-momentum", **recipe}
    training = make_training(model, (images, labels), nn.functional.cross_entropy, **chosen)
    return training if data is None else feed_images(training, data, batch_size, shape=to_shape(3, size))


# VGG-16 (Simonyan and Zisserman, 2014; without batch normalisation) on square images.

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
    **recipe: object,
) -> Training:
    """VGG-16; `width` is that of its fully connected layers, `data` is an image set, resized to `size`."""
    num_classes = classes or (1000 if data is None else NUM_CLASSES)
    model = vgg_layers(num_classes, width, dropout).to(device)
    images = torch.randn(batch_size, 3, size, size, device=device)
    labels = torch.randint(0, num_classes, (batch_size,), device=device)
    chosen = {"optimizer": "sgd-momentum", **recipe}
    training = make_training(model, (images, labels), nn.functional.cross_entropy, **chosen)
    return training if data is None else feed_images(training, data, batch_size, shape=to_shape(3, size))
