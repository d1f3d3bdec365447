"""Proof of a plan: the planned step is run once, compared with the plain one, and its peak is measured."""

from __future__ import annotations

from typing import Any

from memfit.model.out_of_memory import is_out_of_memory
from memfit.model.step import Job, RandomState, gradient_bytes_there, storage_bytes, tensors_of
from memfit.profile.reference_step import TOLERANCE_FACTOR, Reference, differences, largest_gradient, run_once
from memfit.records.fit import Proof


def prove(job: Job, reference: Reference, state: RandomState, base_bytes: int, promised_bytes: int) -> Proof:
    """Run the planned step once under the allocator's eyes and compare it with the plain one."""
    try:
        outcome = run_once(job, state, watched=True, whole=reference.tolerance)
    except Exception as error:  # a block that cannot be run again may fail in any way it likes
        if is_out_of_memory(error):
            raise
        first_line = (str(error) or "without a message").splitlines()[0][:200]
        return Proof(failure=f"{type(error).__name__}: {first_line}", promised_bytes=promised_bytes)
    apart = differences(reference.outcome, outcome)
    wrong = {n: gap for n, gap in apart.items() if not gap <= TOLERANCE_FACTOR * reference.tolerance.get(n, 0.0)}
    there_bytes = gradient_bytes_there(job)  # counted in the base already
    update_bytes = base_bytes - there_bytes + outcome.gradient_bytes + job.update_transient_bytes
    inexact = {n: gap for n, gap in apart.items() if job.inexact_because and n.startswith("gradient of ")}
    return Proof(
        inexact_because=job.inexact_because if apart else "",
        largest_share=max(inexact.values()) / max(largest_gradient(reference.outcome), 1e-30) if inexact else None,
        differing=tuple(sorted(wrong)),
        within_tolerance=tuple(sorted(apart.keys() - wrong.keys())),
        num_compared=1 + len(outcome.gradients) + len(outcome.buffers) + 1,
        measured_peak_bytes=max(base_bytes + (outcome.peak_bytes or 0), update_bytes),
        promised_bytes=promised_bytes,
    )


def base_bytes_of(job: Job, state_bytes: int) -> int:
    """What is alive before the step: parameters, buffers, the batch, earlier gradients, the optimizer's state to be.

    With what is left free for blocks that the measured step did not call.
    """
    tensors: list[Any] = [*job.whole.parameters(), *job.whole.buffers(), *tensors_of(job.batch)]
    return storage_bytes(tensors) + gradient_bytes_there(job) + state_bytes + job.reserved_bytes + job.around_bytes
