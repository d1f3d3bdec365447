"""How do recurrent layers run on a GPU that is not there: as one call of cuDNN, with its reserve by formula?

Without CUDA, torch takes a recurrent layer apart into one small product per place. Here `lstm`, `gru` and the plain
ones are registered for fake CUDA tensors as `_cudnn_rnn`, whose derivative torch knows; its fake kernel reports an
empty reserve and its backward has none (torch 2.13), so both are answered here. The weights' gradients are views of
one buffer, as cuDNN leaves them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from memfit.predict import recurrent_memory as memory

aten = torch.ops.aten
FORWARD, BACKWARD = aten._cudnn_rnn.default, aten._cudnn_rnn_backward.default
_registered: list[Any] = []
_asked: dict[str, Any] = {}


def register_recurrent(note: Callable[[str, str], None]) -> None:
    """Send recurrent layers on fake CUDA tensors to one operator; `note` is told what is assumed."""
    _asked["note"] = note
    if _registered:
        return
    library = torch.library.Library("aten", "IMPL")
    for mode in memory.MODES:
        for key in ("AutogradCUDA", "CUDA"):
            library.impl(f"{mode}.input", _padded(mode), key)
    _registered.append(library)


def _padded(mode: memory.Mode) -> Callable[..., Any]:
    """The layer over a padded batch: `hx` is one tensor, for an LSTM a pair."""

    def run(
        x: Any, hx: Any, params: Any, has_biases: bool, num_layers: int, dropout: float, train: bool,
        bidirectional: bool, batch_first: bool,
    ) -> Any:  # fmt: skip
        _asked["note"](
            "kernels", f"the {mode} runs as one call of cuDNN; its workspace is assumed by rule, its reserve by formula"
        )
        hidden, cell = (hx[0], hx[1]) if mode == "lstm" else (hx, None)
        per_layer = len(params) // (num_layers * (2 if bidirectional else 1))
        inner_size = cell.shape[-1] if cell is not None else hidden.shape[-1]
        projected = hidden.shape[-1] if hidden.shape[-1] != inner_size else 0
        output, last, last_cell, _, _ = FORWARD(
            x, params, per_layer, x.new_empty(0), hidden, cell, memory.MODES.index(mode), inner_size, projected,
            num_layers, batch_first, dropout, train, bidirectional, [], None,
        )  # fmt: skip
        return (output, last, last_cell) if mode == "lstm" else (output, last)

    return run


def answer_forward(func: Any, args: tuple[Any, ...], kwargs: Any, real: Any) -> tuple[Any, ...]:
    """The fake kernel's results, with the reserve that cuDNN would keep."""
    output, last, last_cell, reserve, weights = func(*args, **kwargs)
    if args[12]:
        reserve = args[0].new_empty(memory.reserve_bytes(_call(args)), dtype=torch.uint8)
    return output, last, last_cell, reserve, weights


def answer_backward(func: Any, args: tuple[Any, ...], kwargs: Any, real: Any) -> tuple[Any, ...]:
    """Gradients of input, states and weights, each as large as what it belongs to."""
    x, weights, hidden, cell, wanted = args[0], args[1], args[4], args[5], args[-1]
    return (
        torch.empty_like(x) if wanted[0] else None,
        torch.empty_like(hidden) if wanted[1] else None,
        torch.empty_like(cell) if wanted[2] and cell is not None else None,
        _views_of_one_buffer(weights) if wanted[3] else [None for _ in weights],
    )


def _views_of_one_buffer(weights: list[Any]) -> list[Any]:
    buffer = weights[0].new_empty(sum(weight.numel() for weight in weights))
    parts = buffer.split([weight.numel() for weight in weights])
    return [part.view(weight.shape) for part, weight in zip(parts, weights, strict=True)]


def workspace_bytes(args: tuple[Any, ...], *, backward: bool) -> int:
    """What the call takes while it runs; in backward also contiguous copies of a batch that comes first."""
    first = 14 if backward else 10
    copies = sum(
        tensor.nbytes for tensor in ((args[0], args[6], args[7]) if backward else args[:1]) if tensor is not None
    )
    inner = memory.workspace_bytes(_call(args, backward=backward), torch.cuda.get_device_capability())
    return inner + (copies if args[first] else 0)


def _call(args: tuple[Any, ...], *, backward: bool = False) -> memory.RecurrentCall:
    shift = 4 if backward else 0
    x, mode, hidden_size, projected_size, num_layers = args[0], *args[6 + shift : 10 + shift]
    return memory.RecurrentCall(
        mode=memory.MODES[mode],
        places=math.prod(x.shape[:-1]),
        input_size=x.shape[-1],
        hidden_size=hidden_size,
        projected_size=projected_size,
        num_layers=num_layers,
        directions=2 if args[13 + shift] else 1,
        item_bytes=x.element_size(),
        has_dropout=bool(args[11 + shift]),
    )
