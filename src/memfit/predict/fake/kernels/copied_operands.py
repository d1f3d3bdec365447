"""Operands that GPU kernels copy first, because they do not lie as the kernel wants them.

Read in torch 2.13 (Blas.cpp, layer_norm_kernel.cu, attention_backward.cu), compared event by event with torch 2.14 on
the phantom GPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from memfit.predict.fake.kernels.kernel_call import Inside, KernelCall, Rule
from memfit.predict.observe.arguments import several

NUM_GRADIENTS = 3


def multiplies(first: int) -> Rule:
    """A product of the matrices at `first` and behind it: cuBLAS wants one of both dimensions without gaps."""

    def rule(call: KernelCall) -> list[Inside]:
        copies = [part.nbytes for part in several(call.args[first : first + 2]) if not _is_matrix(part)]
        return [Inside(1, (*copies, *(-1 - place for place in reversed(range(len(copies))))))] if copies else []

    return rule


def _is_matrix(tensor: torch.Tensor) -> bool:
    """Whether rows or columns lie in one piece and do not overlap, as those of an expanded gradient do."""
    (rows, columns), (step, next_step) = tensor.shape[-2:], tensor.stride()[-2:]
    return (next_step == 1 and step >= max(1, columns)) or (step == 1 and next_step >= max(1, rows))


def norm_of_rows(call: KernelCall) -> list[Inside]:
    """An input that is not contiguous is copied for the call."""
    source = call.args[0]
    return [] if source.is_contiguous() else [Inside(0, (source.nbytes,), until=len(call.result))]


def of_flash_backward(call: KernelCall, scratch: Sequence[int]) -> list[Inside]:
    """Gradient and output are copied where the heads of a place do not lie beside each other; then the scratch."""
    copies = [part.nbytes for part in several((call.args[0], call.args[4])) if not part.transpose(1, 2).is_contiguous()]
    own = Inside(NUM_GRADIENTS, tuple(scratch))
    return [Inside(0, tuple(copies), until=NUM_GRADIENTS + len(scratch)), own] if copies else [own]
