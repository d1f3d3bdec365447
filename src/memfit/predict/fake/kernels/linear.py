"""nn.Linear on fake tensors: the bias is added inside the product, as on real tensors.

A batch that does not lie in one piece is multiplied first, and the bias is added afterwards: in place, unless the
bias is a subclass of Tensor, as a fake tensor is (read in torch 2.13). Registered with the dispatcher, where both CPU
and GPU pass, so that recomputation takes it too.
"""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensor

LINEAR = torch.ops.aten.linear.default
_registered: list[torch.library.Library] = []


def register_linear() -> None:
    """Send linear layers through here; what adds its bias in the product, and what is real, stays as it is."""
    if _registered:
        return
    library = torch.library.Library("aten", "IMPL")
    for key in ("AutogradCPU", "AutogradCUDA"):
        library.impl("linear", _linear, key)
    _registered.append(library)


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    if bias is None or x.dim() == 2 or x.is_contiguous() or not isinstance(x, FakeTensor):
        return LINEAR._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, x, weight, bias)
    return torch.matmul(x, weight.t()).add_(bias)
