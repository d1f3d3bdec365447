"""What does the optimizer's step take: state that stays, bytes in passing, seconds? And how is it taken back?"""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass

import torch

from memfit.apply.torch_job import Job, leaving_no_trace, storage_bytes, tensors_of
from memfit.apply.torch_meter import record_events


@dataclass(frozen=True, slots=True)
class Update:
    """One optimizer step in numbers."""

    state_bytes: int = 0
    transient_bytes: int = 0
    seconds: float = 0.0


def measure_update(job: Job) -> Update:
    """Make one real step on gradients of zero, measure it, and take it back."""
    optimizer = job.optimizer
    if optimizer is None:
        return Update()
    state = {parameter: copy.deepcopy(entry) for parameter, entry in optimizer.state.items()}
    values = [(p, p.detach().clone()) for p in job.model.parameters()]
    try:
        with leaving_no_trace(job):
            return _measured(job, optimizer)
    finally:
        optimizer.state.clear()
        optimizer.state.update(state)
        for parameter, value in values:
            parameter.data.copy_(value)


def _measured(job: Job, optimizer: torch.optim.Optimizer) -> Update:
    for parameter in job.model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()  # the first step makes the state
    seconds = _time_of(optimizer)
    record = record_events(optimizer.step, job.device)
    state = storage_bytes(tensors_of([dict(entry) for entry in optimizer.state.values()]))
    return Update(state_bytes=state, transient_bytes=record.peak_bytes, seconds=seconds)


def _time_of(optimizer: torch.optim.Optimizer) -> float:
    start = time.perf_counter()
    optimizer.step()
    return time.perf_counter() - start
