"""Which built-in tuners are there, what do they take, and what serves them here?"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from memfit.errors import UsageError
from memfit.records.study import Direction, StudySettings
from memfit.study.tuners.base import Tuner, take_argument
from memfit.study.tuners.batch import BatchTuner
from memfit.study.tuners.evolution import EvolutionTuner
from memfit.study.tuners.grid import GridTuner
from memfit.study.tuners.hyperband import BohbTuner, HyperbandTuner
from memfit.study.tuners.model_based import ModelTuner, has_gaussian_process, require_optuna
from memfit.study.tuners.population import PbtSettings, PbtTuner
from memfit.study.tuners.random_search import RandomTuner


@dataclass(frozen=True, slots=True, kw_only=True)
class TunerKind:
    """One built-in tuner."""

    make: Callable[[StudySettings], Tuner]
    arguments: frozenset[str] = frozenset()
    direction: Direction = "maximize"
    """What NNI takes for granted when `optimize_mode` is not given."""
    note: str = ""
    """What a user of NNI should know of how it is served."""


def _seed(settings: StudySettings) -> int:
    return take_argument(settings.tuner.arguments, "seed", settings.seed, low=-(2**63), high=2**63, tool="tuner")


def _number(settings: StudySettings, name: str, default: float, low: float, high: float) -> Any:
    return take_argument(settings.tuner.arguments, name, default, low=low, high=high, tool=settings.tuner.name)


def _tpe(settings: StudySettings) -> Tuner:
    return ModelTuner(settings.space, _seed(settings), model="tpe", arguments=settings.tuner.arguments)


def _gaussian_process(settings: StudySettings) -> Tuner:
    model = "gp" if has_gaussian_process() else "tpe"
    return ModelTuner(settings.space, _seed(settings), model=model, arguments=settings.tuner.arguments)


def _evolution(settings: StudySettings) -> Tuner:
    size = _number(settings, "population_size", 32, 1, 99999)
    return EvolutionTuner(settings.space, _seed(settings), population_size=size)


def _aging_evolution(settings: StudySettings) -> Tuner:
    size = _number(settings, "population_size", 100, 1, 99999)
    sample = _number(settings, "sample_size", 25, 1, 99999)
    return EvolutionTuner(settings.space, _seed(settings), population_size=size, sample_size=sample)


def _hyperband(settings: StudySettings) -> Tuner:
    mode = settings.tuner.arguments.get("exec_mode", "parallelism")
    if mode not in ("serial", "parallelism"):
        raise UsageError("Hyperband: exec_mode is not serial or parallelism", found=repr(mode))
    return HyperbandTuner(
        settings.space,
        _seed(settings),
        largest_budget=_number(settings, "R", 60, 1, 1e9),
        smallest_budget=1,
        eta=_number(settings, "eta", 3, 2, 1e6),
        serial=mode == "serial",
    )


def _bohb(settings: StudySettings) -> Tuner:
    require_optuna()
    smallest = _number(settings, "min_budget", 1, 1, 1e9)
    return BohbTuner(
        settings.space,
        _seed(settings),
        smallest_budget=smallest,
        largest_budget=_number(settings, "max_budget", 3, smallest, 1e9),
        eta=_number(settings, "eta", 3, 2, 1e6),
        serial=True,
        random_fraction=_number(settings, "random_fraction", 1 / 3, 0, 1),
        min_points=settings.tuner.arguments.get("min_points_in_model"),
        num_candidates=_number(settings, "num_samples", 64, 1, 1e6),
    )


def _pbt(settings: StudySettings) -> Tuner:
    folder = settings.tuner.arguments.get("all_checkpoint_dir") or os.path.join(settings.output_folder, "checkpoint")
    return PbtTuner(
        settings.space,
        _seed(settings),
        PbtSettings(
            population_size=_number(settings, "population_size", 10, 1, 99999),
            factor=_number(settings, "factor", 0.2, 0, 1e6),
            fraction=_number(settings, "fraction", 0.2, 0, 1),
            resample_probability=_number(settings, "resample_probability", 0.25, 0, 1),
            checkpoint_folder=os.path.abspath(os.path.expanduser(folder)),
        ),
    )


_GP_NOTE = (
    "{} is served by Optuna's Gaussian process, or by its TPE where torch or scipy is missing; "
    "arguments of the original model have no effect"
)
_GP_ARGUMENTS = frozenset(
    {"config_dedup", "no_resampling", "no_candidates", "selection_num_starting_points", "cold_start_num"}
    | {"exploration_probability", "utility", "kappa", "xi", "nu", "alpha", "selection_num_warm_up", "sample_size"}
    | {"trials_per_update", "num_epochs_per_training"}
)
_TPE_NOTE = "{} is served by Optuna's TPE"
_HYPEROPT = frozenset({"parallel_optimize", "constant_liar_type"})
_BOHB = frozenset(
    {"min_budget", "max_budget", "eta", "min_points_in_model", "top_n_percent", "num_samples", "random_fraction"}
    | {"bandwidth_factor", "min_bandwidth", "config_space"}
)
_PBT = frozenset({"population_size", "factor", "factors", "fraction", "resample_probability", "all_checkpoint_dir"})
_POPULATION = frozenset({"population_size"})

TUNERS: dict[str, TunerKind] = {
    "TPE": TunerKind(make=_tpe, arguments=frozenset({"tpe_args"}), direction="minimize"),
    "TPE_legacy": TunerKind(make=_tpe, arguments=_HYPEROPT, note=_TPE_NOTE),
    "Anneal": TunerKind(make=_tpe, arguments=_HYPEROPT, note=_TPE_NOTE),
    "Random": TunerKind(make=lambda settings: RandomTuner(settings.space, _seed(settings))),
    "GridSearch": TunerKind(make=lambda settings: GridTuner(settings.space)),
    "Batch": TunerKind(make=lambda settings: BatchTuner(settings.space)),
    "Evolution": TunerKind(make=_evolution, arguments=_POPULATION),
    "RegularizedEvolutionTuner": TunerKind(make=_aging_evolution, arguments=_POPULATION | {"sample_size"}),
    "SMAC": TunerKind(make=_gaussian_process, arguments=_GP_ARGUMENTS, note=_GP_NOTE),
    "Metis": TunerKind(make=_gaussian_process, arguments=_GP_ARGUMENTS, note=_GP_NOTE),
    "GP": TunerKind(make=_gaussian_process, arguments=_GP_ARGUMENTS, note=_GP_NOTE),
    "DNGO": TunerKind(make=_gaussian_process, arguments=_GP_ARGUMENTS, note=_GP_NOTE),
    "Hyperband": TunerKind(make=_hyperband, arguments=frozenset({"R", "eta", "exec_mode"})),
    "BOHB": TunerKind(make=_bohb, arguments=_BOHB, note="{} draws its points by Optuna's TPE"),
    "PBT": TunerKind(make=_pbt, arguments=_PBT),
}
