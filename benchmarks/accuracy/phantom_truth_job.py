"""The jobs of published measurements, for a phantom GPU: single operators, and xMem's training loops."""

from __future__ import annotations

import json

from benchmarks.accuracy.torch_operator_cases import build_operator
from benchmarks.accuracy.torch_xmem_loop import build
from memfit.job.training import Training


def operator(name: str, size: int, config: str, mode: str) -> Training:
    """One operator, forward or forward and backward."""
    return build_operator(name, int(size), json.loads(config), mode)


def xmem(model: str, optimizer: str, batch_size: int) -> Training:
    """One job of xMem's evaluation."""
    return build(model, optimizer, int(batch_size))
