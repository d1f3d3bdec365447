"""DistilBERT for question answering in plain torch, where transformers is not installed: the same layers, the same
66 364 418 parameters, the same losses, about the same operators."""

from __future__ import annotations

import torch
from torch import nn

from memfit.job.training import Training
from memfit.job.workloads.build import make_training

WORDS, PLACES, WIDTH, HEADS, LAYERS, DROPOUT = 30522, 512, 768, 12, 6, 0.1


class Layer(nn.Module):
    """Attention and a feed-forward network, normalised after their shortcuts."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH, eps=1e-12), nn.LayerNorm(WIDTH, eps=1e-12)
        self.up, self.down, self.dropout = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(DROPOUT)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The stream after this layer."""
        query, key, value = (part(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.projections())
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, dropout_p=DROPOUT)
        x = self.norm_1(self.out(mixed.transpose(1, 2).flatten(2)) + x)
        return self.norm_2(self.dropout(self.down(nn.functional.gelu(self.up(x)))) + x)

    def projections(self) -> tuple[nn.Linear, ...]:
        """What makes queries, keys and values."""
        return self.query, self.key, self.value


class PlainDistilBert(nn.Module):
    """Embeddings, six layers, and a score for every place to be the start or the end of the answer."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH, padding_idx=0), nn.Embedding(PLACES, WIDTH)
        self.norm, self.dropout = nn.LayerNorm(WIDTH, eps=1e-12), nn.Dropout(DROPOUT)
        self.layers = nn.ModuleList([Layer() for _ in range(LAYERS)])
        self.answer = nn.Linear(WIDTH, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Two scores for every place."""
        places = torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(0)
        x = self.dropout(self.norm(self.words(tokens) + self.places(places)))
        for layer in self.layers:
            x = layer(x)
        return self.answer(self.dropout(x))


def answer_loss(scores: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """The mean of both cross entropies."""
    start, end = (part.squeeze(-1).contiguous() for part in scores.split(1, dim=-1))
    return (nn.functional.cross_entropy(start, places) + nn.functional.cross_entropy(end, places)) / 2


def build_plain_distilbert(
    *, batch_size: int = 16, length: int = 384, optimizer: str = "adamw", device: str = "cpu"
) -> Training:
    """A training of it."""
    tokens = torch.randint(0, WORDS, (batch_size, length), device=device)
    places = torch.zeros(batch_size, dtype=torch.long, device=device)
    return make_training(PlainDistilBert().to(device).train(), (tokens, places), answer_loss, optimizer=optimizer)
