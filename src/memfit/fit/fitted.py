"""Return value of `fit_to_budget`: the record of the fit, and `undo` to take the plan off the model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from memfit.apply.checkpoints import AppliedPlan
from memfit.records.fit import Fit
from memfit.records.plan import Plan, write_plan


@dataclass(slots=True)
class FittedModel:
    """A model that carries out a plan."""

    fit: Fit
    applied: AppliedPlan | None

    @property
    def plan(self) -> Plan:
        """The plan it carries out."""
        return self.fit.plan

    def undo(self) -> None:
        """Leave the model as it was before it was fitted."""
        if self.applied is not None:
            self.applied.undo()

    def write_plan(self, path: str | Path) -> None:
        """Write the plan for `memfit.apply_plan`."""
        write_plan(self.fit.plan, path)

    def __enter__(self) -> FittedModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()
