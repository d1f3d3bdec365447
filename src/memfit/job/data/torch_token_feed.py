"""How do tokens reach a language model, batch by batch, and how well does it foresee them?"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
import torch
from torch import nn

from memfit.job.data.tokens import Tokens, load_tokens, rows_of
from memfit.job.training import Training, loss_of

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
