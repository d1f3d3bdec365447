"""The child in which products are tried: `python -m memfit.measure.torch_products float32 bfloat16 ...`.

For each type four kinds of product with known results, as torch hands them to oneDNN. A JSON line is written before
and after each, so that the parent knows which one was running when the child died.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable

import torch

SIZE = 64
"""Large enough for torch to choose oneDNN, small enough for milliseconds; all results are exact in 8 bits."""


def main() -> None:
    """Try the types named on the command line, in that order."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    torch.set_num_threads(1)
    for name in sys.argv[1:]:
        for kind, product in PRODUCTS.items():
            _write({"type": name, "kind": kind})
            started = time.perf_counter()
            answer = _attempt(product, getattr(torch, name))
            _write({"type": name, "kind": kind, "answer": answer, "seconds": time.perf_counter() - started})


def _attempt(product: Callable[[torch.dtype], tuple[torch.Tensor, float]], dtype: torch.dtype) -> str:
    """'right', 'wrong', or what torch said when it refused."""
    try:
        result, expected = product(dtype)
    except RuntimeError as error:  # also NotImplementedError: a type without a kernel is an answer
        return str(error).splitlines()[0][:120]
    return "right" if bool((result == expected).all()) else "wrong"


def linear(dtype: torch.dtype) -> tuple[torch.Tensor, float]:
    """A linear layer forward and backward; the gradient of its weight."""
    given, bias = torch.ones(SIZE, SIZE, dtype=dtype), torch.ones(SIZE, dtype=dtype)
    weight = torch.ones(SIZE, SIZE, dtype=dtype, requires_grad=True)
    torch.nn.functional.linear(given, weight, bias).sum().backward()
    assert weight.grad is not None
    return weight.grad, SIZE


def batched(dtype: torch.dtype) -> tuple[torch.Tensor, float]:
    """Four matrix products in one call."""
    matrices = torch.ones(4, SIZE, SIZE, dtype=dtype)
    return matrices @ matrices, SIZE


def convolution(dtype: torch.dtype) -> tuple[torch.Tensor, float]:
    """A convolution of 32 channels with a 3 x 3 kernel."""
    images, kernels = torch.ones(2, 32, 16, 16, dtype=dtype), torch.ones(32, 32, 3, 3, dtype=dtype)
    return torch.nn.functional.conv2d(images, kernels), 32 * 9


def attention(dtype: torch.dtype) -> tuple[torch.Tensor, float]:
    """Attention over ones, which gives ones."""
    heads = torch.ones(1, 2, SIZE, 32, dtype=dtype)
    return torch.nn.functional.scaled_dot_product_attention(heads, heads, heads).round(decimals=2), 1


def _write(line: dict[str, object]) -> None:
    print(json.dumps(line), flush=True)


PRODUCTS = {"linear": linear, "batched": batched, "convolution": convolution, "attention": attention}

if __name__ == "__main__":
    main()
