"""A decoder-only transformer in plain torch: causal attention by `scaled_dot_product_attention`, pre-normalisation."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint as recomputed

from memfit.job.data.torch_feeds import feed_tokens, next_token_loss
from memfit.job.training import Training
from memfit.job.workloads.build import make_training


class DecoderBlock(nn.Module):
    """Attention and a feed-forward network, each beside a shortcut."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The stream after this block."""
        x = x + self.attend(self.norm_1(x))
        return x + self.down(nn.functional.gelu(self.up(self.norm_2(x))))

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        """Causal self-attention."""
        parts = self.qkv(x).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        dropout = self.dropout if self.training else 0.0
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Gpt(nn.Module):
    """Embeddings, blocks, head."""

    def __init__(
        self, words: int, length: int, width: int, heads: int, layers: int, dropout: float, checkpoint: bool
    ) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList([DecoderBlock(width, heads, dropout) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.checkpoint = checkpoint

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores of the next token at every place."""
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = recomputed(block, x, use_reentrant=False) if self.checkpoint else block(x)  # pyright: ignore[reportAssignmentType]
        return self.head(self.norm(x))


def build_gpt(
    *,
    batch_size: int = 8,
    length: int = 128,
    words: int = 10000,
    width: int = 256,
    heads: int = 8,
    layers: int = 4,
    dropout: float = 0.0,
    checkpoint: bool = False,
    data: str | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    **recipe: object,
) -> Training:
    """Predict the next token; `dtype` is the type of the parameters, `precision` that of autocast.

    `data` is a text file, read byte by byte, or 'synthetic'; without it the one batch is noise.
    """
    model = Gpt(words, length, width, heads, layers, dropout, checkpoint).to(device=device, dtype=getattr(torch, dtype))
    tokens = torch.randint(0, words, (batch_size, length), device=device)
    batch = (tokens, tokens)  # noise: what follows a token is as good as the token itself
    training = make_training(model, batch, next_token_loss, **{"optimizer": "adamw", **recipe})
    return training if data is None else feed_tokens(training, data, words, batch_size, length)
