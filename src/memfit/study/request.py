"""Request for a study from the command line or Python: file, search space, changes to it."""

from __future__ import annotations

import os
import shlex
from typing import Any

import msgspec

from memfit.errors import UsageError
from memfit.job.description import parse_settings
from memfit.job.workloads.registry import WORKLOADS
from memfit.records.study import Direction, Goal, MemoryRule, StudySettings, Tool
from memfit.study.engine.registry import check_arguments
from memfit.study.files.kinds import read_space_file, read_study_file


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for; None is: as the file, or the default, says."""

    words: tuple[str, ...] = ()
    """A study's file; or, with a space, a command or a workload."""
    space: str | None = None
    tuner: str | None = None
    trials: int | None = None
    concurrency: int | None = None
    limit_bytes: int | None = None
    memory_objective: bool = False
    metric: str | None = None
    direction: Direction | None = None
    seed: int | None = None
    max_seconds: float | None = None
    max_trial_seconds: float | None = None
    fixed: tuple[str, ...] = ()
    steps: int | None = None
    name: str | None = None


def settings_of(request: Request) -> StudySettings:
    """The study that is meant."""
    settings = _from_file(request) if request.space is None else _from_words(request)
    return _changed(settings, request)


def _from_file(request: Request) -> StudySettings:
    if len(request.words) != 1:
        hint = "memfit study FILE, or memfit study --space space.json -- python trial.py"
        raise UsageError("which study?", found=shlex.join(request.words) or "nothing", hint=hint)
    settings = read_study_file(request.words[0])
    if request.steps is not None and not settings.workload:
        raise UsageError("--steps is for workloads; a command knows its own steps", hint="leave it out")
    return settings


def _from_words(request: Request) -> StudySettings:
    """A space and a command: the quickest way to a study."""
    if not request.words:
        raise UsageError("there is no command to run", hint="memfit study --space space.json -- python trial.py")
    space = read_space_file(request.space or "")
    target = request.words[0]
    path, _, function = target.rpartition(":")
    is_workload = len(request.words) == 1 and (
        target in WORKLOADS or (function.isidentifier() and os.path.isfile(path))
    )
    what: dict[str, Any] = {"workload": target} if is_workload else {"command": shlex.join(request.words)}
    source = f"{os.path.basename(request.space or '')} (search space)"
    return StudySettings(space=space, code_folder=os.getcwd(), source=source, name=_name_of(request), **what)


def _name_of(request: Request) -> str:
    words = [word for word in request.words if not word.startswith("-")]
    subject = words[1] if len(words) > 1 and os.path.basename(words[0]).startswith("python") else words[0]
    return os.path.splitext(os.path.basename(subject.partition(":")[0]))[0]


def _changed(settings: StudySettings, request: Request) -> StudySettings:
    """The study with what was asked for on top of its file."""
    changes: dict[str, Any] = {
        "name": request.name,
        "max_trials": request.trials,
        "concurrency": request.concurrency,
        "seed": request.seed,
        "max_seconds": request.max_seconds,
        "max_trial_seconds": request.max_trial_seconds,
        "tuner": None if request.tuner is None else _tuner(request.tuner),
        "goal": _goal(settings.goal, request),
        "memory": _memory(settings.memory, request),
        "fixed": _fixed(settings, request),
    }
    return msgspec.structs.replace(settings, **{name: value for name, value in changes.items() if value is not None})


def _tuner(name: str) -> Tool:
    tool = Tool(name=name)
    check_arguments(tool)
    return tool


def _goal(goal: Goal, request: Request) -> Goal:
    return Goal(metric=request.metric or goal.metric, direction=request.direction or goal.direction)


def _memory(rule: MemoryRule, request: Request) -> MemoryRule:
    limit_bytes = rule.limit_bytes if request.limit_bytes is None else request.limit_bytes
    if request.memory_objective:
        return MemoryRule(use="objective", limit_bytes=limit_bytes)
    return rule if request.limit_bytes is None else MemoryRule(use="limit", limit_bytes=limit_bytes)


def _fixed(settings: StudySettings, request: Request) -> dict[str, Any]:
    if request.fixed and not settings.workload:
        raise UsageError("--set is for workloads; a command takes its own arguments", hint="leave it out")
    steps = {} if request.steps is None else {"steps": request.steps}
    return {**settings.fixed, **parse_settings(request.fixed), **steps}


def require_an_end(settings: StudySettings) -> StudySettings:
    """A study from the command line that would never end gets a usual number of trials."""
    from memfit.study.space.space import space_size

    endless = settings.max_trials is None and settings.max_seconds is None and space_size(settings.space) is None
    return msgspec.structs.replace(settings, max_trials=USUAL_TRIALS) if endless else settings


USUAL_TRIALS = 20
