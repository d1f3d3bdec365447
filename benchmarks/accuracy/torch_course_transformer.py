"""A decoder written out in elementary operators (own attention, own softmax, own AdamW), as course exercises have it.

The published snapshots of the 24 x 1024 model were recorded from a training of this kind: rotary positions, RMS
normalisation, SwiGLU, attention by two `einsum` with a mask, batch 4, context 128 in fp32 or 512 under bf16
autocast.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any

import torch
from torch import nn

from memfit.job.training import Training


class Projection(nn.Module):
    """A linear map without bias."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outside, inside))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x W^T, as an einsum."""
        return torch.einsum("bsi,oi->bso", x, self.weight)


class RootMeanSquare(nn.Module):
    """Normalisation in single precision."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x over its root mean square."""
        before = x.dtype
        x = x.to(torch.float32)
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
        x = x * scale
        return (self.weight * x).to(before)


class Rotary(nn.Module):
    """Rotary positions from a table of cosines and sines."""

    table: torch.Tensor

    def __init__(self, length: int, size: int) -> None:
        super().__init__()
        self.register_buffer("table", torch.ones(2, length, size // 2), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Rotate pairs."""
        first, second = x.unflatten(-1, (-1, 2)).movedim(-1, 0).unbind(0)
        cosine, sine = self.table[:, : x.shape[-2], :].unbind(0)
        turned = cosine * first - sine * second
        other = sine * first + cosine * second
        return torch.concat((turned, other), dim=-1)


def own_softmax(x: torch.Tensor) -> torch.Tensor:
    """Softmax over the last dimension, step by step."""
    shifted = x - torch.max(x, dim=-1, keepdim=True)[0]
    powers = torch.exp(shifted)
    return powers / torch.sum(powers, dim=-1, keepdim=True)


def own_cross_entropy(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean negative logarithm of the softmax at the targets, step by step."""
    shifted = scores - torch.max(scores, dim=-1, keepdim=True)[0]
    logarithms = shifted - torch.log(torch.sum(torch.exp(shifted), dim=-1, keepdim=True))
    negative = -logarithms
    return torch.mean(torch.gather(negative, -1, targets.unsqueeze(-1)))


class CourseBlock(nn.Module):
    """Attention and SwiGLU, each behind a normalisation and beside a shortcut."""

    def __init__(self, width: int, heads: int, inner: int, rotary: Rotary) -> None:
        super().__init__()
        self.heads, self.rotary = heads, rotary
        self.q, self.k, self.v, self.out = (Projection(width, width) for _ in range(4))
        self.w1, self.w3, self.w2 = Projection(width, inner), Projection(width, inner), Projection(inner, width)
        self.norm_1, self.norm_2 = RootMeanSquare(width), RootMeanSquare(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The stream after this block."""
        x = x + self.attend(self.norm_1(x))
        return x + self.feed(self.norm_2(x))

    def feed(self, x: torch.Tensor) -> torch.Tensor:
        """SwiGLU."""
        gate = self.w1(x)
        return self.w2(gate * torch.sigmoid(gate) * self.w3(x))

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        """Masked attention by two products."""
        length = x.shape[1]
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.q(x), self.k(x), self.v(x)))
        q, k = self.rotary(q), self.rotary(k)
        places = torch.arange(length, device=x.device)
        mask = (places[:, None] >= places[None, :])[None, None]
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(k.shape[-1])
        weights = own_softmax(torch.where(mask, scores, float("-inf")))
        mixed = torch.einsum("bhqk,bhkd->bhqd", weights, v)
        return self.out(mixed.transpose(1, 2).flatten(2).contiguous())


class CourseTransformer(nn.Module):
    """Embedding, blocks, normalisation, head."""

    def __init__(self, words: int, length: int, width: int, layers: int, heads: int, inner: int) -> None:
        super().__init__()
        self.tokens = nn.Parameter(torch.empty(words, width))
        rotary = Rotary(length, width // heads)
        self.blocks = nn.ModuleList([CourseBlock(width, heads, inner, rotary) for _ in range(layers)])
        self.norm, self.head = RootMeanSquare(width), Projection(width, words)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores of the next token."""
        x = self.tokens[tokens, :]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class OwnAdamW(torch.optim.Optimizer):
    """AdamW written out, one parameter after the other."""

    def __init__(self, parameters: Any, lr: float = 1e-3) -> None:
        super().__init__(parameters, {"lr": lr, "betas": (0.9, 0.999), "eps": 1e-8, "decay": 0.01})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One update."""
        for group in self.param_groups:
            (beta_1, beta_2), lr = group["betas"], group["lr"]
            for parameter in group["params"]:
                state, gradient = self.state[parameter], parameter.grad.data
                first = state.get("m", torch.zeros_like(gradient))
                second = state.get("v", torch.zeros_like(gradient))
                parameter.data -= lr * group["decay"] * parameter.data
                state["m"] = beta_1 * first + (1 - beta_1) * gradient
                state["v"] = beta_2 * second + (1 - beta_2) * torch.square(gradient)
                parameter.data -= lr * state["m"] / (torch.sqrt(state["v"]) + group["eps"])


def build(
    *,
    length: int = 128,
    precision: str = "fp32",
    layers: int = 24,
    width: int = 1024,
    heads: int = 16,
    inner: int = 4096,
    words: int = 10000,
    batch_size: int = 4,
    device: str = "cuda",
    warm_steps: int = 5,
) -> Training:
    """The 24 x 1024 model: data for all warm steps on the device, one batch per step."""
    model = CourseTransformer(words, length, width, layers, heads, inner).to(device)
    optimizer = OwnAdamW(model.parameters())
    warm = [torch.randint(0, words, (warm_steps, batch_size, length), device=device) for _ in range(2)]
    measured = [torch.randint(0, words, (1, batch_size, length), device=device) for _ in range(2)]

    def step() -> None:
        with torch.autocast(device, dtype=torch.bfloat16) if precision == "bf16" else contextlib.nullcontext():
            scores = model(measured[0][0])
            loss = own_cross_entropy(scores, measured[1][0])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return Training(model=model, optimizer=optimizer, batch=(warm, measured), step=step)
