"""What does each stage of a live model take? By plain steps where this machine can hold them, else block by block."""

from __future__ import annotations

from memfit.apply.torch_job import Job
from memfit.apply.torch_memory_out import unless_memory_runs_out
from memfit.apply.torch_plain_profile import TIMED_RUNS, Profile, profile_plain
from memfit.apply.torch_spared import profile_spared, too_large


def profile_job(job: Job, timed_runs: int = TIMED_RUNS) -> Profile:
    """Find the chain of a job and measure it."""
    reason = too_large(job)
    if reason:
        return profile_spared(job, timed_runs, reason)
    profile = unless_memory_runs_out(lambda: profile_plain(job, timed_runs))
    return profile or profile_spared(job, timed_runs, "the plain step ran out of memory")
