"""MobileNetV2, MobileNetV3 and ConvNeXt of xMem's evaluation, written out from their published descriptions.

Sandler et al., 2018; Howard et al., 2019; Liu et al., 2022; in the form torchvision trains them: the order of
operators, what works in place, and the number of parameters (checked by a test) are the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from benchmarks.accuracy.torch_xmem_vision import SqueezeExcitation

MOBILE_V2_STAGES = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
)  # fmt: skip
"""Widening, channels, blocks, first stride."""
MOBILE_V3_LARGE = (
    (3, 16, 16, 0, 0, 1), (3, 64, 24, 0, 0, 2), (3, 72, 24, 0, 0, 1), (5, 72, 40, 1, 0, 2), (5, 120, 40, 1, 0, 1),
    (5, 120, 40, 1, 0, 1), (3, 240, 80, 0, 1, 2), (3, 200, 80, 0, 1, 1), (3, 184, 80, 0, 1, 1), (3, 184, 80, 0, 1, 1),
    (3, 480, 112, 1, 1, 1), (3, 672, 112, 1, 1, 1), (5, 672, 160, 1, 1, 2), (5, 960, 160, 1, 1, 1),
    (5, 960, 160, 1, 1, 1),
)  # fmt: skip
"""Kernel, widened channels, channels, squeezes, uses hard swish, stride."""
MOBILE_V3_SMALL = (
    (3, 16, 16, 1, 0, 2), (3, 72, 24, 0, 0, 2), (3, 88, 24, 0, 0, 1), (5, 96, 40, 1, 1, 2), (5, 240, 40, 1, 1, 1),
    (5, 240, 40, 1, 1, 1), (5, 120, 48, 1, 1, 1), (5, 144, 48, 1, 1, 1), (5, 288, 96, 1, 1, 2), (5, 576, 96, 1, 1, 1),
    (5, 576, 96, 1, 1, 1),
)  # fmt: skip
CONVNEXT_TINY = ((3, 96), (3, 192), (9, 384), (3, 768))
"""Blocks and channels of each stage."""
CONVNEXT_BASE = ((3, 128), (3, 256), (27, 512), (3, 1024))


def norm_conv(
    inside: int, outside: int, kernel: int, stride: int = 1, groups: int = 1, active: type[nn.Module] | None = None
) -> list[Any]:
    """A convolution without bias, batch normalisation and an activation in place."""
    conv = nn.Conv2d(inside, outside, kernel, stride, kernel // 2, groups=groups, bias=False)
    end = [] if active is None else [active(inplace=True)]  # pyright: ignore[reportCallIssue]
    return [conv, nn.BatchNorm2d(outside), *end]


class MobileBlock(nn.Module):
    """Widen, filter each channel by itself, perhaps squeeze and excite, narrow; a shortcut where shapes allow it."""

    def __init__(
        self, inside: int, middle: int, outside: int, kernel: int, stride: int, active: type[nn.Module],
        *, squeezes: bool = False, adds_in_place: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        widen = norm_conv(inside, middle, 1, active=active) if middle != inside else []
        squeeze = [SqueezeExcitation(middle, eighths(middle // 4), nn.Hardsigmoid)] if squeezes else []
        filters = norm_conv(middle, middle, kernel, stride, middle, active)
        self.body = nn.Sequential(*widen, *filters, *squeeze, *norm_conv(middle, outside, 1))
        self.has_shortcut, self.adds_in_place = stride == 1 and inside == outside, adds_in_place

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The narrowed features, with the input added where shapes allow it."""
        out = self.body(x)
        if not self.has_shortcut:
            return out
        if self.adds_in_place:
            out += x
            return out
        return x + out


