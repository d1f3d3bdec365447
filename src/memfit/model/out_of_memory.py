"""Recognises out-of-memory errors and refusals of sparse tensors, and says what was free and needed."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch

from memfit.errors import DoesNotFit, MemfitError, UsageError
from memfit.measure.counters.free_memory import free_bytes
from memfit.model.step import Job
from memfit.units import format_bytes


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocator gave up; that of the CPU raises a plain RuntimeError (read in torch 2.13)."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(error)


_OF_TRANSFORMS = ("TensorWrapper", "BatchedTensorImpl")
"""Tensors that torch.func makes, and that have no storage of their own either."""


@contextlib.contextmanager
def refusing_sparse_tensors() -> Iterator[None]:
    """Say in one line that tensors without a storage of their own cannot be counted; torch's words are for others."""
    try:
        yield
    except RuntimeError as error:  # NotImplementedError is one
        if "invalid python storage" in str(error):
            raise UsageError(
                "a step with nested tensors cannot be fitted",
                found="a tensor without a storage of its own, as torch.nested makes them",
                hint="pad them, or keep them out of the model that is fitted",
            ) from None
        if "Cannot access storage of" not in str(error):
            raise
        if any(name in str(error) for name in _OF_TRANSFORMS):
            raise UsageError(
                "a step inside of torch.func (grad, vmap, jvp) cannot be fitted",
                found=str(error).splitlines()[0],
                hint="call the model outside of the transform, with backward() or torch.autograd.grad",
            ) from None
        raise UsageError(
            "a step with sparse tensors cannot be fitted",
            found=str(error).splitlines()[0],
            hint="make them dense: buffers, the batch, and gradients (Embedding(sparse=False))",
        ) from None


# What is said when memory runs out while a step is measured or proven?
#
# The step is the user's own, and the machine may hold less than the budget says. Whoever runs it puts everything back;
# here the failure becomes a result (None) or an error that names what was left and what was needed.

Result = TypeVar("Result")


def left_for(job: Job) -> int | None:
    """How many bytes the device of a job has left for this process; None when that is unknown."""
    if job.device.type == "cuda":  # never run on the machine this was written on
        return torch.cuda.mem_get_info(job.device)[0]
    return free_bytes()


def unless_memory_runs_out(run: Callable[[], Result]) -> Result | None:
    """What a function returns; None when memory ran out, with everything it held released."""
    try:
        return run()
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        traceback.clear_frames(error.__traceback__)  # frames of the failed step hold its tensors
    return None


def ran_out(job: Job, doing: str, what_needs: str, needed_bytes: int) -> MemfitError:
    """The error for a step that ran out of memory: 'it does not fit' where fewer bytes are left than it needs."""
    left_bytes = left_for(job)
    what = f"memory ran out while {doing}; the model was left as it was"
    left = "how much is left here is unknown" if left_bytes is None else f"{format_bytes(left_bytes)} left here"
    found = f"{left}, and {what_needs} needs about {format_bytes(needed_bytes)} more than is taken already"
    hint = "a smaller budget or batch, a disk to move to, or fit it on a larger machine and load the plan here"
    if left_bytes is not None and left_bytes < needed_bytes:
        return DoesNotFit(what, limit_bytes=left_bytes, needed_bytes=needed_bytes, found=found, hint=hint)
    return MemfitError(what, found=f"{found}; kernels and Python take memory beside it", hint=hint)
