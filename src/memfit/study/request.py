"""Request for a study from the command line or Python: file, search space, changes to it."""

from __future__ import annotations

import os
import shlex
from typing import Any

import msgspec

from memfit.errors import UsageError
from memfit.job.description import parse_settings
from memfit.job.workloads.registry import WORKLOADS
from memfit.records.study import Goal, MemoryRule, StudySettings, Tool
from memfit.study.engine.registry import check_arguments
from memfit.study.files.kinds import read_space_file, read_study_file
from memfit.study.options import StudyOptions


def settings_of(words: tuple[str, ...], options: StudyOptions) -> StudySettings:
    """The study that is meant: the words are its file or, with a space, a command or a workload."""
    settings = _from_file(words, options) if options.space is None else _from_words(words, options.space)
    return _changed(settings, options)


def _from_file(words: tuple[str, ...], options: StudyOptions) -> StudySettings:
    if len(words) != 1:
        hint = "memfit study FILE, or memfit study --space space.json -- python trial.py"
        raise UsageError("which study?", found=shlex.join(words) or "nothing", hint=hint)
    settings = read_study_file(words[0])
    if options.steps is not None and not settings.workload:
        raise UsageError("--steps is for workloads; a command knows its own steps", hint="leave it out")
    return settings


def _from_words(words: tuple[str, ...], space_file: str) -> StudySettings:
    """A space and a command: the quickest way to a study."""
    if not words:
        raise UsageError("there is no command to run", hint="memfit study --space space.json -- python trial.py")
    target = words[0]
    path, _, function = target.rpartition(":")
    is_workload = len(words) == 1 and (target in WORKLOADS or (function.isidentifier() and os.path.isfile(path)))
    return StudySettings(
        space=read_space_file(space_file),
        code_folder=os.getcwd(),
        source=f"{os.path.basename(space_file)} (search space)",
        name=_name_of(words),
        workload=target if is_workload else "",
        command="" if is_workload else shlex.join(words),
    )


def _name_of(command: tuple[str, ...]) -> str:
    words = [word for word in command if not word.startswith("-")]
    subject = words[1] if len(words) > 1 and os.path.basename(words[0]).startswith("python") else words[0]
    return os.path.splitext(os.path.basename(subject.partition(":")[0]))[0]


def _changed(settings: StudySettings, options: StudyOptions) -> StudySettings:
    """The study with what was asked for on top of its file."""
    changes: dict[str, Any] = {
        "name": options.name,
        "max_trials": options.trials,
        "concurrency": options.concurrency,
        "seed": options.seed,
        "max_seconds": options.max_seconds,
        "max_trial_seconds": options.max_trial_seconds,
        "tuner": None if options.tuner is None else _tuner(options.tuner),
        "goal": _goal(settings.goal, options),
        "memory": _memory(settings.memory, options),
        "fixed": _fixed(settings, options),
    }
    return msgspec.structs.replace(settings, **{name: value for name, value in changes.items() if value is not None})


def _tuner(name: str) -> Tool:
    tool = Tool(name=name)
    check_arguments(tool)
    return tool


def _goal(goal: Goal, options: StudyOptions) -> Goal:
    return Goal(metric=options.metric or goal.metric, direction=options.direction or goal.direction)


def _memory(rule: MemoryRule, options: StudyOptions) -> MemoryRule:
    limit_bytes = rule.limit_bytes if options.limit_bytes is None else options.limit_bytes
    if options.memory_objective:
        return MemoryRule(use="objective", limit_bytes=limit_bytes)
    return rule if options.limit_bytes is None else MemoryRule(use="limit", limit_bytes=limit_bytes)


def _fixed(settings: StudySettings, options: StudyOptions) -> dict[str, object]:
    if options.fixed and not settings.workload:
        raise UsageError("--set is for workloads; a command takes its own arguments", hint="leave it out")
    steps = {} if options.steps is None else {"steps": options.steps}
    return {**settings.fixed, **parse_settings(options.fixed), **steps}


def require_an_end(settings: StudySettings) -> StudySettings:
    """A study from the command line that would never end gets a usual number of trials."""
    from memfit.study.space.space import space_size

    endless = settings.max_trials is None and settings.max_seconds is None and space_size(settings.space) is None
    return msgspec.structs.replace(settings, max_trials=USUAL_TRIALS) if endless else settings


USUAL_TRIALS = 20
