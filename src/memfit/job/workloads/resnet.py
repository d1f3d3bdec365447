"""ResNet-18 and ResNet-50 (He et al., 2015; with the stride in the 3x3 convolution) on square images."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint as recomputed

from memfit.job.data.images import NUM_CLASSES
from memfit.job.data.torch_image_feed import feed_images, to_shape
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
    **recipe: Any,
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
    **recipe: Any,
) -> Training:
    """ResNet-50; `data` is an image set, resized to `size`."""
    model = ResNet((3, 4, 6, 3), True, classes or _classes_of(data), checkpoint).to(device)
    return _train(model, batch_size, size, data, device, recipe)


def _classes_of(data: str | None) -> int:
    return 1000 if data is None else NUM_CLASSES


def _train(
    model: ResNet, batch_size: int, size: int, data: str | None, device: str, recipe: dict[str, Any]
) -> Training:
    images = torch.randn(batch_size, 3, size, size, device=device)
    labels = torch.randint(0, model.head.out_features, (batch_size,), device=device)
    chosen = {"optimizer": "sgd-momentum", **recipe}
    training = make_training(model, (images, labels), nn.functional.cross_entropy, **chosen)
    return training if data is None else feed_images(training, data, batch_size, shape=to_shape(3, size))
