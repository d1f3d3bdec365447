"""Single layers with kernels of their own on a GPU, for the grid that compares the two engines."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from memfit.job.training import Training

LENGTHS = (37, 30, 30, 21, 9, 8, 2, 1)


class Packed(nn.Module):
    """A recurrent layer over a packed batch, padded again behind it."""

    def __init__(self, kind: str, layers: int, both_ways: bool, dropout: float) -> None:
        super().__init__()
        self.layer = getattr(nn, kind)(
            48, 64, num_layers=layers, batch_first=True, bidirectional=both_ways, dropout=dropout
        )
        self.head = nn.Linear(64 * (2 if both_ways else 1), 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores at every place."""
        packed = pack_padded_sequence(x, list(LENGTHS), batch_first=True)
        output, _ = pad_packed_sequence(self.layer(packed)[0], batch_first=True)
        return self.head(output)


def packed(
    kind: str = "LSTM", layers: int = 1, both_ways: bool = False, dropout: float = 0.0, device: str = "cuda"
) -> Training:
    """Texts of different lengths through one recurrent network."""
    model = Packed(kind, layers, both_ways, dropout).to(device)
    return _training(model, torch.randn(len(LENGTHS), LENGTHS[0], 48, device=device))


def padded(kind: str = "LSTM", layers: int = 1, both_ways: bool = False, device: str = "cuda") -> Training:
    """The same network over a batch of one length."""

    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = getattr(nn, kind)(48, 64, num_layers=layers, batch_first=True, bidirectional=both_ways)
            self.head = nn.Linear(64 * (2 if both_ways else 1), 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.layer(x)[0])

    return _training(Padded().to(device), torch.randn(len(LENGTHS), LENGTHS[0], 48, device=device))


def embedded(tokens: int = 4096, words: int = 5000, width: int = 64, device: str = "cuda") -> Training:
    """Words looked up, and their gradients added up."""
    model = nn.Sequential(nn.Embedding(words, width), nn.Linear(width, 10)).to(device)
    return _training(model, torch.randint(0, words, (8, tokens // 8), device=device))


class SharedHeads(nn.Module):
    """Attention whose keys and values are shared by several heads."""

    def __init__(self, width: int, heads: int, key_heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.key_heads, self.causal, size = heads, key_heads, causal, width // heads
        self.query, self.key, self.value = (nn.Linear(width, size * count) for count in (heads, key_heads, key_heads))
        self.outward = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The stream after attention."""
        counts = (self.heads, self.key_heads, self.key_heads)
        q, k, v = (
            layer(x).unflatten(-1, (count, -1)).transpose(1, 2)
            for layer, count in zip((self.query, self.key, self.value), counts, strict=True)
        )
        attended = scaled_dot_product_attention(q, k, v, is_causal=self.causal, enable_gqa=True)
        return x + self.outward(attended.transpose(1, 2).flatten(2))


def shared_heads(precision: str = "bf16", causal: bool = True, device: str = "cuda") -> Training:
    """Two layers of attention over eight heads that share two."""
    model = nn.Sequential(*(SharedHeads(256, 8, 2, causal) for _ in range(2))).to(device)
    return _training(model, torch.randn(4, 128, 256, device=device), precision)


NORMS = {"rms": nn.RMSNorm, "layer": nn.LayerNorm, "group": partial(nn.GroupNorm, 8)}


def normed(kind: str = "rms", precision: str = "fp32", rows: int = 2048, device: str = "cuda") -> Training:
    """Two layers with a normalisation between them."""
    model = nn.Sequential(nn.Linear(256, 512), NORMS[kind](512), nn.GELU(), nn.Linear(512, 10)).to(device)
    return _training(model, torch.randn(rows, 256, device=device), precision)


def pictured(weights: bool = True, precision: str = "fp32", device: str = "cuda") -> Training:
    """Group normalisation over pictures, with weights or without."""
    norm = nn.GroupNorm(8, 32, affine=weights)
    model = nn.Sequential(nn.Linear(256, 512), nn.Unflatten(1, (32, 4, 4)), norm, nn.Flatten(), nn.Linear(512, 10))
    return _training(model.to(device), torch.randn(512, 256, device=device), precision)


class Classified(nn.Module):
    """Scores for many classes, and their cross entropy."""

    def __init__(self, classes: int, smoothing: float) -> None:
        super().__init__()
        self.head, self.classes, self.smoothing = nn.Linear(64, classes), classes, smoothing

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The loss; every seventh row does not count."""
        targets = torch.arange(len(x), device=x.device) % self.classes
        targets = targets.masked_fill(targets % 7 == 0, -100)
        return nn.functional.cross_entropy(self.head(x), targets, label_smoothing=self.smoothing)


def classified(
    precision: str = "fp32", smoothing: float = 0.0, rows: int = 512, classes: int = 5000, device: str = "cuda"
) -> Training:
    """Cross entropy over many classes."""
    return _training(Classified(classes, smoothing).to(device), torch.randn(rows, 64, device=device), precision)


class Indexed(nn.Module):
    """Rows that are read, written or added up by their numbers, or where a mask is true."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.inward, self.how = nn.Linear(64, 64), how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The rows after it."""
        y, numbers = self.inward(x), torch.arange(len(x), device=x.device) // 2
        if self.how == "read":
            return y[numbers]
        if self.how == "masked":
            return y[numbers % 3 == 0]
        if self.how == "written":
            return torch.zeros_like(y).index_put((numbers,), y)
        return torch.zeros_like(y).index_put((numbers,), y, accumulate=True)


def indexed(how: str = "read", rows: int = 4096, device: str = "cuda") -> Training:
    """Advanced indexing, whose backward is the other of reading and writing."""
    return _training(Indexed(how).to(device), torch.randn(rows, 64, device=device))


def _training(model: nn.Module, batch: torch.Tensor, precision: str = "fp32") -> Training:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
            loss = model(batch).float().pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return Training(model=model, optimizer=optimizer, batch=(batch,), step=step)
