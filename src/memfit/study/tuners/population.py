"""Population-based training (PBT) tuner: the worst models take over from the best.

Jaderberg et al., Population Based Training (2017), with synchronous steps as in NNI. Every trial trains one member for
one step: it loads `load_checkpoint_dir`, trains, saves to `save_checkpoint_dir`. When all members have done a step, the
worst `fraction` of them continue from the checkpoint of one of the best with perturbed parameters, the others go on.
Member and step are in the memo; the folders are <all_checkpoint_dir>/<member>/<step>.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from memfit.records.study import Bell, Integers, Nested, Parameter, SearchSpace, Span
from memfit.study.engine.history import History, Lesson
from memfit.study.space.random_points import generator_for, random_draws
from memfit.study.space.space import Draws, draw_at, num_options, value_of, walk
from memfit.study.tuners.base import Answer, Wait, proposal_for

_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True, kw_only=True)
class PbtSettings:
    """NNI's class arguments."""

    population_size: int
    factor: float
    fraction: float
    resample_probability: float
    checkpoint_folder: str


class PbtTuner:
    """One trial per member and step."""

    def __init__(self, space: SearchSpace, seed: int, settings: PbtSettings) -> None:
        self.space = space
        self.seed = seed
        self.settings = settings

    def propose(self, history: History, number: int) -> Answer:
        steps: dict[int, dict[int, Lesson]] = {}
        for lesson in history:
            memo = lesson.trial.proposal.memo
            if "member" in memo:
                steps.setdefault(memo["step"], {})[memo["member"]] = lesson
        step = max(steps, default=0)
        done = steps.get(step, {})
        if len(done) == self.settings.population_size:
            if any(lesson.is_running for lesson in done.values()):
                return Wait(f"step {step} of the population is not finished")
            step, done = step + 1, {}
        member = next(index for index in range(self.settings.population_size) if index not in done)
        return self._trial(steps.get(step - 1, {}), step, member, number)

    def _trial(self, before: dict[int, Lesson], step: int, member: int, number: int) -> Answer:
        generator = generator_for(self.seed, step, member)
        save = f"{self.settings.checkpoint_folder}/{member}/{step}"
        memo = {"step": step, "member": member}
        if not before:
            draws, load = random_draws(self.space, generator), save
        else:
            parent, is_own = self._parent(before, member, generator)
            memo["parent"] = parent.number
            load = parent.trial.parameters["save_checkpoint_dir"]
            draws = parent.draws if is_own else self._explore(parent.draws, generator)
        folders = {"load_checkpoint_dir": load, "save_checkpoint_dir": save}
        return proposal_for(self.space, number, draws, extra=folders, memo=memo)

    def _parent(self, before: dict[int, Lesson], member: int, generator: np.random.Generator) -> tuple[Lesson, bool]:
        """Whose checkpoint the member goes on with, and whether it is its own."""
        ranked = sorted(before.values(), key=lambda lesson: (_loss(lesson), lesson.number))
        num_moved = min(math.ceil(self.settings.fraction * len(ranked)), len(ranked) // 2)
        if before[member] in ranked[len(ranked) - num_moved :]:
            return ranked[int(generator.integers(num_moved))], False
        return before[member], True

    def _explore(self, parent: Draws, generator: np.random.Generator) -> Draws:
        draws: Draws = {}
        for path, parameter in walk(self.space, draws):
            if path not in parent or generator.random() < self.settings.resample_probability:
                draws[path] = draw_at(parameter, float(generator.random()))
            else:
                sign = 1 if generator.random() > 0.5 else -1
                draws[path] = perturbed(parameter, parent[path], sign, self.settings.factor)
        return draws


def _loss(lesson: Lesson) -> float:
    """Failed and infeasible members are the worst."""
    return lesson.losses[0] if lesson.losses is not None else math.inf


def perturbed(parameter: Parameter, draw: float, sign: int, factor: float) -> float:
    """One step up or down: to the neighbour of an option or a stepped number, else by a part of the range."""
    match parameter:
        case Nested():
            return draw
        case Bell():
            return _perturbed_bell(parameter, draw, sign, factor)
        case Span(step=float() as step):
            value = float(value_of(parameter, draw))
            return min(max((round(value / step) + sign) * step, parameter.low), parameter.high)
        case Span(log=True):
            moved = math.log(draw) + sign * factor * (math.log(parameter.high) - math.log(parameter.low))
            return min(max(math.exp(moved), parameter.low), parameter.high)
        case Span():
            return min(max(draw + sign * factor * (parameter.high - parameter.low), parameter.low), parameter.high)
    first = parameter.low if isinstance(parameter, Integers) else 0
    last = first + (num_options(parameter) or 1) - 1
    return min(max(draw + sign, first), last)


def _perturbed_bell(parameter: Bell, draw: float, sign: int, factor: float) -> float:
    place = _NORMAL.inv_cdf(min(max(draw, 2.0**-53), 1 - 2.0**-53))
    if parameter.step is not None and not parameter.log and parameter.deviation > 0:
        return _NORMAL.cdf(place + sign * parameter.step / parameter.deviation)
    return _NORMAL.cdf(place + sign * factor)
