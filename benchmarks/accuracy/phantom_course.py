"""The course transformer and its loop, in the very order in which its published snapshots name things.

Memory depends on which intermediate results a function keeps in a variable until it returns. The frames in the
snapshots show when each one dies; this model keeps the same ones. Five warm steps, then the one that was recorded.
Weights are left as they come and batches of all steps lie on the device.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from typing import Any

import torch
from torch import nn

from benchmarks.accuracy.torch_course_transformer import (
    OwnAdamW,
    Projection,
    RootMeanSquare,
    Rotary,
    own_softmax,
)
from memfit.job.training import Training

WARM_STEPS, BATCH, WORDS = 5, 4, 10000
WIDTH, HEADS, INNER, LAYERS = 1024, 16, 4096, 24


def log_softmax(x: torch.Tensor) -> torch.Tensor:
    """Logarithm of the softmax; the maximum lives until the end."""
    largest = torch.max(x, dim=-1, keepdim=True)[0]
    x = x - largest
    return x - torch.log(torch.sum(torch.exp(x), dim=-1, keepdim=True))


def cross_entropy(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean negative logarithm of the softmax at the targets."""
    negative = -log_softmax(scores)
    return torch.mean(torch.gather(negative, -1, targets.unsqueeze(-1)))


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Attention by two products; scores and weights live until the end."""
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(k.shape[-1])
    scores = torch.where(mask, scores, float("-inf"))
    weights = own_softmax(scores)
    return torch.einsum("bhqk,bhkd->bhqd", weights, v)


class Attention(nn.Module):
    """Causal attention with rotary positions."""

    def __init__(self, rotary: Rotary) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (Projection(WIDTH, WIDTH) for _ in range(4))
        self.rotary = rotary

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What the positions tell each other."""
        q = self.q(x)
        k = self.k(x)
        v = self.v(x)
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (q, k, v))
        q = self.rotary(q)
        k = self.rotary(k)
        places = torch.arange(x.shape[1], device=x.device)
        mask = (places[:, None] >= places[None, :])[None, None]
        mixed = attend(q, k, v, mask)
        mixed = mixed.transpose(1, 2).flatten(2).contiguous()
        return self.out(mixed)


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w2, self.w3 = Projection(WIDTH, INNER), Projection(INNER, WIDTH), Projection(WIDTH, INNER)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Each position by itself."""
        return self.w2(silu(self.w1(x)) * self.w3(x))


def silu(x: torch.Tensor) -> torch.Tensor:
    """x times its sigmoid, written out."""
    return x * torch.sigmoid(x)


class Block(nn.Module):
    """Attention and feed-forward, each behind a normalisation and beside a shortcut."""

    def __init__(self, rotary: Rotary) -> None:
        super().__init__()
        self.attention, self.feed = Attention(rotary), FeedForward()
        self.norm_1, self.norm_2 = RootMeanSquare(WIDTH), RootMeanSquare(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The stream after this block."""
        attended = self.attention(self.norm_1(x))
        between = x + attended
        fed = self.feed(self.norm_2(between))
        after = between + fed
        return after  # noqa: RET504  (the name keeps `after` as it was recorded)


class CourseModel(nn.Module):
    """Embedding, blocks, normalisation, head."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.tokens = nn.Parameter(torch.empty(WORDS, WIDTH))
        rotary = Rotary(length, WIDTH // HEADS)
        self.blocks = nn.ModuleList([Block(rotary) for _ in range(LAYERS)])
        self.norm, self.head = RootMeanSquare(WIDTH), Projection(WIDTH, WORDS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores of the next token."""
        embedded = self.tokens[tokens, :]
        x = embedded
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        return self.head(x)


class AdamW(OwnAdamW):
    """AdamW written out; the decay comes first."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One update."""
        for group in self.param_groups:
            (beta_1, beta_2), lr = group["betas"], group["lr"]
            for parameter in group["params"]:
                state, gradient = self.state[parameter], parameter.grad.data
                parameter.data -= lr * group["decay"] * parameter.data
                first = state.get("m", torch.zeros_like(gradient))
                second = state.get("v", torch.zeros_like(gradient))
                state["m"] = beta_1 * first + (1 - beta_1) * gradient
                state["v"] = beta_2 * second + (1 - beta_2) * torch.square(gradient)
                parameter.data -= lr * state["m"] / (torch.sqrt(state["v"]) + group["eps"])


def _autocast(device: str, precision: str) -> Any:
    return torch.autocast(device, dtype=torch.bfloat16) if precision == "bf16" else contextlib.nullcontext()


def _tokens(count: int, length: int, device: str) -> torch.Tensor:
    return torch.randint(0, WORDS, (count, BATCH, length), device=device)


def train(*, length: int = 128, precision: str = "fp32", device: str = "cuda") -> Training:
    """Training steps; the recorded one keeps its gradients."""
    model = CourseModel(length).to(device)
    optimizer = AdamW(model.parameters())
    inputs, last_input = _tokens(WARM_STEPS, length, device), _tokens(1, length, device)
    targets, last_target = _tokens(WARM_STEPS, length, device), _tokens(1, length, device)
    numbers = itertools.count()
    scores = loss = None

    def step() -> None:
        nonlocal scores, loss
        number = next(numbers)
        warm = number < WARM_STEPS
        with _autocast(device, precision):
            scores = model(inputs[number] if warm else last_input[0])
            loss = cross_entropy(scores, targets[number] if warm else last_target[0])
        loss.backward()
        optimizer.step()
        if warm:
            optimizer.zero_grad()
        if number == WARM_STEPS - 1:
            scores = loss = None

    return Training(model=model, optimizer=optimizer, batch=(inputs, targets), step=step)


def infer(*, length: int = 128, precision: str = "fp32", device: str = "cuda") -> Training:
    """Forward passes alone."""
    model = CourseModel(length).to(device).eval()
    inputs, last_input = _tokens(WARM_STEPS, length, device), _tokens(1, length, device)
    numbers = itertools.count()

    @torch.inference_mode()
    def step() -> None:
        number = next(numbers)
        with _autocast(device, precision):
            model(inputs[number] if number < WARM_STEPS else last_input[0])

    return Training(model=model, step=step)
