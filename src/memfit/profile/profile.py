"""Profile of a live model: by plain steps where this machine can hold them, else block by block."""

from __future__ import annotations

from memfit.model.out_of_memory import refusing_sparse_tensors, unless_memory_runs_out
from memfit.model.step import Job, RandomState
from memfit.profile.block_by_block import profile_blocks, too_large
from memfit.profile.plain_step import TIMED_RUNS, Profile, profile_plain
from memfit.profile.reference import Reference, reference_of


@refusing_sparse_tensors()
def profile_job(job: Job, timed_runs: int = TIMED_RUNS, reference: Reference | None = None) -> Profile:
    """Find the chain of a job and measure it; what planned steps are compared with is run before all else.

    `reference` is given where it was run already.
    """
    reason = too_large(job)
    if reason:
        return profile_blocks(job, timed_runs, reason)
    state = RandomState.now()
    if reference is None:
        reference = unless_memory_runs_out(lambda: reference_of(job, state))
    profile = None if reference is None else unless_memory_runs_out(lambda: profile_plain(job, timed_runs))
    if profile is None:
        return profile_blocks(job, timed_runs, "the plain step ran out of memory")
    profile.reference = reference
    return profile
