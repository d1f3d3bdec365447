"""What is a tuner or assessor called, and how is the one a study names made?

Names are NNI's, in any case. Some have no counterpart (architecture search) and are refused.
"""

from __future__ import annotations

import difflib
import importlib.util

from memfit.errors import MissingExtra, UsageError
from memfit.records.study import Direction, Opaque, StudySettings, Tool
from memfit.study.assessors.curve_fit import CurveAssessor, CurveSettings
from memfit.study.assessors.median_stop import Assessor, MedianAssessor
from memfit.study.engine.user_classes import CustomAssessor, CustomTuner
from memfit.study.space.space import walk_all
from memfit.study.tuners.base import Tuner, take_argument
from memfit.study.tuners.kinds import TUNERS

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
        return CustomTuner(tool, settings.space, settings.goal.metric)
    name = tuner_name(tool.name)
    check_arguments(tool)
    unknown = [path for path, parameter in walk_all(settings.space) if isinstance(parameter, Opaque)]
    if unknown:
        raise UsageError(f"{name} does not know the type of {unknown[0]}", hint="only a custom tuner can draw it")
    return TUNERS[name].make(settings)


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
