"""Models whose peak lies inside one block, between modules, or in no module at all; each with its batch and loss."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from benchmarks.plans import peers_torch as peers
from benchmarks.plans.peers_torch import Step

WIDTH, ROWS = 128, 1536


def _convolution(before: int, after: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(before, after, 3, stride, 1), nn.BatchNorm2d(after), nn.ReLU(inplace=True))


class _UNet(nn.Module):
    """Three levels; pooling, upsampling and concatenation are functions between modules."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        sizes = [width, 2 * width, 4 * width]
        self.down = nn.ModuleList(_convolution(a, b) for a, b in zip([3, *sizes], sizes, strict=False))
        self.middle = _convolution(sizes[-1], sizes[-1])
        self.up = nn.ModuleList([_convolution(8 * width, 2 * width), _convolution(4 * width, width)])
        self.last, self.head = _convolution(2 * width, width), nn.Conv2d(width, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for block in self.down:
            skips.append(block(x))
            x = F.max_pool2d(skips[-1], 2)
        x = self.middle(x)
        for block in [*self.up, self.last]:
            x = block(torch.cat([F.interpolate(x, scale_factor=2), skips.pop()], 1))
        return self.head(x)


def _u_net() -> Step:
    batch = torch.randn(4, 3, 64, 64), torch.randint(0, 2, (4, 64, 64))
    return Step(_UNet(), batch, F.cross_entropy, "U-Net of three levels, batch 4 x 3 x 64 x 64")


class _Vae(nn.Module):
    """Two convolutional halves with a draw between them."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            _convolution(3, 32), _convolution(32, 32, 2), _convolution(32, 32, 2), nn.Flatten(), nn.Linear(8192, 64)
        )
        self.decoder = nn.Sequential(
            nn.Linear(32, 8192), nn.Unflatten(1, (32, 16, 16)), nn.Upsample(scale_factor=2), _convolution(32, 32),
            nn.Upsample(scale_factor=2), _convolution(32, 32), nn.Conv2d(32, 3, 3, 1, 1),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        mean, spread = self.encoder(x).chunk(2, 1)
        return self.decoder(mean + torch.randn_like(mean) * (spread / 2).exp()), mean, spread


def _vae() -> Step:
    def loss(out: tuple[torch.Tensor, ...], target: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(out[0], target) + (out[1].square() + out[2].exp() - out[2]).mean()

    x = torch.randn(4, 3, 64, 64)
    return Step(_Vae(), (x, x), loss, "convolutional VAE, batch 4 x 3 x 64 x 64")


class _Block(nn.Module):
    """A feed-forward block with a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class _WritesIntoItsInput(_Block):
    """Scales what it is given in place."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.mul_(1.01)
        return super().forward(x)


class _Stack(nn.Module):
    """Blocks one after another, each under torch's own checkpoint where `checkpoints`."""

    def __init__(self, kind: Callable[[], nn.Module], *, checkpoints: bool = False) -> None:
        super().__init__()
        self.first, self.blocks = nn.Linear(WIDTH, WIDTH), nn.ModuleList(kind() for _ in range(8))
        self.head, self.checkpoints = nn.Linear(WIDTH, 10), checkpoints

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpoints else block(x)
        return self.head(x)


def _rows(model: nn.Module, what: str) -> Step:
    batch = torch.randn(ROWS, WIDTH), torch.randint(0, 10, (ROWS,))
    return Step(model, batch, F.cross_entropy, f"{what}, batch {ROWS} x {WIDTH}")


class _Functions(nn.Module):
    """Eight layers without a module."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(WIDTH, WIDTH) / WIDTH**0.5 for _ in range(8))
        self.head = nn.Parameter(torch.randn(WIDTH, 10) / WIDTH**0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for weight in self.weights:
            x = F.gelu(x @ weight)
        return x @ self.head


class _Gated(nn.Module):
    """Products of two branches, added up outside of their modules."""

    def __init__(self) -> None:
        super().__init__()
        self.values = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(6))
        self.gates = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(6))
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for value, gate in zip(self.values, self.gates, strict=True):
            x = F.layer_norm(x + F.gelu(value(x)) * torch.sigmoid(gate(x)), (WIDTH,))
        return self.head(x)


MODELS: dict[str, Callable[[], Step]] = {
    "Llama": lambda: peers.build("Llama"),
    "VAE": _vae,
    "U-Net": _u_net,
    "writes into its input": lambda: _rows(_Stack(_WritesIntoItsInput), "8 blocks that write into their input"),
    "already checkpointed": lambda: _rows(_Stack(_Block, checkpoints=True), "8 blocks under torch's checkpoint"),
    "functions only": lambda: _rows(_Functions(), "8 layers without a module"),
    "gated branches": lambda: _rows(_Gated(), "6 pairs of branches joined by functions"),
    "plain stack": lambda: _rows(_Stack(_Block), "8 blocks"),
    "GPT-2": lambda: peers.build("GPT-2"),
    "ViT": lambda: peers.build("ViT"),
    "T5": lambda: peers.build("T5"),
    "convolutions": lambda: peers.build("convolutions"),
    "VGG-like": lambda: peers.build("VGG-like"),
}


def build(name: str) -> Step:
    """One of the models, always with the same weights and batch."""
    torch.manual_seed(0)
    return MODELS[name]()
