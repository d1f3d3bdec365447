"""Registry of built-in tuners and assessors: their arguments, and what implements them."""

from __future__ import annotations

import difflib
import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from memfit.errors import MissingExtra, UsageError
from memfit.records.study import Direction, Opaque, StudySettings, Tool
from memfit.study.assessors.curve_fit import CurveAssessor, CurveSettings
from memfit.study.assessors.median_stop import Assessor, MedianAssessor
from memfit.study.engine.advisor import CustomAdvisor, is_advisor
from memfit.study.engine.user_classes import CustomAssessor, CustomTuner, make_custom
from memfit.study.space.space import walk_all
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


# What is a tuner or assessor called, and how is the one a study names made?
#
# Names are NNI's, in any case. Some have no counterpart (architecture search) and are refused.

_COMMON = {"optimize_mode", "seed"}
ARCHITECTURE_TUNERS = ("PPO", "NetworkMorphism")
ASSESSORS: dict[str, frozenset[str]] = {
    "Medianstop": frozenset({"optimize_mode", "start_step"}),
    "Curvefitting": frozenset({"optimize_mode", "epoch_num", "start_step", "threshold", "gap"}),
}


def tuner_name(name: str) -> str:
    """The proper name of a built-in tuner, or an error with the names there are."""
    known = {each.lower(): each for each in TUNERS}
    short = name.lower()
    for candidate in (short, short.removesuffix("tuner"), f"{short}tuner"):
        if candidate in known:
            return known[candidate]
    if short.removesuffix("tuner") in {each.lower() for each in ARCHITECTURE_TUNERS}:
        raise UsageError(f"the tuner {name} searches architectures, which memfit does not", hint="use TPE")
    near = difflib.get_close_matches(short, known, n=1)
    hint = f"did you mean {known[near[0]]}?" if near else f"the tuners are {', '.join(TUNERS)}"
    raise UsageError("there is no such tuner", found=repr(name), hint=hint)


def assessor_name(name: str) -> str:
    """The proper name of a built-in assessor, or an error with the names there are."""
    known = {each.lower(): each for each in ASSESSORS}
    short = name.lower().removesuffix("assessor")
    if short in known:
        return known[short]
    raise UsageError("there is no such assessor", found=repr(name), hint=f"the assessors are {', '.join(ASSESSORS)}")


def make_tuner(settings: StudySettings) -> Tuner:
    """The tuner of a study; wrong names and arguments are found here, before anything runs."""
    tool = settings.tuner
    if tool.class_name:
        return _custom_tuner(tool, settings)
    name = tuner_name(tool.name)
    check_arguments(tool)
    unknown = [path for path, parameter in walk_all(settings.space) if isinstance(parameter, Opaque)]
    if unknown:
        raise UsageError(f"{name} does not know the type of {unknown[0]}", hint="only a custom tuner can draw it")
    return TUNERS[name].make(settings)


def _custom_tuner(tool: Tool, settings: StudySettings) -> Tuner:
    """A tuner or an advisor of the user's own."""
    made = make_custom(tool)
    kind = CustomAdvisor if is_advisor(made) else CustomTuner
    return kind(made, settings.space, settings.goal.metric)


def make_assessor(settings: StudySettings) -> Assessor | None:
    """The assessor of a study, where there is one."""
    tool = settings.assessor
    if tool is None:
        return None
    if tool.class_name:
        return CustomAssessor(tool, settings.goal.metric)
    name = assessor_name(tool.name)
    check_arguments(tool, is_assessor=True)
    direction = _direction(name, tool, settings.goal.direction)
    start = take_argument(tool.arguments, "start_step", 0 if name == "Medianstop" else 6, low=0, high=9999, tool=name)
    if name == "Medianstop":
        return MedianAssessor(direction, start)
    _require_scipy()
    return CurveAssessor(
        direction,
        CurveSettings(
            epoch_num=take_argument(tool.arguments, "epoch_num", 20, low=1, high=10**9, tool=name),
            start_step=max(start, 1),
            threshold=take_argument(tool.arguments, "threshold", 0.95, low=0, high=9999, tool=name),
            gap=take_argument(tool.arguments, "gap", 1, low=1, high=9999, tool=name),
        ),
    )


def _require_scipy() -> None:
    if importlib.util.find_spec("scipy") is None:
        raise MissingExtra("Curvefitting needs scipy", hint="pip install 'memfit[study]', or the assessor Medianstop")


def _direction(name: str, tool: Tool, default: Direction) -> Direction:
    mode = tool.arguments.get("optimize_mode", default)
    if mode not in ("minimize", "maximize"):
        raise UsageError(f"{name}: optimize_mode is not minimize or maximize", found=repr(mode))
    return mode


def check_arguments(tool: Tool, *, is_assessor: bool = False) -> None:
    """Refuse an argument the built-in does not know, with the one that was perhaps meant."""
    name = assessor_name(tool.name) if is_assessor else tuner_name(tool.name)
    known = ASSESSORS[name] if is_assessor else TUNERS[name].arguments | _COMMON
    for argument in tool.arguments:
        if argument not in known:
            near = difflib.get_close_matches(str(argument), known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"it takes {', '.join(sorted(known))}"
            raise UsageError(f"{name} takes no argument of this name", found=str(argument), hint=hint)


def tool_notes(settings: StudySettings) -> tuple[str, ...]:
    """What a user of NNI should know of how the tuner is served here."""
    if settings.tuner.class_name:
        return ()
    name = tuner_name(settings.tuner.name)
    note = TUNERS[name].note.format(name)
    return (note,) if note else ()
