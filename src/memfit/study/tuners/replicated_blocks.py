"""Tuner for fixed points, replicated in randomised blocks.

The points are shuffled anew for every replicate (randomised blocks): whatever changes slowly while the study runs
(other programs, heat, the time of day) meets every point alike, and the replicates say how large the noise is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from memfit.errors import UsageError
from memfit.records.study import Proposal, StudySettings, Tool
from memfit.study.tuners.base import Answer, NoMore

if TYPE_CHECKING:
    from memfit.study.engine.engine import SearchEngine
    from memfit.study.engine.history import History

NAME = "ordered"


class OrderedTuner:
    """Every point once per replicate."""

    def __init__(self, points: list[dict[str, Any]], replicates: int, seed: int) -> None:
        self.points = points
        random = Random(seed)
        self.order = [
            (row, replicate)
            for replicate in range(replicates)
            for row in random.sample(range(len(points)), len(points))
        ]

    def propose(self, history: History, number: int) -> Answer:
        if number >= len(self.order):
            return NoMore("every point was run as often as asked for")
        row, replicate = self.order[number]
        memo = {"row": row, "replicate": replicate}
        return Proposal(number=number, parameters=dict(self.points[row]), memo=memo)


def ordered_tool(points: Sequence[Mapping[str, object]], replicates: int) -> Tool:
    """The tuner's description, as it is stored with the study."""
    return Tool(name=NAME, arguments={"points": list(points), "replicates": replicates})


def engine_for(settings: StudySettings) -> SearchEngine:
    """The engine of a study; the ordered tuner is memfit's own and has no name in files."""
    from memfit.study.engine.engine import SearchEngine

    if settings.tuner.name != NAME:
        return SearchEngine(settings)
    arguments = settings.tuner.arguments
    if not arguments.get("points"):
        raise UsageError("there is no point to try")
    engine = SearchEngine(msgspec.structs.replace(settings, tuner=Tool(name="Random")))
    engine.tuner = OrderedTuner(arguments["points"], int(arguments["replicates"]), settings.seed)
    return engine
