"""Tells errors of torch apart."""

from __future__ import annotations

import torch


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocator gave up; that of the CPU raises a plain RuntimeError (read in torch 2.13)."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(error)
