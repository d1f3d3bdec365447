"""Recurrent layers as one cuDNN call on fake tensors, with the size of its reserve by formula.

Without CUDA, torch takes a recurrent layer apart into one small product per place. Here `lstm`, `gru` and the plain
ones are registered for fake CUDA tensors as `_cudnn_rnn`, whose derivative torch knows; its fake kernel reports an
empty reserve and its backward has none (torch 2.13), so both are answered here. The weights' gradients are views of
one buffer, as cuDNN leaves them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol, cast

import torch
from torch._ops import OpOverload

from memfit.predict.gpu_rules import recurrent as memory
from memfit.predict.observe.arguments import (
    Arguments,
    Keywords,
    flags_at,
    integer_at,
    integers_at,
    optional_tensor_at,
    tensor_at,
    tensors_at,
)
from memfit.predict.observe.known_values import integers_of

aten = torch.ops.aten
FORWARD, BACKWARD = aten._cudnn_rnn.default, aten._cudnn_rnn_backward.default
States = torch.Tensor | Sequence[torch.Tensor]
"""The hidden state, or, for an LSTM, also that of the cells."""
_registered: list[torch.library.Library] = []
_asked: dict[str, Any] = {}


def register_recurrent(note: Callable[[str, str], None]) -> None:
    """Send recurrent layers on fake CUDA tensors to one operator; `note` is called with what is assumed."""
    _asked["note"] = note
    if _registered:
        return
    library = torch.library.Library("aten", "IMPL")
    for mode in memory.MODES:
        for key in ("AutogradCUDA", "CUDA"):
            library.impl(f"{mode}.input", _padded(mode), key)
            library.impl(f"{mode}.data", _packed(mode), key)
    _registered.append(library)


def _padded(mode: memory.Mode) -> Callable[..., object]:
    """The layer over a padded batch: `hx` is one tensor, for an LSTM a pair."""

    def run(
        x: torch.Tensor, hx: States, params: Sequence[torch.Tensor], has_biases: bool, num_layers: int, dropout: float,
        train: bool, bidirectional: bool, batch_first: bool,
    ) -> tuple[torch.Tensor, ...]:  # fmt: skip
        return _run(mode, x, hx, params, (num_layers, batch_first, dropout, train, bidirectional), [])

    return run


def _packed(mode: memory.Mode) -> Callable[..., object]:
    """The layer over a packed batch, which has a row for every place of every text."""

    def run(
        x: torch.Tensor, batch_sizes: torch.Tensor, hx: States, params: Sequence[torch.Tensor], has_biases: bool,
        num_layers: int, dropout: float, train: bool, bidirectional: bool,
    ) -> tuple[torch.Tensor, ...]:  # fmt: skip
        return _run(mode, x, hx, params, (num_layers, False, dropout, train, bidirectional), integers_of(batch_sizes))

    return run


def _run(
    mode: memory.Mode,
    x: torch.Tensor,
    hx: States,
    params: Sequence[torch.Tensor],
    how: tuple[int, bool, float, bool, bool],
    batch_sizes: list[int],
) -> tuple[torch.Tensor, ...]:
    """One call of cuDNN; `how` is layers, batch first, dropout, training, both directions."""
    _asked["note"](
        "kernels", f"the {mode} runs as one call of cuDNN; its workspace is assumed by rule, its reserve by formula"
    )
    hidden, cell = (hx[0], hx[1]) if mode == "lstm" else (cast("torch.Tensor", hx), None)
    if torch.is_autocast_enabled("cuda") and x.dtype is not torch.float64:
        x, hidden, cell, params = _in_half(x, hidden, cell, params)
    per_layer = len(params) // (how[0] * (2 if how[4] else 1))
    inner_size = cell.shape[-1] if cell is not None else hidden.shape[-1]
    projected = hidden.shape[-1] if hidden.shape[-1] != inner_size else 0
    output, last, last_cell, _, _ = FORWARD(
        x, params, per_layer, x.new_empty(0), hidden, cell, memory.MODES.index(mode), inner_size, projected, *how,
        batch_sizes, None,
    )  # fmt: skip
    return (output, last, last_cell) if mode == "lstm" else (output, last)


class _Types(Protocol):
    """What a forward keeps for its backward."""

    dtypes: list[torch.dtype]


class _FlatHalf(torch.autograd.Function):
    """Weights as views of one new buffer in half precision, as autocast makes them (also where it is for bf16)."""

    @staticmethod
    def forward(ctx: _Types, *weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """One buffer for all of them."""
        ctx.dtypes = [weight.dtype for weight in weights]
        return tuple(_views_of_one_buffer(weights, torch.float16))

    @staticmethod
    def backward(ctx: _Types, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Back to the types of the weights, the last first."""
        pairs = list(zip(gradients, ctx.dtypes, strict=True))
        return tuple(reversed([gradient.to(dtype) for gradient, dtype in reversed(pairs)]))


def _in_half(
    x: torch.Tensor, hidden: torch.Tensor, cell: torch.Tensor | None, params: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, Sequence[torch.Tensor]]:
    """What autocast hands to the library: everything in half precision."""
    half = torch.float16
    if params[0].dtype is not half:
        params = cast("Sequence[torch.Tensor]", _FlatHalf.apply(*params))
    cell = None if cell is None else cell.to(half)
    hidden = hidden.to(half)
    return x.to(half), hidden, cell, params


