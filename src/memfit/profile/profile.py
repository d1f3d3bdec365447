"""Profile of a live model: by plain steps where this machine can hold them, else block by block."""

from __future__ import annotations

from memfit.model.module_calls import CallTree, watching_calls
from memfit.model.out_of_memory import refusing_sparse_tensors, unless_memory_runs_out
from memfit.model.step import Job, RandomState
from memfit.profile.block_by_block import profile_blocks, too_large
from memfit.profile.plain_step import TIMED_RUNS, Profile, profile_plain
from memfit.profile.reference_step import Reference, reference_of


@refusing_sparse_tensors()
def profile_job(job: Job, timed_runs: int = TIMED_RUNS, reference: Reference | None = None) -> Profile:
    """Find the chain of a job and measure it; what planned steps are compared with is run before all else.

    `reference` is given where it was run already.
    """
    reason = too_large(job)
    if reason:
        return profile_blocks(job, timed_runs, reason)
    calls: CallTree | None = None
    if reference is None:
        watched = unless_memory_runs_out(lambda: _watched_reference(job))
        if watched is not None:
            reference, calls = watched
    profile = None if reference is None else unless_memory_runs_out(lambda: profile_plain(job, timed_runs, calls))
    if profile is None:
        return profile_blocks(job, timed_runs, "the plain step ran out of memory")
    profile.reference = reference
    return profile


def _watched_reference(job: Job) -> tuple[Reference, CallTree]:
    """The plain step run twice, and the calls of its second run."""
    found: list[CallTree] = []
    reference = reference_of(job, RandomState.now(), watching_calls(job.model, found))
    return reference, found[0]
