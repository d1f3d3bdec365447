"""Hyperband and BOHB tuners: many points tried briefly, few of them long.

Li et al., Hyperband (2018). With R the largest budget, eta the share that survives and s_max = floor(log_eta R), the
brackets s = s_max .. 0 follow each other for ever. Bracket s starts n = ceil((s_max + 1) eta^s / (s + 1)) points with
budget R / eta^s; its round i runs the best floor(n / eta^i) of them with the budget floor(R / eta^s eta^i), as new
trials that read it as TRIAL_BUDGET. BOHB (Falkner et al. 2018) draws new points from a model of the largest budget that
has been tried often enough, here Optuna's TPE.

Everything is read off the trials: their memos hold bracket, round and place. Unlike NNI's, a round goes on with fewer
points when too many failed, and points that need too much memory never survive.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from memfit.records.study import SearchSpace
from memfit.study.engine.history import History, Lesson
from memfit.study.space.random_points import generator_for, random_draws
from memfit.study.space.space import Draws
from memfit.study.tuners.base import Answer, Wait, proposal_for

BUDGET = "TRIAL_BUDGET"
_EPSILON = 1e-6
"""Keeps floor and ceil from being wrong by one where a power is a whole number."""


@dataclass(frozen=True, slots=True)
class Bracket:
    """How many points with which budget, round by round."""

    s: int
    s_max: int
    eta: int
    largest_budget: float

    def num_points(self, round_index: int) -> int:
        first = math.ceil((self.s_max + 1) * self.eta**self.s / (self.s + 1) - _EPSILON)
        return math.floor(first / self.eta**round_index + _EPSILON)

    def budget(self, round_index: int) -> int:
        return math.floor(self.largest_budget / self.eta**self.s * self.eta**round_index + _EPSILON)

    @property
    def num_rounds(self) -> int:
        return self.s + 1


@dataclass(frozen=True, slots=True)
class _Turn:
    """The next trial of a bracket: which round and place, and, after the first round, whose point goes on."""

    bracket: int
    round_index: int
    place: int
    survivor: Lesson | None


class HyperbandTuner:
    """Gives every bracket its next trial, older brackets first."""

    def __init__(
        self, space: SearchSpace, seed: int, *, largest_budget: float, smallest_budget: float, eta: int, serial: bool
    ) -> None:
        self.space = space
        self.seed = seed
        self.largest_budget = largest_budget
        self.eta = eta
        self.serial = serial
        self.s_max = math.floor(math.log(largest_budget / smallest_budget, eta) + _EPSILON)

    def bracket(self, index: int) -> Bracket:
        return Bracket(self.s_max - index % (self.s_max + 1), self.s_max, self.eta, self.largest_budget)

    def propose(self, history: History, number: int) -> Answer:
        turn = self._turn(history)
        if turn is None:
            return Wait("the bracket's round is not finished")
        draws = self.new_point(history, number) if turn.survivor is None else turn.survivor.draws
        memo: dict[str, Any] = {"bracket": turn.bracket, "round": turn.round_index, "place": turn.place}
        budget = self.bracket(turn.bracket).budget(turn.round_index)
        return proposal_for(self.space, number, draws, extra={BUDGET: budget}, memo=memo)

    def new_point(self, history: History, number: int) -> Draws:
        """A point for the first round of a bracket."""
        return random_draws(self.space, generator_for(self.seed, number))

    def _turn(self, history: History) -> _Turn | None:
        rounds: dict[tuple[int, int], list[Lesson]] = {}
        for lesson in history:
            memo = lesson.trial.proposal.memo
            if "bracket" in memo:
                rounds.setdefault((memo["bracket"], memo["round"]), []).append(lesson)
        num_brackets = 1 + max((bracket for bracket, _ in rounds), default=-1)
        is_over = True
        for index in range(num_brackets):
            turn, is_over = self._turn_in(index, rounds)
            if turn is not None:
                return turn
        return _Turn(num_brackets, 0, 0, None) if is_over or not self.serial else None

    def _turn_in(self, index: int, rounds: dict[tuple[int, int], list[Lesson]]) -> tuple[_Turn | None, bool]:
        """The next trial of one bracket, and whether the bracket is over."""
        bracket = self.bracket(index)
        before: list[Lesson] = []
        for round_index in range(bracket.num_rounds):
            survivors = _survivors(before, bracket.num_points(round_index)) if round_index else []
            size = len(survivors) if round_index else bracket.num_points(0)
            lessons = rounds.get((index, round_index), [])
            if len(lessons) < size:
                survivor = survivors[len(lessons)] if round_index else None
                return _Turn(index, round_index, len(lessons), survivor), False
            if any(lesson.is_running for lesson in lessons):
                return None, False
            before = lessons
        return None, True


def _survivors(lessons: list[Lesson], most: int) -> list[Lesson]:
    """The best of a round by their first objective; those that failed or need too much memory are out."""
    scored = [(_score(lesson), lesson) for lesson in lessons]
    fit = [(score, lesson.number, lesson) for score, lesson in scored if score is not None]
    return [lesson for _, _, lesson in sorted(fit, key=lambda entry: entry[:2])[:most]]


def _score(lesson: Lesson) -> float | None:
    if lesson.losses is not None:
        return lesson.losses[0]
    return None if lesson.is_infeasible else lesson.last_loss


class BohbTuner(HyperbandTuner):
    """Hyperband whose new points come from a model."""

    def __init__(
        self, *args: Any, random_fraction: float, min_points: int | None, num_candidates: int, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.random_fraction = random_fraction
        self.min_points = min_points
        self.num_candidates = num_candidates

    def new_point(self, history: History, number: int) -> Draws:
        generator = generator_for(self.seed, number)
        draws = random_draws(self.space, generator)
        lessons = self._lessons(history, len(draws))
        if not lessons or generator.random() < self.random_fraction:
            return draws
        from memfit.study.tuners.optuna_points import suggest, tpe_factory

        arguments = {"num_startup": 0, "num_candidates": self.num_candidates, "constant_liar": True}
        seed = int(generator.integers(2**32))
        return suggest(self.space, lessons, num_objectives=1, seed=seed, sampler=tpe_factory(self.space, arguments))

    def _lessons(self, history: History, num_parameters: int) -> list[Lesson]:
        """Those of the largest budget with enough of them; what needs too much memory does so with any budget."""
        enough = (self.min_points or num_parameters + 1) + 2
        by_budget: dict[int, list[Lesson]] = {}
        for lesson in history:
            if lesson.losses is not None and len(lesson.losses) == 1:
                by_budget.setdefault(lesson.trial.parameters[BUDGET], []).append(lesson)
        large = [budget for budget, lessons in by_budget.items() if len(lessons) >= enough]
        if not large:
            return []
        return by_budget[max(large)] + [lesson for lesson in history if lesson.is_infeasible or lesson.is_running]
