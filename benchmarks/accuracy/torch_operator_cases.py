"""The operators of a published kernel benchmark, in plain torch, each run as that benchmark runs it.

Its scripts build the module of every provider before they run one, so a norm has twice its weights alive; and they time
backwards before they measure memory, so both threads have their cuBLAS workspace when a forward is measured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from memfit.job.training import Training

Body = Callable[[], Any]
CUDA = "cuda"


class Rms(nn.Module):
    """Root-mean-square normalisation as in Llama."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """In single precision, back in the input's type."""
        kind = x.dtype
        x = x.to(torch.float32)
        variance = x.pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + 1e-6)
        return self.weight * x.to(kind)


class Gated(nn.Module):
    """down(act(gate(x)) * up(x))."""

    def __init__(self, width: int, inner: int, activation: nn.Module) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down, self.activation = nn.Linear(inner, width, bias=False), activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The gated sum."""
        return self.down(self.activation(self.gate(x)) * self.up(x))


def cross_entropy(size: int, config: dict[str, Any], mode: str) -> Body:
    """Scores of B x T words, single precision."""
    rows = config["B"] * config["T"]
    scores = torch.randn(rows, size, requires_grad=True, device=CUDA)
    targets = torch.randint(size, (rows, 1), device=CUDA).squeeze(1)
    loss = nn.CrossEntropyLoss()
    return lambda: loss(scores, targets).backward()


def kl_div(size: int, config: dict[str, Any], mode: str) -> Body:
    """Divergence of two distributions; the graph is kept."""
    rows = config["B"] * config["T"]
    left = torch.randn(rows, size, requires_grad=True, device=CUDA).log_softmax(dim=-1)
    right = torch.randn(rows, size, device=CUDA).softmax(dim=-1)
    loss = nn.KLDivLoss(reduction="batchmean")
    return lambda: loss(left, right).backward(retain_graph=True)


def rms_norm(size: int, config: dict[str, Any], mode: str) -> Body:
    """bf16 inputs, single-precision weight."""
    x = torch.randn((config["M"], size), dtype=_dtype(config), device=CUDA)
    gradient = torch.randn_like(x)
    x.requires_grad_(True)
    model, other = Rms(size).to(CUDA), Rms(size).to(CUDA)
    return _beside(other, lambda: model(x).backward(gradient, retain_graph=True))


def group_norm(size: int, config: dict[str, Any], mode: str) -> Body:
    """M x C x H images."""
    x = torch.randn((config["M"], size, config["H"]), dtype=_dtype(config), device=CUDA, requires_grad=True)
    model, other = (nn.GroupNorm(size // config["channels_per_group"], size, eps=config["eps"]).to(CUDA) for _ in "ab")
    gradient = torch.randn_like(x)
    return _beside(other, lambda: model(x).backward(gradient, retain_graph=True))


def _beside(kept: object, body: Body) -> Body:
    """A step while something else stays alive."""

    def step() -> object:
        body()
        return kept

    return step


def gated(size: int, config: dict[str, Any], mode: str) -> Body:
    """SwiGLU and GeGLU over B x T places."""
    batch = config["B"] if "B" in config else config["bsz"]
    activation = nn.SiLU() if config["hidden_act"] == "silu" else nn.GELU(approximate="tanh")
    model = Gated(config["hidden_size"], config["intermediate_size"], activation).to(CUDA).to(_dtype(config))
    x = torch.randn(batch, size, config["hidden_size"], device=CUDA, dtype=_dtype(config), requires_grad=True)
    if mode == "forward":
        _wake_both_threads()
        return lambda: model(x)

    def full() -> None:
        out = model(x)
        out.backward(torch.randn_like(out), retain_graph=True)

    return full


def _wake_both_threads() -> None:
    """One product forwards and backwards: cuBLAS keeps a workspace for each thread."""
    layer = nn.Linear(2, 2, device=CUDA)
    layer(torch.ones(1, 2, device=CUDA)).sum().backward()


def _dtype(config: dict[str, Any]) -> torch.dtype:
    return getattr(torch, config["dtype"].removeprefix("torch."))


CASES: dict[str, Callable[[int, dict[str, Any], str], Body]] = {
    "cross_entropy": cross_entropy,
    "kl_div": kl_div,
    "rms_norm": rms_norm,
    "group_norm": group_norm,
    "swiglu": gated,
    "tiled_geglu": gated,
}


def build_operator(name: str, size: int, config: dict[str, Any], mode: str) -> Training:
    """One operator as a step."""
    return Training(step=CASES[name](size, config, mode))


def build_network(layers: list[tuple[str, int, int]], features: int, batch_size: int) -> Training:
    """A network from a list of (kind, width, parameters), trained by Adam and cross entropy."""
    blocks: list[nn.Module] = []
    width = features
    for kind, outside, _ in layers:
        blocks.append(_layer(kind, width, outside))
        width = outside
    model = nn.Sequential(*blocks).to(CUDA)
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.randn(batch_size, features, device=CUDA)
    y = torch.randint(0, width, (batch_size,), device=CUDA)
    loss = nn.CrossEntropyLoss()

    def step() -> None:
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()

    return Training(model=model, optimizer=optimizer, batch=(x, y), step=step)


def _layer(kind: str, inside: int, outside: int) -> nn.Module:
    name = kind.lower()
    if name == "linear":
        return nn.Linear(inside, outside)
    if "norm" in name:
        return nn.BatchNorm1d(outside)
    if name == "dropout":
        return nn.Dropout(0.2)
    return getattr(nn, kind)()
