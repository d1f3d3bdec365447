"""The language models of xMem's evaluation, written out from their published configurations.

GPT-Neo 125M (attention as plain products, GELU by its tanh formula) and Cerebras-GPT 111M (GPT-2's blocks, attention
by `scaled_dot_product_attention` with a mask), as transformers trains them: the output word matrix is the input one,
and the keys and values of every layer are handed out with the result, so they live as long as the caller keeps it.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

WORDS, WIDTH, HEADS, PLACES = 50257, 768, 12, 2048


def split_heads(x: torch.Tensor) -> torch.Tensor:
    """Batch, head, place, feature."""
    return x.view(*x.shape[:-1], HEADS, WIDTH // HEADS).permute(0, 2, 1, 3)


def merge_heads(x: torch.Tensor) -> torch.Tensor:
    """Batch, place, width."""
    x = x.permute(0, 2, 1, 3).contiguous()
    return x.view(*x.shape[:-2], WIDTH)


class TanhGelu(nn.Module):
    """GELU by its tanh formula in single operators, each of which keeps what it needs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The activation."""
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


class NeoAttention(nn.Module):
    """Scores, mask, softmax and mixing as separate operators."""

    mask: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        mask = torch.tril(torch.ones((PLACES, PLACES), dtype=torch.bool)).view(1, 1, PLACES, PLACES)
        self.register_buffer("mask", mask, persistent=False)
        self.key, self.value, self.query = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """The mixed features, and keys and values."""
        query, key, value = split_heads(self.query(x)), split_heads(self.key(x)), split_heads(self.value(x))
        scores = torch.matmul(query, key.transpose(-1, -2))
        length = key.shape[-2]
        least = torch.full([], torch.finfo(scores.dtype).min, dtype=scores.dtype, device=scores.device)
        scores = torch.where(self.mask[:, :, :length, :length], scores, least)
        weights = nn.functional.softmax(scores + padding, dim=-1)
        return self.out(merge_heads(torch.matmul(weights, value))), (key, value)


class FusedAttention(nn.Module):
    """One projection to queries, keys and values, and one attention operator."""

    mask: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        mask = torch.tril(torch.ones((PLACES, PLACES), dtype=torch.bool)).view(1, 1, PLACES, PLACES)
        self.register_buffer("mask", mask, persistent=False)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """The mixed features, and keys and values."""
        query, key, value = (split_heads(part) for part in self.qkv(x).split(WIDTH, dim=2))
        parts = (query.contiguous(), key.contiguous(), value.contiguous())
        mixed = nn.functional.scaled_dot_product_attention(*parts, attn_mask=padding)
        mixed = mixed.transpose(1, 2).contiguous()
        return self.out(mixed.reshape(*mixed.shape[:-2], WIDTH)), (key, value)


class Block(nn.Module):
    """Attention and a feed-forward network, each beside a shortcut."""

    def __init__(self, attention: nn.Module, activation: nn.Module) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.activation = attention, activation
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """The stream after this block, and keys and values."""
        mixed, kept = self.attention(self.norm_1(x), padding)
        x = mixed + x
        return x + self.down(self.activation(self.up(self.norm_2(x)))), kept


class LanguageModel(nn.Module):
    """Embeddings, blocks, and scores by the word matrix."""

    def __init__(self, blocks: list[Block], *, shifts_scores: bool = False) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(PLACES, WIDTH)
        self.blocks, self.norm = nn.ModuleList(blocks), nn.LayerNorm(WIDTH)
        self.shifts_scores = shifts_scores

    def forward(self, tokens: torch.Tensor, padding: torch.Tensor, labels: torch.Tensor) -> tuple[Any, ...]:
        """Loss, scores, and the keys and values of every layer."""
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(0))
        shape = (tokens.shape[0], 1, tokens.shape[1], tokens.shape[1])
        mask = torch.zeros(shape, device=tokens.device) + (1.0 - padding[:, None, None, :].to(torch.float32))
        kept = []
        for block in self.blocks:
            x, keys_and_values = block(x, mask)
            kept.append(keys_and_values)
        scores = nn.functional.linear(self.norm(x), self.words.weight)
        return self._loss(scores, labels), scores, kept

    def _loss(self, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Older releases of transformers copy the scores without the last place, newer ones shift the labels."""
        if self.shifts_scores:
            scores, labels = scores[..., :-1, :].contiguous(), labels[..., 1:].contiguous()
        else:
            labels = nn.functional.pad(labels, (0, 1), value=-100)[..., 1:].contiguous()
        return nn.functional.cross_entropy(scores.view(-1, WORDS), labels.view(-1))


def gpt_neo_125m(*, shifts_scores: bool = False) -> LanguageModel:
    """Twelve blocks with attention as plain products."""
    return LanguageModel([Block(NeoAttention(), TanhGelu()) for _ in range(12)], shifts_scores=shifts_scores)


def cerebras_111m(*, shifts_scores: bool = False) -> LanguageModel:
    """Ten blocks with one attention operator."""
    return LanguageModel([Block(FusedAttention(), nn.GELU()) for _ in range(10)], shifts_scores=shifts_scores)
