"""Calls of GPU operators that are made of others, and the bytes that torch 2.14.1 has them allocate inside.

Each runs on two tensors of `NUM_BYTES`; the figure is the most that is alive at once beside them, in such tensors.
"""

from __future__ import annotations

NUM_BYTES = 1024 * 1024 * 4
JOB = """
import torch
F = torch.nn.functional

def make():
    x, y = (torch.rand(1024, 1024, device="cuda") for _ in range(2))
    kept = []
    def step():
        assert x is not y  # both live on, used or not
        kept.clear()
        with torch.no_grad():
            CALL
    return step
"""
CALLS: dict[str, tuple[str, float]] = {
    "a reduced loss keeps every element": ("kept.append(F.mse_loss(x, y)); kept.append(x * 2)", 2),
    "huber loss": ("F.huber_loss(x, y)", 1),
    "binary cross-entropy": ("kept.append(F.binary_cross_entropy(x, y)); kept.append(x * 2)", 2),
    "isinf": ("x.isinf()", 1.25),
    "roll over three dimensions": ("torch.roll(x.view(4, 256, 1024), (1, 1, 1), (0, 1, 2))", 3),
}


def job_of(name: str) -> tuple[str, int]:
    """The file of one call, whose `make` gives its step, and the peak of its tensors in bytes."""
    call, num_more = CALLS[name]
    return JOB.replace("CALL", call), round((2 + num_more) * NUM_BYTES)
