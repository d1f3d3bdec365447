"""Gradients of a program in a file while its step is tried: the tries add to the same tensors, and none is there twice.

A loop that calls `zero_grad` behind the model, or that accumulates, has gradients when a pass begins. Steps that are
tried then need gradients to add to, and the program's own must come back to the last bit. A backward also reaches
leaves that are no parameters of the model: an input that is being attacked, weights in a plain list.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from typing import IO

import torch
from torch.autograd.grad_mode import _unsafe_preserve_version_counter  # read in torch 2.13

from memfit.model.step import Job, storage_bytes, without_gradients
from memfit.model.tensors_in_arguments import bits_of, leaves_alive

WORTH_SHARE = 0.02
"""Of the budget: less is kept in memory."""


@contextlib.contextmanager
def lending_gradients(job: Job) -> Iterator[None]:
    """Within, runs of the job that begin with gradients use those of the program, whose values come back at the end."""
    lent = [(p, p.grad) for p in job.model.parameters() if p.grad is not None and _can_be_lent(p, p.grad)]
    is_worth_it = storage_bytes(gradient for _, gradient in lent) > WORTH_SHARE * (job.limit_bytes or 0)
    with contextlib.ExitStack() as stack:
        file: IO[bytes] | None = None
        if is_worth_it and job.accumulates:
            with contextlib.suppress(OSError):  # the disk is full, or there is none: nothing was changed
                file = _written(stack.enter_context(tempfile.TemporaryFile(buffering=0)), [each for _, each in lent])
        if file is None:
            yield
            return
        job.lent.update(id(parameter) for parameter, _ in lent)
        # Their values come back, so a graph that has saved one of them may still use it: versions come back as well.
        stack.enter_context(_unsafe_preserve_version_counter(tuple(gradient for _, gradient in lent)))
        try:
            yield
        finally:
            job.lent.clear()
            file.seek(0)
            for _, gradient in lent:
                _read(file, gradient)


@contextlib.contextmanager
def keeping_gradients_of_others(model: torch.nn.Module) -> Iterator[None]:
    """Within, leaves of the program that are no parameters of a model begin without a gradient; then it comes back.

    A step that is tried gives them gradients, fake ones where it is tried on fake tensors: the program would add to
    those, or read them.
    """
    own = {id(p) for p in model.parameters()}
    with without_gradients([leaf for leaf in leaves_alive() if id(leaf) not in own]):
        yield


def _can_be_lent(parameter: torch.nn.Parameter, gradient: torch.Tensor) -> bool:
    """Whether a run can add to it in place, and its bits are in host memory."""
    return (
        parameter.requires_grad
        and type(gradient) is torch.Tensor
        and gradient.layout == torch.strided
        and gradient.device.type == "cpu"
        and not (gradient.requires_grad or gradient.is_conj() or gradient.is_neg())
        and gradient.numel() > 0
        and torch.ops.aten.is_non_overlapping_and_dense(gradient)
    )


def _written(file: IO[bytes], gradients: list[torch.Tensor]) -> IO[bytes]:
    """The file, with the values of all in it."""
    for gradient in gradients:
        _write_all(file, bits_of(gradient.detach()).numpy().data)
    return file


def _write_all(file: IO[bytes], data: memoryview) -> None:
    while data:
        data = data[file.write(data) :]


def _read(file: IO[bytes], gradient: torch.Tensor) -> None:
    target = gradient if gradient.is_contiguous() else torch.empty(gradient.shape, dtype=gradient.dtype)
    room = bits_of(target.detach()).numpy().data
    while room:
        num_read = file.readinto(room)  # pyright: ignore[reportAttributeAccessIssue]
        if not num_read:
            raise OSError("gradients of the program, put aside while its step was tried, cannot be read back")
        room = room[num_read:]
    if target is not gradient:
        with torch.no_grad():
            gradient.copy_(target)
