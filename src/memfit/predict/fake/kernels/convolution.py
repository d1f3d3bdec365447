"""Memory format of convolutions on a GPU: channels-last when an operand is, as cuDNN does.

A build of torch without cuDNN chooses another backend for fake CUDA tensors, whose results are always in the plain
order (torch 2.13).
"""

from __future__ import annotations

import torch
from torch._ops import OpOverload

from memfit.predict.observe.arguments import Arguments, Keywords, several

aten = torch.ops.aten
FORWARD, BACKWARD = aten.convolution.default, aten.convolution_backward.default
LAST = torch.channels_last


def answer_convolution(func: OpOverload, args: Arguments, kwargs: Keywords, real: object) -> object:
    """The fake kernel's results, in cuDNN's order."""
    result = func(*args, **kwargs)
    operands = several(args[:2] if func is FORWARD else args[:3])
    if operands[0].device.type != "cuda" or not any(_is_last(operand) for operand in operands):
        return result
    if func is FORWARD:
        return _as_last(result)
    return tuple(_as_last(part) for part in result)


def _is_last(tensor: torch.Tensor) -> bool:
    return tensor.dim() == 4 and tensor.is_contiguous(memory_format=LAST) and not tensor.is_contiguous()


def _as_last(tensor: torch.Tensor | None) -> torch.Tensor | None:
    if tensor is None or tensor.dim() != 4:
        return tensor
    return torch.empty_like(tensor, memory_format=LAST)
