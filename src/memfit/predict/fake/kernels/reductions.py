"""Scratch memory of GPU reductions and other kernels, which fake kernels do not show.

Read in torch 2.13, and compared event by event with torch 2.14 on the phantom GPU (benchmarks.accuracy.phantom_grid):
partial sums of reductions, workspaces and intermediate sums of the attention kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from memfit.predict.fake.kernels.copied_operands import multiplies, norm_of_rows, of_flash_backward
from memfit.predict.fake.kernels.kernel_call import Card, Inside, KernelCall, Rule, behind
from memfit.predict.fake.kernels.sorting import (
    complex_magnitudes,
    distances,
    draws,
    shuffles,
    sorts,
    top,
    transforms,
    whole_median,
)
from memfit.predict.gpu_rules.attention import (
    Attention,
    efficient_backward_workspace,
    efficient_forward_scratch,
    flash_backward_scratch,
    flash_forward_scratch,
)
from memfit.predict.gpu_rules.embedding import sort_bytes
from memfit.predict.gpu_rules.reduction import reduction_scratch
from memfit.predict.observe.arguments import several

aten = torch.ops.aten
HALF = (torch.float16, torch.bfloat16)
DROPOUT_STATE_BYTES = 16
CHUNK_ELEMENTS = 65536
"""What one block of a foreach kernel works on."""
MANY_ROWS, WARP, MOST_BLOCKS = 64 * 1024, 32, 32 * 1024
"""When the backward of a norm sums in parts, and the most blocks it starts."""


def scratch_of(func: object, args: Sequence[object], result: object, card: Card) -> list[Inside]:
    """What this call allocates beside its results."""
    if func in SHUFFLES and isinstance(result, torch.Tensor) and result.device.type == "cuda":
        return shuffles(KernelCall(args, result, card))
    rule = RULES.get(func)
    if rule is None:
        return []
    first = args[0][0] if isinstance(args[0], (list, tuple)) else args[0]
    if not isinstance(first, torch.Tensor) or first.device.type != "cuda":
        return []
    return rule(KernelCall(args, result, card))


# ---- reductions ------------------------------------------------------------------------------------------------------


def _reduces(place: int | None, partial_bytes: Callable[[torch.dtype], int], num_results: int = 1) -> Rule:
    """A reduction whose argument at `place` names dimensions; without, all of them."""

    def rule(call: KernelCall) -> list[Inside]:
        args, card = call.args, call.card
        source = args[0]
        dims = args[place] if place is not None and len(args) > place else None
        reduced = [dims] if isinstance(dims, int) else list(dims or range(source.dim()))
        found = reduction_scratch(
            source.shape, source.stride(), reduced, item_bytes=source.element_size(),
            partial_bytes=partial_bytes(source.dtype), processors=card.processors,
        )  # fmt: skip
        return [Inside(num_results, (buffer_bytes, counter_bytes, -2, -1)) for buffer_bytes, counter_bytes in found]

    return rule


def _copied(shape: Sequence[int]) -> SimpleNamespace:
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

    def rule(call: KernelCall) -> list[Inside]:
        args = call.args
        source = args[0]
        if source.dtype.is_floating_point or source.dtype.is_complex or source.dtype is torch.int64:
            return reduces(call)
        parts = reduces(call.of(_copied(source.shape), *args[1:]))
        return [Inside(1, (8 * source.numel(), *behind(1, _requests(parts))))]

    return rule


def _counts(place: int | None) -> Rule:
    """A mask of the elements that are not zero is made, and summed."""
    reduces = _reduces(place, _sum_bytes)

    def rule(call: KernelCall) -> list[Inside]:
        args = call.args
        count = args[0].numel()
        mask = () if args[0].dtype is torch.bool else (count,)
        parts = reduces(call.of(_copied(args[0].shape), *args[1:]))
        return [Inside(1, (*mask, 8 * count, *behind(1 + len(mask), _requests(parts))))]

    return rule


def _requests(parts: Sequence[Inside]) -> list[int]:
    return [request for part in parts for request in part.requests]


def _flat_sum(count: int, dtype: torch.dtype, card: Card) -> tuple[int, ...]:
    """Requests of a sum over elements that lie in a row."""
    found = reduction_scratch(
        [count], [1], [0], item_bytes=dtype.itemsize, partial_bytes=_sum_bytes(dtype), processors=card.processors
    )
    return tuple(request for buffer_bytes, counter_bytes in found for request in (buffer_bytes, counter_bytes))


def _sum_bytes(dtype: torch.dtype) -> int:
    """A sum of halves is made in single precision, one of integers in the longest type."""
    return max(4, dtype.itemsize) if dtype.is_floating_point or dtype.is_complex else 8


def _own_bytes(dtype: torch.dtype) -> int:
    return dtype.itemsize


def _moment_bytes(dtype: torch.dtype) -> int:
    """Mean, squares, and how many they are of, twice."""
    return 32 if dtype is torch.float64 else 16


def _with_place_bytes(dtype: torch.dtype) -> int:
    """A value, and where it was found."""
    return 16


def _mask_bytes(dtype: torch.dtype) -> int:
    return 1


def _two_bytes(dtype: torch.dtype) -> int:
    """The least and the largest."""
    return 2 * dtype.itemsize


def _foreach_norm(call: KernelCall) -> list[Inside]:
    """One partial sum for every 65,536 elements of the longest tensor, for each of them."""
    args = call.args
    chunks = max(-(-tensor.numel() // CHUNK_ELEMENTS) for tensor in args[0])
    return [Inside(0, (4 * len(args[0]) * chunks,), until=len(args[0]))]


def _entropy_with_logits(call: KernelCall) -> list[Inside]:
    """Logarithms of probabilities, and the loss of every element before it is reduced."""
    args, card = call.args, call.card
    scores = args[0]
    reduction = args[4] if len(args) > 4 else 1
    if reduction == 0:
        return [Inside(0, (scores.nbytes,), until=1)]
    return [Inside(1, (scores.nbytes, scores.nbytes, *_flat_sum(scores.numel(), scores.dtype, card)))]


def _safe_softmax(call: KernelCall) -> list[Inside]:
    """Rows that are masked out everywhere are looked for, and a zero is made for them."""
    args, result = call.args, call.result
    source, dim = args[:2]
    return [Inside(1, (source.numel(), source.numel() // source.shape[dim], result.element_size()))]


# ---- operators made of others ----------------------------------------------------------------------------------------


def _loss_before_it_is_reduced(call: KernelCall) -> list[Inside]:
    """The loss of every element, where it is reduced."""
    args, card = call.args, call.card
    reduction = args[2] if len(args) > 2 else 1
    if not reduction:
        return []
    kind = torch.promote_types(args[0].dtype, args[1].dtype)
    every_bytes = kept_by_loss_bytes(args)
    return [Inside(1, (every_bytes, *_flat_sum(every_bytes // kind.itemsize, kind, card)))]


def kept_by_loss_bytes(args: Sequence[object]) -> int:
    """The loss of every element of two tensors that are broadcast to one shape."""
    first, second = several(args[:2])
    shape = torch.broadcast_shapes(first.shape, second.shape)
    return math.prod(shape) * torch.promote_types(first.dtype, second.dtype).itemsize


def _magnitudes(call: KernelCall) -> list[Inside]:
    """Only floating-point numbers can be infinite: their magnitudes are compared."""
    args = call.args
    return [Inside(0, (args[0].nbytes,), until=1)] if args[0].dtype.is_floating_point else []


def _one_roll_after_another(call: KernelCall) -> list[Inside]:
    """Each dimension but the last is rolled into a tensor of its own."""
    args, result = call.args, call.result
    num_dims = len(args[2]) if len(args) > 2 else 0
    return [Inside(0, (result.nbytes,) * (num_dims - 1), until=1)] if num_dims > 1 else []


def _log_of_summed_exponentials(call: KernelCall) -> list[Inside]:
    """Maxima are found and looked at, then exponentials of the differences are summed (the maxima live to the end)."""
    args, result = call.args, call.result
    source, item_bytes = args[0], result.element_size()
    largest, summed = (_reduces(1, size)(call) for size in (_own_bytes, _sum_bytes))
    first = _requests(largest)
    held = sum(request > 0 for request in first)
    checked = (result.nbytes, result.numel(), -2 - held, -1 - held)
    held += 2
    return [
        Inside(1, (*first, *checked, source.numel() * item_bytes, result.nbytes, *behind(held + 2, _requests(summed))))
    ]


def _where_of_two_types(call: KernelCall) -> list[Inside]:
    """What is of another type than the result is copied; a single number is not."""
    args, result = call.args, call.result
    given = [part for part in args[1:3] if isinstance(part, torch.Tensor) and part.dim()]
    copies = tuple(part.numel() * result.element_size() for part in given if part.dtype is not result.dtype)
    return [Inside(1, copies)] if copies else []


def _noise_to_add(call: KernelCall) -> list[Inside]:
    """Numbers are drawn into a tensor of their own, to which the means are added."""
    result = call.result
    return [Inside(1, (result.nbytes,))]


def _windows(call: KernelCall) -> list[Inside]:
    """Pictures that are not in plain order are copied."""
    args = call.args
    return [] if args[0].is_contiguous() else [Inside(0, (args[0].nbytes,), until=1)]


def _difference(call: KernelCall) -> list[Inside]:
    args = call.args
    return [Inside(0, (kept_by_loss_bytes(args),), until=1)]


def _powers(call: KernelCall) -> list[Inside]:
    """Powers of two, made of exponents that are no whole numbers."""
    args = call.args
    return _difference(call) if args[1].dtype.is_floating_point else []


# ---- norms of rows ---------------------------------------------------------------------------------------------------


def _norm_backward(call: KernelCall) -> list[Inside]:
    """What is not contiguous is copied; of many short rows the weights' gradients are summed in parts.

    For `native_layer_norm_backward` and `_fused_rms_norm_backward`: the last argument says which results are wanted,
    the first of them the input's (ATen/native/cuda/layer_norm_kernel.cu).
    """
    args, result, card = call.args, call.result, call.card
    gradient, source, normalized_shape, wanted = args[0], args[1], args[2], args[-1]
    copy = tuple(part.nbytes for part in (gradient, source) if not part.is_contiguous())
    length = math.prod(normalized_shape)
    num_rows = source.numel() // max(1, length)
    parts: tuple[int, ...] = ()
    if num_rows > MANY_ROWS and length // WARP < card.processors.count // 2:
        num_parts = min(MOST_BLOCKS // -(-length // WARP), -(-num_rows // WARP))
        weights = [part for part in result[1:] if part is not None]
        parts = tuple(num_parts * normalized_shape[-1] * part.element_size() for part in weights)
    return [Inside(sum(wanted), (*copy, *parts))] if copy or parts else []


# ---- pictures --------------------------------------------------------------------------------------------------------


def _convolution_backward(call: KernelCall) -> list[Inside]:
    """The gradient of the bias is a sum over everything but the channels."""
    args, card = call.args, call.card
    gradient, wanted = args[0], args[10]
    if not wanted[2] or gradient.dim() < 3:
        return []
    others = [0, *range(2, gradient.dim())]
    found = reduction_scratch(
        gradient.shape, gradient.stride(), others, item_bytes=gradient.element_size(),
        partial_bytes=_sum_bytes(gradient.dtype), processors=card.processors,
    )  # fmt: skip
    return [Inside(sum(wanted), (buffer_bytes, counter_bytes, -2, -1)) for buffer_bytes, counter_bytes in found]


def _max_pool_backward(call: KernelCall) -> list[Inside]:
    """Gradient and places are copied into the order of the picture."""
    args = call.args
    gradient, picture, places = args[0], args[1], args[-1]
    last = picture.is_contiguous(memory_format=torch.channels_last) and not picture.is_contiguous()
    order = torch.channels_last if last and picture.dim() == 4 else torch.contiguous_format
    copies = tuple(part.nbytes for part in (gradient, places) if not part.is_contiguous(memory_format=order))
    return [Inside(1, copies)] if copies else []


def _group_norm(call: KernelCall) -> list[Inside]:
    """Scale and shift of every channel of every picture; none where a channel is one number, or has no weights."""
    args = call.args
    if args[5] == 1 or (args[1] is None and args[2] is None):
        return []
    channels = _sum_bytes(args[0].dtype) * args[3] * args[4]
    return [Inside(3, (channels, channels))]


def _group_norm_backward(call: KernelCall) -> list[Inside]:
    """Sums and factors of every channel, and factors of every group, of every picture."""
    args, result = call.args, call.result
    item_bytes, pictures = _sum_bytes(args[0].dtype), args[5]
    channels, groups = item_bytes * pictures * args[6], item_bytes * pictures * args[8]
    num_results = sum(isinstance(part, torch.Tensor) for part in result)
    if args[7] == 1:
        return [Inside(num_results, (groups, groups))]
    by_weight = () if args[4] is None else (channels,)
    return [Inside(num_results, (channels, channels, groups, groups, *by_weight))]


def _index_put(call: KernelCall) -> list[Inside]:
    """Rows that are added up by their numbers: the numbers are checked, made plain, and sorted with their places.

    A backward knows its numbers to be in order and does not check them. Only rows named by one tensor are modelled.
    """
    args = call.args
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


def _sizes(args: Sequence[object], dropout: float) -> Attention:
    """The sizes of a call whose arguments begin with query, key and value."""
    query, key, value = several(args[:3])
    batch, heads, queries, head_size = query.shape
    return Attention(
        batch=batch, heads=heads, key_heads=key.shape[1], queries=queries, keys=key.shape[2],
        head_size=max(head_size, value.shape[-1]), is_half=query.dtype in HALF, dropout=dropout > 0,
    )  # fmt: skip


def _flash_forward(call: KernelCall) -> list[Inside]:
    """Parts of the keys are joined at the end of the call; dropout copies the state of the generator."""
    args, card = call.args, call.card
    sizes = _sizes(args, args[3] if len(args) > 3 else 0.0)
    found = [Inside(2, tuple(flash_forward_scratch(sizes, card.processors.count)), until=4)]
    return [*found, Inside(4, (DROPOUT_STATE_BYTES,))] if sizes.dropout else found


def _flash_backward(call: KernelCall) -> list[Inside]:
    args = call.args
    return of_flash_backward(call, flash_backward_scratch(_sizes(args[1:], args[10])))


def _efficient_forward(call: KernelCall) -> list[Inside]:
    args = call.args
    size = efficient_forward_scratch(_sizes(args, 0.0))
    return [Inside(4, (size,))] if size else []


def _efficient_backward(call: KernelCall) -> list[Inside]:
    """Single precision multiplies, adds and reorders gradient and output outside of the kernel."""
    args, result, card = call.args, call.result, call.card
    sizes = _sizes(args[1:], args[9])
    workspace = efficient_backward_workspace(sizes, card.capability)
    num_results = sum(isinstance(part, torch.Tensor) for part in result)
    if sizes.is_half:
        return [Inside(num_results, (*_copied_gradient(args[0]), 4 * sizes.rows, workspace))]
    product, sums = args[0].numel() * 4, 4 * sizes.rows
    reordered = sizes.heads > 1 and sizes.queries > 1
    steps = (product, sums, sums, -2, -1, workspace) if reordered else (product, sums, -1, workspace)
    copy = _copied_gradient(args[0])
    return [Inside(num_results, (*copy, *behind(len(copy), steps)))]


def _copied_gradient(gradient: torch.Tensor) -> tuple[int, ...]:
    """A gradient of which heads do not lie within positions, and these within samples, is copied."""
    heads, positions, size = gradient.shape[1:]
    expected = (positions * heads * size, size, heads * size, 1)
    lies_so = all(
        length == 1 or step == wanted
        for length, step, wanted in zip(gradient.shape, gradient.stride(), expected, strict=True)
    )
    return () if lies_so else (gradient.nbytes,)


def _softmax_backward(call: KernelCall) -> list[Inside]:
    """Gradient times output is made first."""
    args = call.args
    gradient, output = args[:2]
    kind = torch.promote_types(gradient.dtype, output.dtype)
    return [Inside(1, (gradient.numel() * kind.itemsize,))]


RESULT_KEEPS_EVERY_ELEMENT = {
    aten.mse_loss.default, aten.smooth_l1_loss.default, aten.soft_margin_loss.default,
    aten.binary_cross_entropy.default,
}  # fmt: skip
"""Losses whose reduced result keeps the storage in which the loss of every element was to stand."""
SHUFFLES = {aten.randperm.default, aten.randperm.generator}
TRANSFORMS = (aten._fft_r2c.default, aten._fft_c2c.default, aten._fft_c2r.default)
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
    aten.nansum.default: _reduces(1, _sum_bytes),
    aten.prod.default: _reduces(None, _sum_bytes),
    aten.prod.dim_int: _reduces(1, _sum_bytes),
    aten.count_nonzero.default: _counts(1),
    aten.count_nonzero.dim_IntList: _counts(1),
    aten.any.default: _reduces(None, _mask_bytes),
    aten.any.dim: _reduces(1, _mask_bytes),
    aten.any.dims: _reduces(1, _mask_bytes),
    aten.all.default: _reduces(None, _mask_bytes),
    aten.all.dim: _reduces(1, _mask_bytes),
    aten.all.dims: _reduces(1, _mask_bytes),
    aten.max.default: _reduces(None, _own_bytes),
    aten.min.default: _reduces(None, _own_bytes),
    aten.max.dim: _reduces(1, _with_place_bytes, num_results=2),
    aten.min.dim: _reduces(1, _with_place_bytes, num_results=2),
    aten.argmax.default: _reduces(1, _with_place_bytes),
    aten.argmin.default: _reduces(1, _with_place_bytes),
    aten.aminmax.default: _reduces(None, _two_bytes, num_results=2),
    aten.var.correction: _reduces(1, _moment_bytes),
    aten.std.correction: _reduces(1, _moment_bytes),
    aten.var_mean.correction: _reduces(1, _moment_bytes, num_results=2),
    aten.std_mean.correction: _reduces(1, _moment_bytes, num_results=2),
    aten.amax.default: _reduces(1, _own_bytes),
    aten.amin.default: _reduces(1, _own_bytes),
    aten._foreach_norm.Scalar: _foreach_norm,
    aten.binary_cross_entropy_with_logits.default: _entropy_with_logits,
    aten.mse_loss.default: _loss_before_it_is_reduced,
    aten.smooth_l1_loss.default: _loss_before_it_is_reduced,
    aten.huber_loss.default: _loss_before_it_is_reduced,
    aten.isinf.default: _magnitudes,
    aten.logsumexp.default: _log_of_summed_exponentials,
    aten.sort.default: sorts(1),
    aten.sort.stable: sorts(2),
    aten.topk.default: top,
    aten.median.default: whole_median,
    aten.multinomial.default: draws,
    aten._euclidean_dist.default: distances,
    aten.abs.default: complex_magnitudes,
    **dict.fromkeys(TRANSFORMS, transforms),
    aten.where.self: _where_of_two_types,
    aten.normal.Tensor_float: _noise_to_add,
    aten.roll.default: _one_roll_after_another,
    aten.dist.default: _difference,
    aten.ldexp.Tensor: _powers,
    aten._safe_softmax.default: _safe_softmax,
    aten.convolution_backward.default: _convolution_backward,
    aten.max_pool2d_with_indices_backward.default: _max_pool_backward,
    aten.mm.default: multiplies(0),
    aten.bmm.default: multiplies(0),
    aten.addmm.default: multiplies(1),
    aten.baddbmm.default: multiplies(1),
    aten._addmm_activation.default: multiplies(1),
    aten.native_layer_norm.default: norm_of_rows,
    aten.native_layer_norm_backward.default: _norm_backward,
    aten._fused_rms_norm_backward.default: _norm_backward,
    aten.native_group_norm.default: _group_norm,
    aten.native_group_norm_backward.default: _group_norm_backward,
    aten._scaled_dot_product_flash_attention.default: _flash_forward,
    aten._scaled_dot_product_flash_attention_backward.default: _flash_backward,
    aten._scaled_dot_product_efficient_attention.default: _efficient_forward,
    aten._scaled_dot_product_efficient_attention_backward.default: _efficient_backward,
}
