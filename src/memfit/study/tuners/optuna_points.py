"""Optuna as a tuner: a point chosen from the trials so far.

A function of the history: a study in memory is filled with the lessons, asked once, and thrown away (0.05 ms per trial
that is put in). Nothing of Optuna is stored, so nothing of it can be lost or be locked. The sampler is made anew for
every point, seeded by study and trial number; read in Optuna 5.0.

A point that needs too much memory goes in as complete, with the worst value seen so far and a constraint above zero:
reported as a failure it would teach nothing, and would be proposed again. A trial stopped early goes in as pruned.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from memfit.records.study import Bell, Integers, Parameter, SearchSpace, Span
from memfit.study.engine.history import Lesson
from memfit.study.space.space import Draws, is_nested, num_options, walk

SamplerFactory = Callable[[int], optuna.samplers.BaseSampler]
"""Makes a sampler from a seed."""

_CONSTRAINT = "memory"


def tpe_factory(space: SearchSpace, arguments: dict[str, Any]) -> SamplerFactory:
    """The tree-structured Parzen estimator; parameters that exist only together are modelled together."""
    return lambda seed: optuna.samplers.TPESampler(
        n_startup_trials=arguments["num_startup"],
        n_ei_candidates=arguments["num_candidates"],
        constant_liar=arguments["constant_liar"],
        multivariate=True,
        group=is_nested(space),
        seed=seed,
    )


def gp_factory(num_startup: int) -> SamplerFactory:
    """A Gaussian process with expected improvement; needs torch and scipy."""
    return lambda seed: optuna.samplers.GPSampler(
        n_startup_trials=num_startup, seed=seed, deterministic_objective=False
    )


def suggest(
    space: SearchSpace, lessons: Iterable[Lesson], *, num_objectives: int, seed: int, sampler: SamplerFactory
) -> Draws:
    """The next point after these lessons."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        # `group` and some samplers are marked experimental; what we rely on of them is tested here.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        directions = [StudyDirection.MINIMIZE] * num_objectives
        study = optuna.create_study(directions=directions, sampler=sampler(seed))
        for frozen in frozen_trials(space, list(lessons), num_objectives):
            study.add_trial(frozen)
        return _draw(space, study.ask())


def _draw(space: SearchSpace, trial: optuna.Trial) -> Draws:
    draws: Draws = {}
    for path, parameter in walk(space, draws):
        distribution = distribution_of(parameter)
        if isinstance(distribution, CategoricalDistribution):
            draws[path] = trial.suggest_categorical(path, distribution.choices)  # pyright: ignore[reportArgumentType]
        elif isinstance(distribution, IntDistribution):
            draws[path] = trial.suggest_int(path, distribution.low, distribution.high)
        elif isinstance(distribution, FloatDistribution):
            draws[path] = trial.suggest_float(path, distribution.low, distribution.high, log=distribution.log)
    return draws


def distribution_of(parameter: Parameter) -> BaseDistribution:
    """What Optuna draws from: never with its own steps, which start at `low` instead of at zero."""
    match parameter:
        case Span():
            return FloatDistribution(parameter.low, parameter.high, log=parameter.log)
        case Bell():
            return FloatDistribution(0.0, 1.0)
        case Integers():
            return IntDistribution(parameter.low, parameter.end - 1)
    return CategoricalDistribution(range(num_options(parameter) or 0))  # pyright: ignore[reportArgumentType]


def frozen_trials(space: SearchSpace, lessons: list[Lesson], num_objectives: int) -> list[FrozenTrial]:
    """The lessons as Optuna's trials, in the order of their numbers; failures are left out."""
    worst = _worst_losses(lessons, num_objectives)
    if any(lesson.violation is not None for lesson in lessons):
        # Optuna wants a constraint of all or of none; what ended well without a figure fitted.
        lessons = [replace(lesson, violation=lesson.violation or 0.0) for lesson in lessons]
    frozen = [_frozen(space, lesson, worst) for lesson in sorted(lessons, key=lambda lesson: lesson.number)]
    return [trial for trial in frozen if trial is not None]


def _worst_losses(lessons: list[Lesson], num_objectives: int) -> list[float]:
    known = [lesson.losses for lesson in lessons if lesson.losses is not None]
    return [max(losses) for losses in zip(*known, strict=True)] if known else [0.0] * num_objectives


def _frozen(space: SearchSpace, lesson: Lesson, worst: list[float]) -> FrozenTrial | None:
    if not lesson.draws:
        return None
    where: dict[str, Any] = {
        "params": {path: _as_drawn(parameter, lesson.draws[path]) for path, parameter in walk(space, lesson.draws)},
        "distributions": {path: distribution_of(parameter) for path, parameter in walk(space, lesson.draws)},
    }
    if lesson.violation is not None:
        where["constraints"] = {_CONSTRAINT: lesson.violation}
    if lesson.is_running:
        return create_trial(state=TrialState.RUNNING, **where)
    if lesson.is_infeasible:
        return create_trial(values=worst, **where)
    if lesson.losses is not None:
        return create_trial(values=lesson.losses, **where)
    if lesson.last_loss is not None:
        # With several objectives Optuna has no place for reports; then pruned alone says that it was worse.
        reports = {max(lesson.num_reports - 1, 0): lesson.last_loss} if len(worst) == 1 else {}
        return create_trial(state=TrialState.PRUNED, intermediate_values=reports, **where)
    return None


def _as_drawn(parameter: Parameter, draw: float) -> float | int:
    return float(draw) if isinstance(parameter, (Span, Bell)) else int(draw)
