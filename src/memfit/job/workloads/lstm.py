"""A word-level language model with LSTM layers."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import nn

from memfit.job.data.torch_feeds import feed_tokens, next_token_loss
from memfit.job.training import Training
from memfit.job.workloads.build import RecipeSettings, make_training


class LstmModel(nn.Module):
    """Embedding, LSTM, linear head."""

    def __init__(self, words: int, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, words)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores of the next word at every place."""
        hidden, _ = self.lstm(self.embedding(tokens))
        return self.head(hidden)


def build_lstm(
    *,
    batch_size: int = 16,
    length: int = 64,
    words: int = 5000,
    width: int = 512,
    layers: int = 2,
    data: str | None = None,
    device: str = "cpu",
    **recipe: Unpack[RecipeSettings],
) -> Training:
    """Predict the next word; `data` is a text file, read byte by byte, or 'synthetic'; without it the batch is
    noise."""
    model = LstmModel(words, width, layers).to(device)
    tokens = torch.randint(0, words, (batch_size, length), device=device)
    batch = (tokens, tokens)  # noise: what follows a word is as good as the word itself
    training = make_training(model, batch, next_token_loss, **recipe)
    return training if data is None else feed_tokens(training, data, words, batch_size, length)
