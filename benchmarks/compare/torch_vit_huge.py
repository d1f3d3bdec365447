"""ViT-H/14 (630 million parameters) in plain torch, for the published table of low-bit optimizers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

WIDTH, DEPTH, HEADS, PATCH, SIZE = 1280, 32, 16, 14, 224


class EncoderBlock(nn.Module):
    """Attention and a feed-forward network, each behind a norm and beside a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The stream after this block."""
        parts = self.qkv(self.norm_1(x)).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm_2(x))))


class VisionTransformer(nn.Module):
    """Patches, a class token, blocks, head."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.places = nn.Parameter(torch.zeros(1, (SIZE // PATCH) ** 2 + 1, WIDTH))
        self.blocks = nn.ModuleList([EncoderBlock() for _ in range(DEPTH)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 1000)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores of the classes."""
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


def make(batch_size: int = 8, device: str = "cpu") -> tuple[Any, ...]:
    """Model, optimizer, loss and a batch of images."""
    model = VisionTransformer().to(device)
    images = torch.randn(batch_size, 3, SIZE, SIZE, device=device)
    labels = torch.randint(0, 1000, (batch_size,), device=device)
    return model, torch.optim.AdamW(model.parameters()), nn.functional.cross_entropy, (images, labels)
