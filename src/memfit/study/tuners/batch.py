"""Batch tuner: tries a given list of parameter sets, one after the other."""

from __future__ import annotations

from typing import Any

from memfit.errors import UsageError
from memfit.records.study import Choice, Nested, Proposal, SearchSpace
from memfit.study.engine.history import History
from memfit.study.space.nni_space import write_space
from memfit.study.tuners.base import Answer, NoMore


class BatchTuner:
    """The options of one choice, each a whole parameter set, in the order of the file."""

    def __init__(self, space: SearchSpace) -> None:
        self.name, self.sets = _sets_of(space)

    def propose(self, history: History, number: int) -> Answer:
        used = {int(lesson.draws[self.name]) for lesson in history if self.name in lesson.draws}
        for index, parameters in enumerate(self.sets):
            if index not in used:
                return Proposal(number=number, parameters=dict(parameters), draws={self.name: index})
        return NoMore("every parameter set of the batch was tried")


def _sets_of(space: SearchSpace) -> tuple[str, list[dict[str, Any]]]:
    """The one choice of a batch; its sets may have a key `_name` of their own, which means nothing here."""
    only = space.parameters[0] if len(space.parameters) == 1 else None
    if isinstance(only, (Choice, Nested)):
        sets = write_space(space)[only.name]["_value"]
        if all(isinstance(entry, dict) for entry in sets):
            return only.name, sets
    raise UsageError(
        "the batch tuner needs a search space of one choice between whole parameter sets",
        found=", ".join(type(parameter).__name__.lower() for parameter in space),
        hint='{"sets": {"_type": "choice", "_value": [{"lr": 0.1, "batch": 8}, {"lr": 0.2, "batch": 4}]}}',
    )