def eighths(channels: int) -> int:
    """The nearest multiple of eight, at least eight and not more than a tenth below."""
    near = max(8, (channels + 4) // 8 * 8)
    return near + 8 if near < 0.9 * channels else near


class MobileNetV2(nn.Module):
    """A stem, seven stages of inverted residuals with ReLU6, and a linear head."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        layers, inside = norm_conv(3, 32, 3, 2, active=nn.ReLU6), 32
        for widening, outside, depth, stride in MOBILE_V2_STAGES:
            for index in range(depth):
                layers.append(MobileBlock(inside, inside * widening, outside, 3, 1 if index else stride, nn.ReLU6))
                inside = outside
        self.body, self.pool = (
            nn.Sequential(*layers, *norm_conv(320, 1280, 1, active=nn.ReLU6)),
            nn.AdaptiveAvgPool2d(1),
        )
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Class scores."""
        return self.head(torch.flatten(self.pool(self.body(x)), 1))


class MobileNetV3(nn.Module):
    """A stem, blocks of which some squeeze and excite, and two linear layers."""

    def __init__(self, blocks: tuple[tuple[int, ...], ...], hidden: int, classes: int = 10) -> None:
        super().__init__()
        layers, inside = norm_conv(3, 16, 3, 2, active=nn.Hardswish), 16
        for kernel, middle, outside, squeezes, swishes, stride in blocks:
            active = nn.Hardswish if swishes else nn.ReLU
            layers.append(
                MobileBlock(
                    inside, middle, outside, kernel, stride, active, squeezes=bool(squeezes), adds_in_place=True
                )
            )
            inside = outside
        self.body = nn.Sequential(*layers, *norm_conv(inside, 6 * inside, 1, active=nn.Hardswish))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Sequential(
            nn.Linear(6 * inside, hidden), nn.Hardswish(inplace=True), nn.Dropout(0.2, inplace=True),
            nn.Linear(hidden, classes),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Class scores."""
        return self.head(torch.flatten(self.pool(self.body(x)), 1))


class ChannelNorm(nn.LayerNorm):
    """Normalises over channels, which it moves to the end and back without a copy."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The normalised picture, in channels-last order."""
        return super().forward(input.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNeXtBlock(nn.Module):
    """A wide filter per channel and two linear layers, scaled and sometimes left out, beside a shortcut."""

    def __init__(self, channels: int, leave_out: float) -> None:
        super().__init__()
        self.filters = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.linear = nn.Sequential(nn.Linear(channels, 4 * channels), nn.GELU(), nn.Linear(4 * channels, channels))
        self.scale, self.leave_out = nn.Parameter(torch.full((channels, 1, 1), 1e-6)), leave_out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sum."""
        out = self.scale * self.linear(self.norm(self.filters(x).permute(0, 2, 3, 1))).permute(0, 3, 1, 2)
        if self.leave_out:
            noise = torch.empty(len(x), 1, 1, 1, device=x.device).bernoulli_(1 - self.leave_out)
            out = out * noise.div_(1 - self.leave_out)
        out += x
        return out


class ConvNeXt(nn.Module):
    """Four stages of blocks, each after a norm and a strided convolution."""

    def __init__(self, stages: tuple[tuple[int, int], ...], leave_out: float, classes: int = 1000) -> None:
        super().__init__()
        inside, total = stages[0][1], sum(depth for depth, _ in stages)
        layers: list[nn.Module] = [nn.Conv2d(3, inside, 4, 4), ChannelNorm(inside, eps=1e-6)]
        done = 0
        for depth, channels in stages:
            if channels != inside:
                layers += [ChannelNorm(inside, eps=1e-6), nn.Conv2d(inside, channels, 2, 2)]
            layers += [ConvNeXtBlock(channels, leave_out * (done + n) / (total - 1)) for n in range(depth)]
            inside, done = channels, done + depth
        self.body, self.pool = nn.Sequential(*layers), nn.AdaptiveAvgPool2d(1)
        self.head = nn.Sequential(ChannelNorm(inside, eps=1e-6), nn.Flatten(1), nn.Linear(inside, classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Class scores."""
        return self.head(self.pool(self.body(x)))
