"""What does each stage of a live model take? By plain steps where this machine can hold them, else block by block."""

from __future__ import annotations

import torch

from memfit.apply.torch_job import Job
from memfit.apply.torch_plain_profile import TIMED_RUNS, Profile, profile_plain
from memfit.apply.torch_spared import profile_spared, too_large


def profile_job(job: Job, timed_runs: int = TIMED_RUNS) -> Profile:
    """Find the chain of a job and measure it."""
    reason = too_large(job)
    if reason:
        return profile_spared(job, timed_runs, reason)
    try:
        return profile_plain(job, timed_runs)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
    return profile_spared(job, timed_runs, "the plain step ran out of memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocator gave up; that of the CPU raises a plain RuntimeError (read in torch 2.13)."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(error)
