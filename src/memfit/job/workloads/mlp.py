"""A stack of fully connected layers on flat inputs, such as flattened images."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Unpack

import torch
from torch import nn

from memfit.errors import UsageError
from memfit.job.data.images import NUM_CLASSES, shape_of
from memfit.job.data.torch_feeds import feed_images
from memfit.job.training import Training
from memfit.job.workloads.build import RecipeSettings, make_training


def build_mlp(
    *,
    batch_size: int = 64,
    features: int = 784,
    hidden: int | str | Sequence[int] = 1024,
    layers: int = 6,
    classes: int = NUM_CLASSES,
    dropout: float = 0.0,
    data: str | None = None,
    device: str = "cpu",
    **recipe: Unpack[RecipeSettings],
) -> Training:
    """Layers with ReLU between them, trained by cross entropy.

    `hidden` is one width for `layers` layers, or the width of each hidden layer: '285-389-423'. `data` is an image set
    (mnist, fashion-mnist, cifar-10, or synthetic- before it) and sets the features; without it the batch is noise.
    """
    if data is not None:
        features, classes = math.prod(shape_of(data)), NUM_CLASSES
    widths = [features, *hidden_widths(hidden, layers)]
    blocks: list[nn.Module] = []
    for inside, outside in itertools.pairwise(widths):
        blocks += [nn.Linear(inside, outside), nn.ReLU()] + ([nn.Dropout(dropout)] if dropout else [])
    model = nn.Sequential(*blocks, nn.Linear(widths[-1], classes)).to(device)
    images = torch.randn(batch_size, features, device=device)
    labels = torch.randint(0, classes, (batch_size,), device=device)
    training = make_training(model, (images, labels), nn.functional.cross_entropy, **recipe)
    return training if data is None else feed_images(training, data, batch_size, shape=lambda x: x.flatten(1))


def hidden_widths(hidden: int | str | Sequence[int], layers: int) -> list[int]:
    """The width of every hidden layer."""
    if isinstance(hidden, int):
        return [hidden] * (layers - 1)
    words = hidden.replace(",", "-").split("-") if isinstance(hidden, str) else [str(width) for width in hidden]
    if not words or not all(word.strip().isdecimal() and int(word) > 0 for word in words):
        hint = "one width, or one for each hidden layer: --set hidden=285-389-423"
        raise UsageError("these are no widths of layers", found=f"hidden={hidden!r}", hint=hint)
    return [int(word) for word in words]
