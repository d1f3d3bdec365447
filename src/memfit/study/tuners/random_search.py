"""Random search tuner without repeated points."""

from __future__ import annotations

from memfit.records.study import SearchSpace
from memfit.study.engine.history import History
from memfit.study.space.random_points import generator_for, random_draws
from memfit.study.space.space import Draws, fingerprint, never_repeats, parameters_of
from memfit.study.tuners.base import Answer, NoMore, proposal_for
from memfit.study.tuners.grid import UntriedPoints


class RandomTuner:
    """Every parameter by its own distribution."""

    def __init__(self, space: SearchSpace, seed: int) -> None:
        self.space = space
        self.seed = seed
        self.unique = Unique(space)

    def propose(self, history: History, number: int) -> Answer:
        draws = self.unique.instead_of(random_draws(self.space, generator_for(self.seed, number)), history)
        return (
            NoMore("every point of the space was tried") if draws is None else proposal_for(self.space, number, draws)
        )


class Unique:
    """Keeps a tuner from proposing the same parameters twice."""

    def __init__(self, space: SearchSpace) -> None:
        self.space = space
        self.never_repeats = never_repeats(space)
        self.untried = UntriedPoints(space)

    def instead_of(self, draws: Draws, history: History) -> Draws | None:
        """These draws, or the first untried ones in the order of the grid; None when the space is used up."""
        if self.never_repeats or fingerprint(parameters_of(self.space, draws)) not in history.tried:
            return draws
        return self.untried.first(history)
