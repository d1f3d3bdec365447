"""Evolution tuner: a population of points that mutate.

Two ways, both with mutation of one parameter and no crossing:

    pairs (NNI's Evolution)          two are drawn, the worse one dies, the better one has a mutated child
    ages (RegularizedEvolution)      a sample is drawn, its best has a mutated child, the oldest of all dies

Real et al., Large-Scale Evolution of Image Classifiers (2017) and Regularized Evolution (2019). Who died is in the memo
of the child, so the population can be read off the trials. Points that need too much memory lose against all that fit.
"""

from __future__ import annotations

from functools import reduce

import numpy as np

from memfit.records.study import SearchSpace
from memfit.study.engine.history import History, Lesson, is_better
from memfit.study.space.random_points import generator_for, random_draws
from memfit.study.space.space import Draws, draw_at, walk
from memfit.study.tuners.base import Answer, NoMore, Wait, proposal_for
from memfit.study.tuners.random_search import Unique


class EvolutionTuner:
    """Keeps a population of constant size alive."""

    def __init__(self, space: SearchSpace, seed: int, *, population_size: int, sample_size: int | None = None) -> None:
        self.space = space
        self.seed = seed
        self.population_size = population_size
        self.sample_size = sample_size
        """None: evolve by pairs."""
        self.unique = Unique(space)

    def propose(self, history: History, number: int) -> Answer:
        generator = generator_for(self.seed, number)
        population = _population(history)
        memo = {}
        if len(population) + history.num_running < self.population_size:
            draws = random_draws(self.space, generator)
        elif not population:
            return Wait("the whole population is being tried")
        else:
            parent, dead = self._choose(population, generator)
            draws = mutate(self.space, parent.draws, generator)
            memo = {"parent": parent.number, "dead": None if dead is None else dead.number}
        new = self.unique.instead_of(draws, history)
        if new is None:
            return NoMore("every point of the space was tried")
        return proposal_for(self.space, number, new, memo=memo)

    def _choose(self, population: list[Lesson], generator: np.random.Generator) -> tuple[Lesson, Lesson | None]:
        """The parent of the next child, and who makes place for it."""
        if self.sample_size is not None:
            size = min(self.sample_size, len(population))
            sample = [population[index] for index in generator.choice(len(population), size=size, replace=False)]
            return reduce(lambda best, other: other if is_better(other, best) else best, sample), population[0]
        if len(population) == 1:
            return population[0], None
        first, second = (population[index] for index in generator.choice(len(population), size=2, replace=False))
        return (second, first) if is_better(second, first) else (first, second)


def _population(history: History) -> list[Lesson]:
    """Those that taught something and did not die, the oldest first."""
    dead = {lesson.trial.proposal.memo.get("dead") for lesson in history}
    return [
        lesson
        for lesson in history
        if (lesson.losses is not None or lesson.is_infeasible) and lesson.draws and lesson.number not in dead
    ]


def mutate(space: SearchSpace, parent: Draws, generator: np.random.Generator) -> Draws:
    """The parent with one parameter drawn anew; a branch that is entered by that is drawn whole."""
    paths = [path for path, _ in walk(space, parent)]
    chosen = paths[int(generator.integers(len(paths)))]
    draws: Draws = {}
    for path, parameter in walk(space, draws):
        keep = path != chosen and path in parent
        draws[path] = parent[path] if keep else draw_at(parameter, float(generator.random()))
    return draws
