"""Results of operators that lie in memory otherwise than torch's fake kernels say, where an input is not in order.

A result in the wrong order is copied, or not copied, by what comes next (a `reshape`, the product of a linear layer's
backward), and the peak is off by whole activations. Found by running operators on transposed, sliced and expanded
tensors for real and on fake tensors (torch 2.13, CPU); those of both devices are in code that CPU and CUDA share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch._prims_common import compute_elementwise_output_strides

from memfit.predict.observe.arguments import Arguments, tensor_at

aten = torch.ops.aten
Result = torch.Tensor | tuple[object, ...]
Rule = Callable[..., Result]


def laid_out(func: object, args: Arguments, result: object) -> object:
    """The result as the real operator lays it."""
    rule = RULES.get(func)
    return result if rule is None else rule(args, result)


def _in_order(args: Arguments, result: Result) -> Result:
    """Every result in the plain order."""
    return _each(result, lambda part: part if part.is_contiguous() else _made(part, part.shape, None))


def _in_order_on_cpu(args: Arguments, result: Result) -> Result:
    """The same where the kernel of the CPU makes it; the order with channels last is kept."""
    first = tensor_at(args, 0)
    if first.device.type != "cpu" or (first.dim() == 4 and first.is_contiguous(memory_format=torch.channels_last)):
        return result
    return _in_order(args, result)


def _as_inputs(args: Arguments, result: torch.Tensor) -> Result:
    """Element by element: in the order of the inputs."""
    tensors = [a for a in args if isinstance(a, torch.Tensor) and a.shape == result.shape]
    strides = compute_elementwise_output_strides(*tensors) if tensors else result.stride()
    return result if tuple(strides) == result.stride() else _made(result, result.shape, strides)


def _each(result: Result, change: Callable[[torch.Tensor], torch.Tensor]) -> Result:
    if isinstance(result, torch.Tensor):
        return change(result)
    return tuple(change(part) if isinstance(part, torch.Tensor) else part for part in result)


def _made(like: torch.Tensor, shape: Sequence[int], strides: Sequence[int] | None) -> torch.Tensor:
    return like.new_empty(shape) if strides is None else like.new_empty_strided(shape, strides)


RULES: dict[object, Rule] = {
    **dict.fromkeys(
        (
            aten._log_softmax_backward_data.default,
            aten.mse_loss_backward.default,
            aten.smooth_l1_loss_backward.default,
            aten.huber_loss_backward.default,
            aten.native_layer_norm_backward.default,
        ),
        _in_order,
    ),
    **dict.fromkeys(
        (
            aten.log_sigmoid_forward.default,
            aten.native_batch_norm.default,
            aten._native_batch_norm_legit.default,
            aten._native_batch_norm_legit.no_stats,
            aten._native_batch_norm_legit_no_training.default,
            aten.native_batch_norm_backward.default,
        ),
        _in_order_on_cpu,
    ),
    **dict.fromkeys(
        (
            aten.softplus_backward.default,
            aten.hardtanh_backward.default,
            aten.hardswish_backward.default,
            aten.xlogy.Tensor,
        ),
        _as_inputs,
    ),
}
