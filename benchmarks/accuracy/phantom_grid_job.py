"""A small transformer whose attention is chosen by name, for the grid that compares the two engines."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from memfit.job.training import Training

BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH}
OPTIMIZERS = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}


class Block(nn.Module):
    """Attention and a feed-forward part, each with a shortcut."""

    def __init__(self, width: int, heads: int, attention: str) -> None:
        super().__init__()
        self.heads, self.attention = heads, attention
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inward, self.outward = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The stream after this block."""
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.inward(self.norm_1(x)).chunk(3, -1)
        )
        x = x + self.outward(self.attend(q, k, v).transpose(1, 2).flatten(2))
        return x + self.feed(self.norm_2(x))

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """By the named kernel, or by two products."""
        if self.attention == "eager":
            return ((q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5).softmax(-1) @ v
        with sdpa_kernel(BACKENDS[self.attention]):
            return scaled_dot_product_attention(q, k, v, is_causal=True)


def attend(
    attention: str = "efficient",
    optimizer: str = "adamw",
    precision: str = "bf16",
    width: int = 256,
    device: str = "cuda",
) -> Training:
    """Two blocks and a head."""
    parts: list[Any] = [Block(width, 4, attention) for _ in range(2)]
    model = nn.Sequential(*parts, nn.Linear(width, 100)).to(device)
    batch = torch.randn(4, 128, width, device=device)
    chosen = OPTIMIZERS[optimizer](model.parameters(), lr=1e-3)

    def step() -> None:
        mixed = torch.autocast("cuda", torch.bfloat16) if precision == "bf16" else contextlib.nullcontext()
        with mixed:
            loss = model(batch).float().pow(2).mean()
        loss.backward()
        chosen.step()
        chosen.zero_grad()

    return Training(model=model, optimizer=chosen, batch=(batch,), step=step)
