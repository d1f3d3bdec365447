"""How do a data set's images reach a network, batch by batch, and how well does it name them?

Images stay one byte per value until their batch is made. Every epoch shuffles them anew from the epoch's own seed; the
last, smaller batch is left out, so that every step has the same shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import torch
from torch import nn

from memfit.errors import UsageError
from memfit.job.data.catalogue import find_data_set
from memfit.job.data.images import Images, load_images, shape_of
from memfit.job.training import Training

NUM_EVALUATED, MOST_BATCHES = 2000, 100
"""Held-out images per evaluation, in batches of the training's size: evaluating never takes more memory than training,
nor, with small batches, more time."""

Shape = Callable[[torch.Tensor], torch.Tensor]


def feed_images(training: Training, name: str, batch_size: int, *, shape: Shape | None = None) -> Training:
    """Let a training of (images, labels) read a data set; it is loaded when the first batch is asked for."""
    data_set = find_data_set(name.removeprefix("synthetic-"))
    check_batch(batch_size, data_set.num_train)
    load = cache(lambda: load_images(name))
    device = training.batch[0].device
    reshape = _as_the_batch_lies(training.batch[0], shape or (lambda images: images))

    def feed(epoch: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        images = load()
        order = np.random.default_rng(epoch).permutation(len(images.train_labels))
        for start in range(0, len(order) - batch_size + 1, batch_size):
            rows = np.sort(order[start : start + batch_size])
            yield batch_of(images.train_images, images.train_labels, rows, device, reshape)

    def evaluate() -> dict[str, float]:
        return _evaluate(training, load(), batch_size, device, reshape)

    training.feed, training.data = feed, name
    training.evaluate = evaluate if training.model is not None else None
    pixels = int(np.prod(shape_of(name))) + 1
    training.data_bytes = pixels * (data_set.num_train + data_set.num_test)
    return training


def _as_the_batch_lies(example: torch.Tensor, reshape: Shape) -> Shape:
    """Batches that come later lie in memory as the first: channels last where that was asked for."""
    last = torch.channels_last
    if example.dim() != 4 or example.is_contiguous() or not example.is_contiguous(memory_format=last):
        return reshape
    return lambda images: reshape(images).contiguous(memory_format=last)


def check_batch(batch_size: int, count: int) -> None:
    """A batch must be there to be had."""
    if not 1 <= batch_size <= count:
        raise UsageError("the batch does not fit the data set", found=f"batch_size={batch_size} of {count} examples")


def batch_of(
    images: np.ndarray, labels: np.ndarray, rows: np.ndarray, device: torch.device, reshape: Shape
) -> tuple[torch.Tensor, torch.Tensor]:
    """Values from -1 to 1, and labels, on the device."""
    pixels = torch.from_numpy(images[rows]).to(device).float().div_(127.5).sub_(1)
    return reshape(pixels), torch.from_numpy(labels[rows].astype(np.int64)).to(device)


def _evaluate(
    training: Training, images: Images, batch_size: int, device: torch.device, reshape: Shape
) -> dict[str, float]:
    model: nn.Module = training.model
    was_training = model.training
    model.eval()
    loss_sum, right, count = 0.0, 0, 0
    with torch.no_grad():
        for start in range(0, max(NUM_EVALUATED - batch_size, 0) + 1, batch_size)[:MOST_BATCHES]:
            rows = np.arange(start, min(start + batch_size, len(images.test_labels)))
            pixels, labels = batch_of(images.test_images, images.test_labels, rows, device, reshape)
            scores = model(pixels)
            loss_sum += nn.functional.cross_entropy(scores, labels, reduction="sum").item()
            right, count = right + int((scores.argmax(1) == labels).sum()), count + len(rows)
    model.train(was_training)
    return {"loss": loss_sum / count, "accuracy": right / count}


def to_shape(channels: int, size: int) -> Shape:
    """Repeat grey images over the channels and resize to squares of `size`, where they are not like that already."""

    def reshape(images: torch.Tensor) -> torch.Tensor:
        if images.shape[1] != channels:
            images = images.mean(1, keepdim=True).expand(-1, channels, -1, -1)
        if images.shape[-1] != size:
            images = nn.functional.interpolate(images, size=(size, size), mode="bilinear", align_corners=False)
        return images.contiguous()

    return reshape
