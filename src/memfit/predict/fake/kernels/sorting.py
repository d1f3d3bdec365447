"""Scratch memory of GPU kernels that order, shuffle, draw, compare all with all, or transform.

Read in torch 2.13, compared with torch 2.14 on the phantom GPU (benchmarks.accuracy.phantom_operators).
"""

from __future__ import annotations

import torch

from memfit.predict.fake.kernels.kernel_call import Inside, KernelCall, Rule, behind
from memfit.predict.gpu_rules.sorting import shuffle_scratch, sort_scratch, top_scratch


def _slices(tensor: torch.Tensor, dim: int) -> tuple[int, int]:
    """How many slices along a dimension there are, and how long each is."""
    length = tensor.shape[dim] if tensor.dim() else 1
    return (tensor.numel() // length if length else 0), length


def sorts(place: int) -> Rule:
    """A sort along the dimension that the argument at `place` names."""

    def rule(call: KernelCall) -> list[Inside]:
        args = call.args
        dim = args[place] if len(args) > place else -1
        requests = sort_scratch(*_slices(args[0], dim), item_bytes=args[0].element_size())
        return [Inside(2, tuple(requests))] if requests else []

    return rule


def top(call: KernelCall) -> list[Inside]:
    """The largest of each slice, found by the digits of their values."""
    args, card = call.args, call.card
    num_slices, length = _slices(args[0], args[2] if len(args) > 2 else -1)
    requests = top_scratch(num_slices, length, item_bytes=args[0].element_size(), num_processors=card.processors.count)
    return [Inside(2, tuple(requests))] if requests else []


def whole_median(call: KernelCall) -> list[Inside]:
    """All elements are sorted."""
    source = call.args[0]
    inner = sort_scratch(1, source.numel(), item_bytes=source.element_size())
    return [Inside(0, (source.nbytes, 8 * source.numel(), *behind(2, inner)), until=1)]


def draws(call: KernelCall) -> list[Inside]:
    """With replacement sums of the weights are made; without, noise for each weight, whose largest are the draw."""
    args, card = call.args, call.card
    weights, count = args[:2]
    if len(args) > 2 and args[2] and count > 1:
        return [Inside(1, (weights.nbytes,) * 3)]
    if count == 1:
        return [Inside(1, (weights.nbytes,))]
    num_rows, length = _slices(weights, -1)
    inner = top_scratch(num_rows, length, item_bytes=weights.element_size(), num_processors=card.processors.count)
    drawn = num_rows * count * weights.element_size()
    return [Inside(1, (weights.nbytes, drawn, *behind(2, inner)))]


def shuffles(call: KernelCall) -> list[Inside]:
    """Random keys are sorted with the numbers."""
    result = call.result
    requests = shuffle_scratch(result.numel(), item_bytes=result.element_size())
    return [Inside(1, tuple(requests))] if requests else []


def distances(call: KernelCall) -> list[Inside]:
    """Euclidean distances of many points are one product, of points beside their squares and ones."""
    left, right = call.args[:2]
    squares, others = (points.nbytes // max(1, points.shape[-1]) for points in (left, right))
    first = (left.nbytes, squares, -1, squares, right.nbytes, others, -1 - 3, others)
    joined = (left.nbytes, left.nbytes + 2 * squares, -1 - 1, -1 - 2, -1 - 6, right.nbytes + 2 * others)
    return [Inside(0, (*first, *joined, -1 - 4, -1 - 5), until=1)]


def complex_magnitudes(call: KernelCall) -> list[Inside]:
    """Of complex numbers they are made as such, and copied."""
    source = call.args[0]
    return [Inside(1, (source.nbytes,))] if source.is_complex() else []


def transforms(call: KernelCall) -> list[Inside]:
    """The library's work area, taken as one copy of the complex data; a transform to real numbers copies its input."""
    args, result = call.args, call.result
    if result.is_complex():
        return [Inside(1, (max(args[0].numel(), result.numel()) * result.element_size(),))]
    return [Inside(1, (args[0].nbytes, result.numel() * args[0].element_size()))]
