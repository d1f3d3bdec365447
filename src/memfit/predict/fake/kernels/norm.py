"""RMSNorm as one GPU kernel that saves its input and one number per row, on fake tensors.

A build of torch without CUDA has no kernel for `_fused_rms_norm` there, and takes the norm apart into products that
autograd keeps. Once a kernel is registered, torch's own derivative of the fused operator is taken, as on a GPU; where
input and weight differ in type, torch itself takes the norm apart on a GPU too (read in torch 2.13).
"""

from __future__ import annotations

import math

import torch
from torch._ops import OpOverload

from memfit.predict.observe.arguments import Arguments, Keywords, flags_at, integers_at, optional_tensor_at, tensor_at

aten = torch.ops.aten
FORWARD, BACKWARD = aten._fused_rms_norm.default, aten._fused_rms_norm_backward.default
_registered: list[torch.library.Library] = []


def register_rms_norm() -> None:
    """Give fake CUDA tensors the fused norm, in a build of torch without CUDA."""
    if _registered or torch.version.cuda is not None:
        return
    library = torch.library.Library("aten", "IMPL")
    library.impl("_fused_rms_norm", lambda *args: answer_norm(FORWARD, args, {}, None), "CUDA")
    _registered.append(library)


def answer_norm(func: OpOverload, args: Arguments, kwargs: Keywords, real: object) -> object:
    """The result, and the inverse root mean square of each row, in the type that sums are made in."""
    source, normalized_shape = tensor_at(args, 0), integers_at(args, 1)
    kept = source.dim() - len(normalized_shape)
    shape = [*source.shape[:kept], *(1 for _ in normalized_shape)]
    dtype = torch.float64 if source.dtype is torch.float64 else torch.float32
    result = torch.empty_like(source, memory_format=torch.contiguous_format)
    rows = source.new_empty((math.prod(shape),), dtype=dtype)
    return result, rows.view(shape)


def answer_backward(func: OpOverload, args: Arguments, kwargs: Keywords, real: object) -> object:
    """Gradients of the input and of the weight, where they are wanted."""
    source, weight, wanted = tensor_at(args, 1), optional_tensor_at(args, 4), flags_at(args, 5)
    made = [
        torch.empty_like(tensor, memory_format=torch.contiguous_format) if is_wanted and tensor is not None else None
        for tensor, is_wanted in zip((source, weight), wanted, strict=True)
    ]
    return tuple(made)
