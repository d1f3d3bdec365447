"""Result of fitting a training into a budget: the candidates, the plan that was taken, and its proof."""

from __future__ import annotations

import msgspec

from memfit.records.files.notebook import NotebookRecord
from memfit.records.plan import Candidate, Lever, Plan


class Proof(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A planned step beside the plain one, from the same seed."""

    promised_bytes: int
    measured_peak_bytes: int | None = None
    """The most tensor bytes alive at once, as the allocator saw it; None when the step did not come to its end."""
    num_compared: int = 0
    """Loss, gradients, buffers and the state of the random generators."""
    differing: tuple[str, ...] = ()
    """What is not the same."""
    within_tolerance: tuple[str, ...] = ()
    """What differs by no more than two plain runs differ, or by no more than `inexact_because` allows."""
    inexact_because: str = ""
    """Why the planned step need not be bit-equal, where that was allowed; empty where kernels are the reason."""
    largest_share: float | None = None
    """The largest difference of a gradient, as a share of the largest gradient; None where all are bit-equal."""
    failure: str = ""
    """The error that ended the planned step."""

    @property
    def same(self) -> bool:
        """Whether everything that was compared is the same."""
        return not self.failure and not self.differing and self.num_compared > 0

    @property
    def bit_equal(self) -> bool:
        """Whether it is the same to the last bit."""
        return self.same and not self.within_tolerance


class Fit(NotebookRecord, msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The whole answer."""

    target: str
    budget_bytes: int
    plan: Plan
    candidates: tuple[Candidate, ...]
    proof: Proof | None = None
    unproven_because: str = ""
    """Why there is no proof: another device, for example."""
    num_rounds: int = 1
    """How often it was planned until the measured peak lay within the budget."""
    kept_blocks: tuple[str, ...] = ()
    """Blocks that compute something else when they are run again, and are therefore kept."""
    levers: tuple[Lever, ...] = ()
    notes: tuple[str, ...] = ()
    plan_file: str = ""

    @property
    def measured_peak_bytes(self) -> int | None:
        """Of the step under the plan; the plan's own promise may lie above it, and above the budget."""
        return None if self.proof is None else self.proof.measured_peak_bytes


class LoopFit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A training loop that was fitted while it ran."""

    name: str
    arguments: tuple[str, ...] | None = None
    """Of the script; None where the loop was none of a script."""
    budget_bytes: int
    fits: tuple[Fit, ...] = ()
    """One for every size of batch that was larger than those before it."""
    num_passes: int = 0
    """Forward and backward under a plan."""
    num_measured: int = 0
    """Of these, how many were measured."""
    measured_peak_bytes: int | None = None
    """The highest of them: all tensors of the program, as the allocator counts them; None when none was measured."""
    highest_pass: int | None = None
    is_upper_bound: bool = False
    """Whether that highest is a bound only: the first pass of a recording, in which releases may go unseen."""
    num_over_budget: int = 0
    num_unsure: int = 0
    """Passes that may have been within the budget and may have been over it: only bounds of them are known."""
    first_peak_bytes: int | None = None
    """The highest of the passes that ran before there was a plan for their batch."""
    num_between: int = 0
    """Stretches between passes in which a model was called without being trained: evaluations. They run as they are."""
    between_peak_bytes: int | None = None
    """What the highest of their measured calls took at least; None when none was, and on CUDA, where it counts as a
    pass's."""
    process_peak_bytes: int | None = None
    """Of the whole process, Python and libraries included, as the kernel counts it."""
    fitting_seconds: float = 0.0
    seconds: float = 0.0
    plan_file: str = ""
    ended: str = ""
    """How the program ended, where it did not end well."""
    exit_code: int = 0
    """Of the script itself, as Python would leave with it."""
    notes: tuple[str, ...] = ()
    departures: tuple[str, ...] = ()
    """What was said of passes that did not go as planned: one that was not measured may have taken more."""

    @property
    def within_budget(self) -> bool | None:
        """Whether all that was measured under a plan was, evaluations included; None when no pass was measured."""
        return None if not self.num_measured else self.num_over_budget == 0 and not self.is_over_between_passes

    @property
    def is_over_between_passes(self) -> bool:
        """Whether an evaluation took more than the budget: no plan is made for those."""
        return (self.between_peak_bytes or 0) > self.budget_bytes
