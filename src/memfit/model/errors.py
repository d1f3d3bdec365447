"""Tells errors of torch apart."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from memfit.errors import UsageError


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocator gave up; that of the CPU raises a plain RuntimeError (read in torch 2.13)."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(error)


@contextlib.contextmanager
def refusing_sparse_tensors() -> Iterator[None]:
    """Say in one line that tensors without a storage of their own cannot be counted; torch's words are for others."""
    try:
        yield
    except NotImplementedError as error:
        if "Cannot access storage of" not in str(error):
            raise
        raise UsageError(
            "a step with sparse tensors cannot be fitted",
            found=str(error).splitlines()[0],
            hint="make them dense: buffers, the batch, and gradients (Embedding(sparse=False))",
        ) from None
