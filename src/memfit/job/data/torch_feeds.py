"""Batches of images, questions and tokens for a training, and how well the network does on held-out ones.

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
from memfit.job.data.questions import QuestionRows, load_questions
from memfit.job.data.tokens import Tokens, load_tokens, rows_of
from memfit.job.training import Training, loss_of

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


# How do questions reach a network that marks the answer in a text?


def feed_questions(
    training: Training, name: str, vocabulary: str | None, num_words: int, most: int | None = None
) -> Training:
    """Let a training read a SQuAD file, or its first `most` questions, when the first batch is asked for."""
    batch_size, length = training.batch["input_ids"].shape
    device = training.batch["input_ids"].device
    load = cache(lambda: load_questions(name, vocabulary, num_words, length, most))

    def feed(epoch: int) -> Iterator[dict[str, torch.Tensor]]:
        rows: QuestionRows = load()
        check_batch(batch_size, len(rows.tokens))
        order = np.random.default_rng(epoch).permutation(len(rows.tokens))
        for start in range(0, len(order) - batch_size + 1, batch_size):
            yield _batch(rows, order[start : start + batch_size], device)

    training.feed, training.data = feed, name
    return training


def _batch(rows: QuestionRows, chosen: np.ndarray, device: torch.device) -> dict[str, torch.Tensor]:
    columns = {"input_ids": rows.tokens, "start_positions": rows.start, "end_positions": rows.end}
    return {name: torch.from_numpy(column[chosen].astype(np.int64)).to(device) for name, column in columns.items()}


# How do tokens reach a language model, batch by batch, and how well does it predict them?

NUM_EVALUATED = 8
"""Held-out batches per evaluation."""


def feed_tokens(training: Training, name: str, words: int, batch_size: int, length: int) -> Training:
    """Let a training of (tokens, the tokens after them) read a text; it is loaded when the first batch is asked for."""
    load = cache(lambda: load_tokens(name, words, length))
    device = training.batch[0].device

    def batches(tokens: np.ndarray, seed: int, count: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        generator = np.random.default_rng(seed)
        for _ in range(count):
            starts = generator.integers(0, len(tokens) - length, batch_size)
            rows = torch.from_numpy(rows_of(tokens, starts, length + 1)).to(device)
            yield rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    def feed(epoch: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        tokens: Tokens = load()
        yield from batches(tokens.train, epoch, max(1, len(tokens.train) // (batch_size * length)))

    def evaluate() -> dict[str, float]:
        held_out = batches(load().test, 0, NUM_EVALUATED)
        return {"loss": _mean_loss(training, held_out)}

    training.feed, training.evaluate, training.data = feed, evaluate, name
    return training


def next_token_loss(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross entropy between the scores at every place and the token that follows there."""
    return nn.functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


def _mean_loss(training: Training, batches: Iterator[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """The loss without gradients; the training's own batch and listener are left as they were."""
    kept, listener = training.batch, training.on_loss
    training.on_loss = None
    training.model.eval()
    losses = []
    with torch.no_grad():
        for training.batch in batches:
            losses.append(loss_of(training).item())
    training.model.train()
    training.batch, training.on_loss = kept, listener
    return float(np.mean(losses))
