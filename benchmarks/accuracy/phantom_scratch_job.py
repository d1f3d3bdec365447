"""Single reductions and attention calls on a phantom GPU, with a fence of a known size around each."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from memfit.job.training import Training

BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION}
FENCE_BYTES = 1234567


def scratch(cases: str, device: str = "cuda") -> Training:
    """All cases in one step."""
    model = torch.nn.Linear(2, 2).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def fence() -> None:
        torch.empty(FENCE_BYTES, dtype=torch.uint8, device=device)

    def step() -> None:
        for case in json.loads(cases):
            (reduce if "reduced" in case else attend)(case, device, fence)
        model(torch.ones(1, 2, device=device)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return Training(model=model, optimizer=optimizer, batch=(), step=step)


def reduce(case: dict[str, Any], device: str, fence: Any) -> None:
    """A sum, fenced."""
    shape, dtype = case["shape"], getattr(torch, case["dtype"])
    source = torch.empty(shape, device=device, dtype=dtype).permute(case["order"])
    fence()
    source.sum(case["reduced"])
    fence()


def attend(case: dict[str, Any], device: str, fence: Any) -> None:
    """Forward and backward, each fenced."""
    dtype = getattr(torch, case["dtype"])

    def made(heads: int, length: int) -> torch.Tensor:
        return torch.empty(case["batch"], length, heads, case["head_size"], device=device, dtype=dtype).transpose(1, 2)

    query = made(case["heads"], case["queries"]).requires_grad_()
    key, value = (made(case["key_heads"], case["keys"]).requires_grad_() for _ in range(2))
    gradient, shared = made(case["heads"], case["queries"]), case["heads"] != case["key_heads"]
    fence()
    with sdpa_kernel(BACKENDS[case["kernel"]]):
        out = scaled_dot_product_attention(query, key, value, dropout_p=case["dropout"], enable_gqa=shared)
    fence()
    out.backward(gradient)
    fence()
