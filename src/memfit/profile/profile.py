"""Profile of a live model: by plain steps where this machine can hold them, else block by block."""

from __future__ import annotations

import torch

from memfit.model.module_calls import CallTree, watching_calls
from memfit.model.out_of_memory import refusing_sparse_tensors, unless_memory_runs_out
from memfit.model.stages import find_stages
from memfit.model.step import Job, RandomState, bytes_from_elsewhere, storage_bytes
from memfit.profile.block_by_block import profile_blocks, too_large
from memfit.profile.plain_step import TIMED_RUNS, Profile, Start, profile_plain
from memfit.profile.reference_step import Reference, reference_of
from memfit.profile.varying_steps import Variation, after_a_step, later_steps_of, variation_of
from memfit.units import format_bytes


@refusing_sparse_tensors()
def profile_job(job: Job, timed_runs: int = TIMED_RUNS, reference: Reference | None = None) -> Profile:
    """Find the chain of a job and measure it; what planned steps are compared with is run before all else.

    `reference` is given where it was run already.
    """
    reason = too_large(job)
    if reason:
        return profile_blocks(job, timed_runs, reason)
    calls: CallTree | None = None
    varied: Variation | None = None
    if reference is None:
        watched = unless_memory_runs_out(lambda: _watched_reference(job, RandomState.now()))
        if watched is not None:
            reference, calls = watched
            job.around_bytes += bytes_from_elsewhere(job, calls.from_before)
            varied = variation_of(job, reference, calls)
    if varied is not None:
        job.varies, job.reorders = True, varied.reorders
        watched = unless_memory_runs_out(lambda: _watched_reference(job, varied.largest))
        reference, calls = watched if watched is not None else (None, None)
    if reference is None:
        return profile_blocks(job, timed_runs, "the plain step ran out of memory")
    later = later_steps_of(job, reference.outcome, calls)
    job.left_bytes, job.varies = later.left_bytes, job.varies or later.differ
    notes = [
        *([reference.note] if reference.note else []),
        *later.notes,
        *_without_gradient_note(job, reference, calls),
        *_never_cleared_note(job),
    ]
    starts: list[Start] = (
        [state.in_place for state in varied.others] if varied is not None and not varied.reorders else []
    )
    starts += [lambda: after_a_step(job)] if later.differ else []
    with reference.state.in_place():  # all runs begin where the reference did
        profile = unless_memory_runs_out(lambda: profile_plain(job, timed_runs, calls, starts))
    if profile is None:
        return profile_blocks(job, timed_runs, "the plain step ran out of memory")
    profile.reference = reference
    profile.notes += (*notes, *((varied.note(),) if varied is not None else ()))
    return profile


def _without_gradient_note(job: Job, reference: Reference, calls: CallTree | None) -> list[str]:
    """Let the job know which parameters its step gives no gradient, and say so."""
    never = [] if job.varies or calls is None else _without_gradient(job, reference, calls)
    if not never:
        return []
    job.without_gradient = frozenset(map(id, never))
    return [
        f"{len(never)} parameters ({format_bytes(storage_bytes(never))}) get no gradient in this step: if another "
        "step gives them one, the optimizer keeps a state for them that is not counted"
    ]


def _never_cleared_note(job: Job) -> list[str]:
    """A note about gradients that are kept and never used."""
    kept = [p for p in job.whole.parameters() if id(p) in job.never_cleared]
    if not kept or job.accumulates:
        return []
    return [
        f"{len(kept)} parameters ({format_bytes(storage_bytes(kept))}) get gradients, and the optimizer does not have "
        "them: its zero_grad() leaves those gradients where they are, and room is left for them; requires_grad_(False) "
        "on these parameters saves that"
    ]


def _without_gradient(job: Job, reference: Reference, calls: CallTree) -> list[torch.nn.Parameter]:
    """Parameters that the optimizer has, and that no gradient has reached, in this step or an earlier one.

    Those of blocks that the step left out as a whole are not among them: another step may call them.
    """
    if job.optimizer is None or job.accumulates:
        return []
    uncalled = find_stages(calls, needs_blocks=False).uncalled
    left_out = {id(p) for block in uncalled for p in job.model.get_submodule(block).parameters()}
    handled = {id(p) for group in job.optimizer.param_groups for p in group["params"]}
    state, gradients = job.optimizer.state, reference.outcome.gradients
    return [
        p
        for name, p in job.whole.named_parameters()
        if p.requires_grad and id(p) in handled - left_out and gradients.get(name) is None and not state.get(p)
    ]


def _watched_reference(job: Job, state: RandomState) -> tuple[Reference, CallTree]:
    """The plain step run twice from a random state, and the calls of its second run."""
    found: list[CallTree] = []
    reference = reference_of(job, state, watching_calls(job.model, found))
    return reference, found[0]
