"""Scratch memory of GPU reductions and other kernels, which fake kernels do not show.

Read in torch 2.13, and compared event by event with torch 2.14 on the phantom GPU (benchmarks.accuracy.phantom_grid):
partial sums of reductions, workspaces and intermediate sums of the attention kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

from memfit.predict.gpu_rules.attention import (
    Attention,
    efficient_backward_workspace,
    efficient_forward_scratch,
    flash_backward_scratch,
    flash_forward_scratch,
)
from memfit.predict.gpu_rules.embedding import sort_bytes
from memfit.predict.gpu_rules.reduction import Processors, reduction_scratch

aten = torch.ops.aten
HALF = (torch.float16, torch.bfloat16)
DROPOUT_STATE_BYTES = 16
CHUNK_ELEMENTS = 65536
"""What one block of a foreach kernel works on."""
MANY_ROWS, WARP, MOST_BLOCKS = 64 * 1024, 32, 32 * 1024
"""When the backward of a norm sums in parts, and the most blocks it starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What kernels ask of a GPU before they allocate."""

    capability: tuple[int, int] = (8, 0)
    processors: Processors = field(default_factory=Processors)


@dataclass(frozen=True, slots=True)
class Inside:
    """Requests within one call, after this many of its results: n > 0 allocates, -1 - k frees the k-th of them.

    What is not freed by a request is freed after `until` results, the last first; at once when there is no `until`.
    """

    num_before: int
    requests: tuple[int, ...]
    until: int | None = None


Rule = Callable[[Sequence[Any], Any, Card], "list[Inside]"]


def scratch_of(func: object, args: Sequence[object], result: object, card: Card) -> list[Inside]:
    """What this call allocates beside its results."""
    rule = RULES.get(func)
    if rule is None:
        return []
    first = args[0][0] if isinstance(args[0], (list, tuple)) else args[0]
    if not isinstance(first, torch.Tensor) or first.device.type != "cuda":
        return []
    return rule(args, result, card)


# ---- reductions ------------------------------------------------------------------------------------------------------


def _reduces(place: int | None, partial_bytes: Callable[[torch.dtype], int]) -> Rule:
    """A reduction whose argument at `place` names dimensions; without, all of them."""

    def rule(args: Sequence[Any], result: Any, card: Card) -> list[Inside]:
        source = args[0]
        dims = args[place] if place is not None and len(args) > place else None
        reduced = [dims] if isinstance(dims, int) else list(dims or range(source.dim()))
        found = reduction_scratch(
            source.shape, source.stride(), reduced, item_bytes=source.element_size(),
            partial_bytes=partial_bytes(source.dtype), processors=card.processors,
        )  # fmt: skip
        return [Inside(1, (buffer_bytes, counter_bytes, -2, -1)) for buffer_bytes, counter_bytes in found]

    return rule


def _copied(shape: Sequence[int]) -> Any:
    """What a reduction asks of a copy in the longest integer type, in order."""
    steps = [1]
    for size in reversed(shape[1:]):
        steps.insert(0, steps[0] * max(1, size))
    stride, count = tuple(steps[: len(shape)]), len(shape)
    return SimpleNamespace(
        shape=shape, dim=lambda: count, stride=lambda: stride, element_size=lambda: 8, dtype=torch.int64
    )


def _sums(place: int | None) -> Rule:
    """A sum: integers and masks are first copied to the longest type."""
    reduces = _reduces(place, _sum_bytes)

    def rule(args: Sequence[Any], result: Any, card: Card) -> list[Inside]:
        source = args[0]
        if source.dtype.is_floating_point or source.dtype.is_complex or source.dtype is torch.int64:
            return reduces(args, result, card)
        parts = reduces((_copied(source.shape), *args[1:]), result, card)
        inner = [request if request > 0 else request - 1 for part in parts for request in part.requests]
        return [Inside(1, (8 * source.numel(), *inner))]

    return rule


def _sum_bytes(dtype: torch.dtype) -> int:
    """A sum of halves is made in single precision, one of integers in the longest type."""
    return max(4, dtype.itemsize) if dtype.is_floating_point or dtype.is_complex else 8


def _own_bytes(dtype: torch.dtype) -> int:
    return dtype.itemsize


def _foreach_norm(args: Sequence[Any], result: Any, card: Card) -> list[Inside]:
    """One partial sum for every 65,536 elements of the longest tensor, for each of them."""
    chunks = max(-(-tensor.numel() // CHUNK_ELEMENTS) for tensor in args[0])
    return [Inside(0, (4 * len(args[0]) * chunks,), until=len(args[0]))]


def _entropy_with_logits(args: Sequence[Any], result: Any, card: Card) -> list[Inside]:
    """Logarithms of probabilities, and the loss of every element before it is reduced."""
    scores = args[0]
    reduction = args[4] if len(args) > 4 else 1
    if reduction == 0:
        return [Inside(0, (scores.nbytes,), until=1)]
    flat = reduction_scratch(
        [scores.numel()], [1], [0], item_bytes=scores.element_size(), partial_bytes=_sum_bytes(scores.dtype),
        processors=card.processors,
    )  # fmt: skip
    adding = [Inside(1, (buffer_bytes, counter_bytes, -2, -1)) for buffer_bytes, counter_bytes in flat]
    return [Inside(0, (scores.nbytes, scores.nbytes), until=1), *adding]


def _safe_softmax(args: Sequence[Any], result: Any, card: Card) -> list[Inside]:
    """Rows that are masked out everywhere are looked for, and a zero is made for them."""
    source, dim = args[:2]
    return [Inside(1, (source.numel(), source.numel() // source.shape[dim], result.element_size()))]


# ---- operators made of others ----------------------------------------------------------------------------------------


def _loss_before_it_is_reduced(args: Sequence[Any], result: Any, card: Card) -> list[Inside]:
    """The loss of every element, where it is reduced."""
    reduction = args[2] if len(args) > 2 else 1
    return [Inside(1, (kept_by_loss_bytes(args),))] if reduction else []


def kept_by_loss_bytes(args: Sequence[Any]) -> int:
    """The loss of every element of two tensors that are broadcast to one shape."""
    shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
    return math.prod(shape) * torch.promote_types(args[0].dtype, args[1].dtype).itemsize


def _magnitudes(args: Sequence[Any], result: Any, card: Card) -> list[Inside]:
    """Only floating-point numbers can be infinite: their magnitudes are compared."""
    return [Inside(0, (args[0].nbytes,), until=1)] if args[0].dtype.is_floating_point else []


def _one_roll_after_another(args: Sequence[Any], result: Any, card: Card) -> list[Inside]:
    """Each dimension but the last is rolled into a tensor of its own."""
    num_dims = len(args[2]) if len(args) > 2 else 0
    return [Inside(0, (result.nbytes,) * (num_dims - 1), until=1)] if num_dims > 1 else []


def _difference(args: Sequence[Any], result: Any, card: Card) -> list[Inside]:
    return [Inside(0, (kept_by_loss_bytes(args),), until=1)]


# ---- norms of rows ---------------------------------------------------------------------------------------------------


def _norm_backward(args: Sequence[Any], result: Any, card: Card) -> list[Inside]:
    """A gradient that is not contiguous is copied; of many short rows the weights' gradients are summed in parts.

    For `native_layer_norm_backward` and `_fused_rms_norm_backward`: the last argument says which results are wanted,
    the first of them the input's (ATen/native/cuda/layer_norm_kernel.cu).
    """
    gradient, source, normalized_shape, wanted = args[0], args[1], args[2], args[-1]
    copy = () if gradient.is_contiguous() else (gradient.nbytes,)
    length = math.prod(normalized_shape)
    num_rows = source.numel() // max(1, length)
    parts: tuple[int, ...] = ()
    if num_rows > MANY_ROWS and length // WARP < card.processors.count // 2:
        num_parts = min(MOST_BLOCKS // -(-length // WARP), -(-num_rows // WARP))
        weights = [part for part in result[1:] if part is not None]
        parts = tuple(num_parts * normalized_shape[-1] * part.element_size() for part in weights)
    return [Inside(sum(wanted), (*copy, *parts))] if copy or parts else []


# ---- pictures --------------------------------------------------------------------------------------------------------


def _convolution_backward(args: Sequence[Any], result: Any, card: Card) -> list[Inside]:
    """The gradient of the bias is a sum over everything but the channels."""
    gradient, wanted = args[0], args[10]
    if not wanted[2] or gradient.dim() < 3:
        return []
    others = [0, *range(2, gradient.dim())]
    found = reduction_scratch(
        gradient.shape, gradient.stride(), others, item_bytes=gradient.element_size(),
        partial_bytes=_sum_bytes(gradient.dtype), processors=card.processors,
    )  # fmt: skip
    return [Inside(sum(wanted), (buffer_bytes, counter_bytes, -2, -1)) for buffer_bytes, counter_bytes in found]


def _max_pool_backward(args: Sequence[Any], result: Any, card: Card) -> list[Inside]:
    """Gradient and places are copied into the order of the picture."""
    gradient, picture, places = args[0], args[1], args[-1]
    last = picture.is_contiguous(memory_format=torch.channels_last) and not picture.is_contiguous()
    order = torch.channels_last if last and picture.dim() == 4 else torch.contiguous_format
    copies = tuple(part.nbytes for part in (gradient, places) if not part.is_contiguous(memory_format=order))
    return [Inside(1, copies)] if copies else []


def _group_norm(args: Sequence[Any], result: Any, card: Card) -> list[Inside]:
    """Scale and shift of every channel of every picture; none where a channel is one number, or has no weights."""
    if args[5] == 1 or (args[1] is None and args[2] is None):
        return []
    channels = _sum_bytes(args[0].dtype) * args[3] * args[4]
    return [Inside(3, (channels, channels))]


def _group_norm_backward(args: Sequence[Any], result: Any, card: Card) -> list[Inside]:
    """Sums and factors of every channel, and factors of every group, of every picture."""
    item_bytes, pictures = _sum_bytes(args[0].dtype), args[5]
    channels, groups = item_bytes * pictures * args[6], item_bytes * pictures * args[8]
    num_results = sum(isinstance(part, torch.Tensor) for part in result)
    if args[7] == 1:
        return [Inside(num_results, (groups, groups))]
    by_weight = () if args[4] is None else (channels,)
    return [Inside(num_results, (channels, channels, groups, groups, *by_weight))]


def _index_put(args: Sequence[Any], result: Any, card: Card) -> list[Inside]:
    """Rows that are added up by their numbers: the numbers are checked, made plain, and sorted with their places.

    A backward knows its numbers to be in order and does not check them. Only rows named by one tensor are modelled.
    """
    named = [(dim, index) for dim, index in enumerate(args[1]) if index is not None]
    if len(args) < 4 or not args[3] or len(named) != 1 or named[0][1].dtype is not torch.int64:
        return []
    dim, index = named[0]
    numbers, count = 8 * index.numel(), index.numel()
    sorting = sort_bytes(count, args[0].shape[dim] - 1, 8)
    if torch._C._current_graph_task_id() != -1:
        return [Inside(1, (numbers, numbers, -1, numbers, numbers, numbers, sorting, -6))]
    check = (8, 8, 1, -3, 1, -4, -2, -1)
    return [Inside(1, (*check, numbers, numbers, -5, numbers, numbers, numbers, sorting, -10))]


# ---- attention -------------------------------------------------------------------------------------------------------


def _call(args: Sequence[Any], dropout: float) -> Attention:
    """The sizes of a call whose arguments begin with query, key and value."""
    query, key, value = args[:3]
    batch, heads, queries, head_size = query.shape
    return Attention(
        batch=batch, heads=heads, key_heads=key.shape[1], queries=queries, keys=key.shape[2],
        head_size=max(head_size, value.shape[-1]), is_half=query.dtype in HALF, dropout=dropout > 0,
    )  # fmt: skip


def _flash_forward(args: Sequence[Any], result: Any, card: Card) -> list[Inside]:
    """Parts of the keys are joined at the end of the call; dropout copies the state of the generator."""
    call = _call(args, args[3] if len(args) > 3 else 0.0)
    found = [Inside(2, tuple(flash_forward_scratch(call, card.processors.count)), until=4)]
    return [*found, Inside(4, (DROPOUT_STATE_BYTES,))] if call.dropout else found


def _flash_backward(args: Sequence[Any], result: Any, card: Card) -> list[Inside]:
    return [Inside(3, tuple(flash_backward_scratch(_call(args[1:], args[10]))))]


def _efficient_forward(args: Sequence[object], result: object, card: Card) -> list[Inside]:
    size = efficient_forward_scratch(_call(args, 0.0))
    return [Inside(4, (size,))] if size else []


def _efficient_backward(args: Sequence[Any], result: Any, card: Card) -> list[Inside]:
    """Single precision multiplies, adds and reorders gradient and output outside of the kernel."""
    call = _call(args[1:], args[9])
    workspace = efficient_backward_workspace(call, card.capability)
    num_results = sum(isinstance(part, torch.Tensor) for part in result)
    if call.is_half:
        return [Inside(num_results, (4 * call.rows, workspace))]
    product, sums = args[0].numel() * 4, 4 * call.rows
    reordered = call.heads > 1 and call.queries > 1
    steps = (product, sums, sums, -2, -1, workspace) if reordered else (product, sums, -1, workspace)
    return [Inside(num_results, steps)]


def _softmax_backward(args: Sequence[Any], result: Any, card: Card) -> list[Inside]:
    """Gradient times output is made first."""
    gradient, output = args[:2]
    kind = torch.promote_types(gradient.dtype, output.dtype)
    return [Inside(1, (gradient.numel() * kind.itemsize,))]


RESULT_KEEPS_EVERY_ELEMENT = {
    aten.mse_loss.default, aten.smooth_l1_loss.default, aten.soft_margin_loss.default,
    aten.binary_cross_entropy.default,
}  # fmt: skip
"""Losses whose reduced result keeps the storage in which the loss of every element was to stand."""
RULES: dict[Any, Rule] = {
    aten._softmax_backward_data.default: _softmax_backward,
    aten.sum.default: _sums(None),
    aten.sum.dim_IntList: _sums(1),
    aten.index_put.default: _index_put,
    aten.index_put_.default: _index_put,
    aten._index_put_impl_.default: _index_put,
    aten.mean.default: _reduces(None, _sum_bytes),
    aten.mean.dim: _reduces(1, _sum_bytes),
    aten.linalg_vector_norm.default: _reduces(2, _sum_bytes),
    aten.amax.default: _reduces(1, _own_bytes),
    aten.amin.default: _reduces(1, _own_bytes),
    aten._foreach_norm.Scalar: _foreach_norm,
    aten.binary_cross_entropy_with_logits.default: _entropy_with_logits,
    aten.mse_loss.default: _loss_before_it_is_reduced,
    aten.smooth_l1_loss.default: _loss_before_it_is_reduced,
    aten.huber_loss.default: _loss_before_it_is_reduced,
    aten.isinf.default: _magnitudes,
    aten.roll.default: _one_roll_after_another,
    aten.dist.default: _difference,
    aten.ldexp.Tensor: _difference,
    aten._safe_softmax.default: _safe_softmax,
    aten.convolution_backward.default: _convolution_backward,
    aten.max_pool2d_with_indices_backward.default: _max_pool_backward,
    aten.native_layer_norm_backward.default: _norm_backward,
    aten._fused_rms_norm_backward.default: _norm_backward,
    aten.native_group_norm.default: _group_norm,
    aten.native_group_norm_backward.default: _group_norm_backward,
    aten._scaled_dot_product_flash_attention.default: _flash_forward,
    aten._scaled_dot_product_flash_attention_backward.default: _flash_backward,
    aten._scaled_dot_product_efficient_attention.default: _efficient_forward,
    aten._scaled_dot_product_efficient_attention_backward.default: _efficient_backward,
}
