"""Draws random points that depend only on the seed and the trial number."""

from __future__ import annotations

import numpy as np

from memfit.records.study import SearchSpace
from memfit.study.space.space import Draws, draw_at, walk


def generator_for(seed: int, number: int, *salt: int) -> np.random.Generator:
    """A source of randomness that depends on the seed and the trial's number alone, so that a resumed study goes on."""
    return np.random.default_rng([seed % 2**64, number, *salt])


def random_draws(space: SearchSpace, generator: np.random.Generator) -> Draws:
    """One point, every parameter by its own distribution."""
    draws: Draws = {}
    for path, parameter in walk(space, draws):
        draws[path] = draw_at(parameter, float(generator.random()))
    return draws