def answer_forward(func: OpOverload, args: Arguments, kwargs: Keywords, real: object) -> tuple[object, ...]:
    """The fake kernel's results, in the order of the library and with the reserve that it would keep."""
    output, last, last_cell, reserve, weights = func(*args, **kwargs)
    output = _places_first(output) if args[10] else output
    if args[12]:
        reserve = tensor_at(args, 0).new_empty(memory.reserve_bytes(_call(args)), dtype=torch.uint8)
    return output, last, last_cell, reserve, weights


def answer_backward(func: OpOverload, args: Arguments, kwargs: Keywords, real: object) -> tuple[object, ...]:
    """Gradients of input, states and weights, each as large as what it belongs to; only the last are made on demand."""
    x, weights, hidden = tensor_at(args, 0), tensors_at(args, 1), tensor_at(args, 4)
    cell, wanted = optional_tensor_at(args, 5), flags_at(args, -1)
    return (
        _places_first(x) if args[14] else torch.empty_like(x),
        torch.empty_like(hidden),
        torch.empty_like(cell) if cell is not None else None,
        _views_of_one_buffer(weights) if wanted[3] else [None for _ in weights],
    )


def _places_first(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor like this one whose batch comes first to the eye only, as the library leaves it."""
    return tensor.new_empty(tensor.transpose(0, 1).shape).transpose(0, 1)


def _views_of_one_buffer(weights: Sequence[torch.Tensor], dtype: torch.dtype | None = None) -> list[torch.Tensor]:
    buffer = weights[0].new_empty(sum(weight.numel() for weight in weights), dtype=dtype or weights[0].dtype)
    parts = buffer.split([weight.numel() for weight in weights])
    return [part.view(weight.shape) for part, weight in zip(parts, weights, strict=True)]


def course_of(func: object, args: Arguments, num_processors: int) -> list[int | None]:
    """What a call allocates in order: None is its next result, n > 0 something else, -1 - k releases the k-th of those.

    The library works on contiguous tensors with the places first, so a batch that comes first is copied.
    """
    workspace = library_workspace_bytes(func, args, num_processors)
    if func is FORWARD:
        copied = _copied(tensor_at(args, 0), bool(args[10]))
        results = [None] * (3 if args[5] is not None else 2)
        kept = [None] if args[12] else []
        return [*copied, *results, workspace, *kept, -1 - len(copied), *_released(copied)]
    return _backward_course(args, workspace)


def library_workspace_bytes(func: object, args: tuple[object, ...], num_processors: int) -> int:
    """What the library itself takes for the length of a call, by rule."""
    is_backward, capability = func is BACKWARD, torch.cuda.get_device_capability()
    call = _call(args, backward=is_backward)
    is_persistent = memory.is_persistent(
        call, is_backward=is_backward, is_fp16=tensor_at(args, 0).dtype is torch.float16, capability=capability,
        num_processors=num_processors,
    )  # fmt: skip
    return memory.workspace_bytes(replace(call, is_persistent=is_persistent), capability)


def draws_dropout(func: object, args: tuple[object, ...]) -> bool:
    """Whether this call needs the generators of dropout."""
    return func is FORWARD and bool(args[11]) and bool(args[12])


def _backward_course(args: Arguments, workspace: int) -> list[int | None]:
    """Zeros for gradients that did not come; one pass for input and states, one for the weights."""
    x, hidden, cell = tensor_at(args, 0), tensor_at(args, 4), optional_tensor_at(args, 5)
    output, batch_first = tensor_at(args, 6), bool(args[14])
    given = zip((args[7], args[8], args[9]), (output, hidden, cell), strict=True)
    zeros = [like.nbytes for gradient, like in given if gradient is None and like is not None]
    incoming = [] if args[7] is None else _copied(tensor_at(args, 7), batch_first)
    copied, again = [*_copied(x, batch_first), *incoming], _copied(x, batch_first)
    results = [None] * (3 if cell is not None else 2)
    first, second = len(zeros), len(zeros) + len(copied) + 1
    course = [*zeros, *copied, *results, workspace, -1 - (second - 1), *_released(copied, first)]
    if flags_at(args, -1)[3]:
        course += [*again, None, workspace, -1 - (second + len(again)), *_released(again, second)]
    return [*course, *_released(zeros)]


def _copied(tensor: torch.Tensor, batch_first: bool) -> list[int]:
    placed = tensor.transpose(0, 1) if batch_first else tensor
    return [] if placed.is_contiguous() else [tensor.nbytes]


def _released(requests: list[int], first: int = 0) -> list[int]:
    return [-1 - (first + number) for number in reversed(range(len(requests)))]


def _call(args: Arguments, *, backward: bool = False) -> memory.RecurrentCall:
    shift = 4 if backward else 0
    x, batch_sizes = tensor_at(args, 0), integers_at(args, 14 + shift)
    mode, hidden_size, projected_size, num_layers = (integer_at(args, place + shift) for place in range(6, 10))
    places, batch = math.prod(x.shape[:-1]), tensor_at(args, 4).shape[-2]
    return memory.RecurrentCall(
        mode=memory.MODES[mode],
        places=places,
        batch=batch,
        length=len(batch_sizes) or places // max(1, batch),
        input_size=x.shape[-1],
        hidden_size=hidden_size,
        projected_size=projected_size,
        num_layers=num_layers,
        directions=2 if args[13 + shift] else 1,
        item_bytes=x.element_size(),
        has_dropout=bool(args[11 + shift]) and bool(args[12 + shift]),
        is_packed=bool(batch_sizes),
        is_training=bool(args[12 + shift]),
    )
