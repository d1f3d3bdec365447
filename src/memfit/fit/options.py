"""Options of `memfit fit`: one record from the command line to the loop and the planner that obey it."""

from __future__ import annotations

import msgspec

from memfit.errors import UsageError

EVERY_PASS = 50
"""Where measuring costs time, the first passes under a plan are measured and then one in so many."""


class FitOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a training is fitted; what is trained stands beside it. Names are those of `memfit fit`."""

    budget_bytes: int | None = None
    """What the step may take; None for the memory of the GPU that is trained on, or planned for."""
    disk: str | None = None
    """A folder to which a plan may move what the backward needs."""
    planner: str = "best"
    allow: tuple[str, ...] = ()
    """Levers that may be pulled where no plan fits."""
    threads: int | None = None
    """Of torch; None for as many as torch decides."""
    force: bool = False
    """Write the plan although there is one."""

    settings: tuple[str, ...] = ()
    """Of a function or workload, 'NAME=VALUE'."""
    device: str | None = None
    """Plan for another device from prediction alone, such as 'cuda:24GiB'."""
    output: str = "plan.json"
    """Where the plan of a function or workload goes."""
    accumulates: bool = False
    """Gradients add up over several batches."""

    arguments: tuple[str, ...] = ()
    """Of a script."""
    plan_file: str | None = None
    """The plan of a script: used where it is there, written where it is not."""
    only_plan: bool = False
    """Stop the script as soon as the plan is proven."""
    measure_every: int = EVERY_PASS
    """Passes under a plan from one that is measured to the next."""

    def require_budget(self) -> int:
        """The budget, where there must be one."""
        if self.budget_bytes is None:
            raise UsageError("there is no budget to fit into", hint="--budget 2GiB")
        return self.budget_bytes
