"""Measures a job that runs for real on the CPU: the reference for predictions in tests.

The running sum of the allocator's own events as torch.profiler records them, with no mode active: unperturbed, and
it sees what kernels allocate inside. The profiler has to start before the model exists, else the sizes of later
frees are unknown.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import runpy
import sys
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from memfit.job.training import as_training, plain_step


def real_tensor_peak(build: Callable[[], object], num_steps: int = 2) -> int:
    """Peak bytes of the CPU allocator over building the job and some steps."""
    gc.collect()  # garbage from before would be freed in the middle, and its bytes subtracted from this job's
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        step = plain_step(as_training(build(), "the job"))
        for _ in range(num_steps):
            step()
    return peak_of_events(memory_events(profiler))


def memory_events(profiler: Any) -> list[tuple[int, int]]:
    """(time, change in bytes) of every allocation and release on the CPU, in order."""
    events = profiler.profiler.kineto_results.events()
    found = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]" and "CPU" in str(e.device_type())]
    return sorted(found, key=lambda pair: pair[0])


def peak_of_events(events: list[tuple[int, int]]) -> int:
    """The largest running sum."""
    live = peak = 0
    for _, change in events:
        live += change
        peak = max(peak, live)
    return peak


class _Enough(BaseException):
    """The script has made its steps."""


def real_script_peak(path: str, arguments: tuple[str, ...], num_steps: int) -> int:
    """Peak bytes of the CPU allocator while a script runs for real, until its n-th optimizer step."""
    steps = itertools.count(1)

    def stop(*_: object) -> None:
        if next(steps) >= num_steps:
            raise _Enough

    hook = register_optimizer_step_post_hook(stop)
    watched = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True)
    try:
        with patch.object(sys, "argv", [path, *arguments]), watched as profiler, contextlib.suppress(_Enough):
            runpy.run_path(path, run_name="__main__")
    finally:
        hook.remove()
    return peak_of_events(memory_events(profiler))
