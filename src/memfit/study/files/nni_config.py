"""Reader of NNI experiment configs of schema v1, v2 and v3.

v1 files are first written as v2, then both go one way. What runs on other machines in NNI is refused with one line, and
so is what NNI 3 itself refuses (annotations, several phases in one trial). Fields without effect here become notes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from memfit.records.study import Direction, Goal, GpuWish, SearchSpace, StudySettings, Tool
from memfit.study.engine.registry import TUNERS
from memfit.study.files.fields import Fields, built_in_tool, custom_tool, plain, resolve
from memfit.study.files.nni_v1 import LOCAL, is_v1, refuse_platform, spelling, to_v2, tool_spelling
from memfit.study.files.text_file import read_text_file
from memfit.study.space.field_errors import FieldPlace, expect
from memfit.study.space.nni_space import read_space

MARKS = ("searchSpace", "searchSpaceFile", "searchSpacePath", "trialCommand", "trialConcurrency", "trainingService")
_LOG_LEVELS = ("fatal", "error", "warning", "info", "debug", "trace")
_NO_EFFECT = ("debug", "logLevel", "nniManagerIp", "tunerGpuIndices")
_SERVICE_NO_EFFECT = ("reuseMode", "debug", "nniManagerIp", "logCollection")


def looks_like_nni(written: object) -> bool:
    """Whether this is an experiment config of NNI."""
    names = {plain(str(name)) for name in written} if isinstance(written, dict) else set()
    return is_v1(written) or any(plain(mark) in names for mark in MARKS)


def read_nni_config(written: Mapping[str, object], path: Path) -> StudySettings:
    """Read one config; paths in it are relative to its folder."""
    place, notes = FieldPlace(path.name), []
    old = is_v1(written)
    fields = Fields(to_v2(written, place, notes), place, spelling()) if old else Fields(written, place)
    _refuse_what_is_not_here(fields)
    gpus = _read_service(fields, notes)
    tuner = _read_tuner(fields, path.parent, old)
    assessor = _read_tool(fields, "assessor", path.parent, old)
    direction = _direction(tuner, place.at("tuner"))
    settings = StudySettings(
        name=fields.take_text("experimentName"),
        source=f"{path.name} ({'NNI v1' if old else 'NNI v2 or v3'})",
        space=_read_space(fields, path.parent, allow_unknown=bool(tuner.class_name)),
        command=_required_text(fields, "trialCommand", "the command of a trial, for example: python3 train.py"),
        code_folder=resolve(fields.take_text("trialCodeDirectory", "."), path.parent),
        tuner=tuner,
        assessor=_with_direction(assessor, direction, place.at("assessor"), notes),
        goal=Goal(direction=direction),
        concurrency=_concurrency(fields),
        max_trials=fields.take_whole("maxTrialNumber", least=1),
        max_seconds=fields.take_seconds("maxExperimentDuration"),
        max_trial_seconds=fields.take_seconds("maxTrialDuration"),
        gpus=gpus,
        output_folder=_output_folder(fields, path.parent),
    )
    _drop_what_has_no_effect(fields, notes)
    fields.refuse_rest()
    return msgspec.structs.replace(settings, notes=tuple(notes))


def _refuse_what_is_not_here(fields: Fields) -> None:
    if fields.take_flag("useAnnotation"):
        fields.place.at("useAnnotation").refuse(
            "annotations in the code are not read", hint="write a search space, as NNI 3 asks for too"
        )
    kind = fields.take_text("experimentType", "hpo")
    if kind != "hpo":
        fields.place.at("experimentType").refuse("architecture search is not supported", found=kind)
    if "sharedStorage" in fields:
        fields.at("sharedStorage").refuse("shared storage belongs to remote platforms, which are not supported")
    fields.take("sharedStorage")


def _read_service(fields: Fields, notes: list[str]) -> GpuWish:
    """The local training service, or one line on why another one cannot be had; its shortcut fields count too."""
    place = fields.at("trainingService")
    written = fields.take("trainingService", (dict, list), "an object with a platform")
    services = written if isinstance(written, list) else [written or {"platform": "local"}]
    names = [service.get("platform", "local") if isinstance(service, dict) else service for service in services]
    other = next((name for name in names if name != "local"), None)
    if other is not None:
        refuse_platform(other, place.at("platform"))
    service = Fields(services[0], place, {new: old for old, new in LOCAL.items()} if "local" in place.field else {})
    service.take("platform")
    num_gpus = service.take_whole("trialGpuNumber")
    if num_gpus is None:
        num_gpus = fields.take_whole("trialGpuNumber")
    fields.take("trialGpuNumber")
    for name in ("trialCommand", "trialCodeDirectory"):
        service.take(name)
    gpus = GpuWish(
        num_gpus=num_gpus,
        indices=service.take_indices("gpuIndices"),
        trials_per_gpu=service.take_whole("maxTrialNumberPerGpu", 1, least=1),
        use_active=bool(service.take_flag("useActiveGpu", None)),
    )
    if any(service.take(name) for name in _SERVICE_NO_EFFECT):
        notes.append("trainingService: reuseMode and the like have no effect; every trial has a process of its own")
    service.refuse_rest()
    return gpus


def _read_space(fields: Fields, folder: Path, *, allow_unknown: bool) -> SearchSpace:
    file_name = fields.take_text("searchSpaceFile")
    place, written = fields.at("searchSpace"), fields.take("searchSpace")
    if file_name:
        path = Path(resolve(file_name, folder))
        place, written = FieldPlace(os.path.basename(file_name)), read_text_file(path, file_name)
    elif written is None:
        fields.place.refuse("expected searchSpace or searchSpaceFile", hint="searchSpaceFile: search_space.json")
    return read_space(written, place, allow_unknown=allow_unknown)


def _required_text(fields: Fields, name: str, expected: str) -> str:
    place, value = fields.at(name), fields.take_text(name)
    if not value.strip():
        place.refuse(f"expected {expected}")
    return value


def _concurrency(fields: Fields) -> int:
    place, value = fields.at("trialConcurrency"), fields.take_whole("trialConcurrency", least=1)
    if value is None:
        place.refuse("expected how many trials run at once", hint="trialConcurrency: 1")
    return value


def _output_folder(fields: Fields, folder: Path) -> str:
    written = fields.take_text("experimentWorkingDirectory")
    return resolve(written, folder) if written else ""


def _drop_what_has_no_effect(fields: Fields, notes: list[str]) -> None:
    place, level = fields.at("logLevel"), fields.take_text("logLevel", "info")
    if level not in _LOG_LEVELS:
        place.refuse(f"expected one of {', '.join(_LOG_LEVELS)}", found=level)
    for name in _NO_EFFECT:
        if fields.take(name) not in (None, False):
            notes.append(f"{name} has no effect")


def _read_tuner(fields: Fields, folder: Path, old: bool) -> Tool:
    if "advisor" in fields and "tuner" in fields:
        fields.at("advisor").refuse("advisor is an old name of tuner; expected only one of them")
    name = "advisor" if "advisor" in fields else "tuner"
    place, tool = fields.at(name), _read_tool(fields, name, folder, old)
    if tool is None:
        place.refuse("expected a tuner", hint="tuner: {name: TPE, classArgs: {optimize_mode: maximize}}")
    fields.take("advisor")
    return tool


def _read_tool(fields: Fields, kind: str, folder: Path, old: bool) -> Tool | None:
    place, written = fields.at(kind), fields.take(kind, dict, "an object with a name")
    if written is None:
        return None
    tool = Fields(written, place, tool_spelling(kind) if old else {})
    name_at, code_at = tool.at("name"), tool.at("codeDirectory")
    name, class_name = tool.take_text("name"), tool.take_text("className")
    code = tool.take_text("codeDirectory", "." if class_name else "")
    arguments = tool.take("classArgs", dict, "an object with arguments", {})
    tool.refuse_rest()
    if bool(name) == bool(class_name):
        found = "both" if name else "neither"
        place.refuse("expected either name (a built-in) or className (your own)", saw=found)
    if class_name:
        return custom_tool(class_name, code, arguments, folder, code_at)
    return built_in_tool(kind, name, arguments, name_at, place.at("classArgs"))


def _direction(tuner: Tool, place: FieldPlace) -> Direction:
    mode = tuner.arguments.get("optimize_mode")
    if mode is None or (tuner.class_name and mode not in ("minimize", "maximize")):
        return "maximize" if tuner.class_name else TUNERS[tuner.name].direction
    if mode not in ("minimize", "maximize"):
        place.at("classArgs", "optimize_mode").refuse("expected minimize or maximize", found=mode)
    return mode


def _with_direction(tool: Tool | None, direction: Direction, place: FieldPlace, notes: list[str]) -> Tool | None:
    """A built-in assessor without a direction takes the tuner's; NNI would always maximise."""
    if tool is None or tool.class_name:
        return tool
    if "optimize_mode" not in tool.arguments:
        if direction == "minimize":
            notes.append(f"{place.field}: no optimize_mode is given, so it minimizes as the tuner does")
        return Tool(name=tool.name, arguments={**tool.arguments, "optimize_mode": direction})
    mode = tool.arguments["optimize_mode"]
    expect(mode, str, "minimize or maximize", place.at("classArgs", "optimize_mode"))
    if mode not in ("minimize", "maximize"):
        place.at("classArgs", "optimize_mode").refuse("expected minimize or maximize", found=mode)
    return tool
