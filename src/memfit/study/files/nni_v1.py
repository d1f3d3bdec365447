"""Converts an NNI config of schema v1 to v2.

The first schema is still the most common one in public repositories. What NNI itself drops is dropped here too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from memfit.study.files.fields import Fields, plain
from memfit.study.space.field_errors import FieldPlace

RENAMED = {
    "experimentName": "experimentName",
    "trialConcurrency": "trialConcurrency",
    "maxExecDuration": "maxExperimentDuration",
    "maxTrialDuration": "maxTrialDuration",
    "maxTrialNum": "maxTrialNumber",
    "searchSpacePath": "searchSpaceFile",
    "searchSpace": "searchSpace",
    "nniManagerIp": "nniManagerIp",
    "logDir": "experimentWorkingDirectory",
    "debug": "debug",
    "logLevel": "logLevel",
    "useAnnotation": "useAnnotation",
}
TRIAL = {"command": "trialCommand", "codeDir": "trialCodeDirectory", "gpuNum": "trialGpuNumber"}
LOCAL = {"gpuIndices": "gpuIndices", "maxTrialNumPerGpu": "maxTrialNumberPerGpu", "useActiveGpu": "useActiveGpu"}
_SILENT = ("authorName", "description", "versionCheck", "logCollection", "multiThread")
_TOOL_SILENT = ("gpuIndices", "gpuNum", "checkpointDir", "includeIntermediateResults")


def is_v1(written: object) -> bool:
    """Whether the first schema's own words stand in the file."""
    if not isinstance(written, dict):
        return False
    names = {plain(str(name)) for name in written}
    has_trial = "trial" in names and "trialcommand" not in names
    return "trainingserviceplatform" in names or "searchspacepath" in names or has_trial


def to_v2(written: Mapping[str, object], place: FieldPlace, notes: list[str]) -> dict[str, object]:
    """The same config in the words of the second schema."""
    fields = Fields(written, place)
    v2: dict[str, Any] = {"trainingService": {"platform": _platform(fields)}}
    if fields.take_flag("multiPhase"):
        place.at("multiPhase").refuse("several phases in one trial are not supported", hint="NNI dropped them as well")
    _move(fields, v2, RENAMED)
    if "trial" in fields:
        trial = Fields(fields.take("trial"), fields.at("trial"))
        _move(trial, v2, TRIAL)
        notes.extend(f"trial.{name} has no effect" for name in trial.left())
    for kind in ("tuner", "assessor", "advisor"):
        if kind in fields:
            v2[kind] = _tool(kind, Fields(fields.take(kind), fields.at(kind)), notes)
    if "localConfig" in fields:
        local = Fields(fields.take("localConfig"), fields.at("localConfig"))
        _move(local, v2["trainingService"], LOCAL)
        local.refuse_rest()
    for name in _SILENT:
        fields.take(name)
    notes.extend(f"{name} has no effect" for name in fields.left())
    return v2


def _platform(fields: Fields) -> str:
    place, platform = fields.at("trainingServicePlatform"), fields.take_text("trainingServicePlatform", "local")
    if platform != "local":
        refuse_platform(platform, place)
    return platform


def refuse_platform(name: object, place: FieldPlace) -> NoReturn:
    """Say in one line that only this machine is served, and what to do for others."""
    place.refuse(
        "only the platform local is served", found=name, hint="`memfit study --on ADDRESS` for a cluster of machines"
    )


def spelling() -> dict[str, str]:
    """How the first schema writes the fields of the second."""
    top = {new: old for old, new in RENAMED.items()}
    trial = {new: f"trial.{old}" for old, new in TRIAL.items()}
    return {**top, **trial, "trainingService": "localConfig"}


def tool_spelling(kind: str) -> dict[str, str]:
    """How the first schema writes the fields of a tuner or assessor."""
    return {"name": f"builtin{kind.title()}Name", "codeDirectory": "codeDir"}


def _move(fields: Fields, v2: dict[str, object], renamed: dict[str, str]) -> None:
    for old, new in renamed.items():
        value = fields.take(old)
        if value is not None:
            v2[new] = value


def _tool(kind: str, fields: Fields, notes: list[str]) -> dict[str, object]:
    built_in = fields.take_text(f"builtin{kind.title()}Name")
    own = {name: fields.take_text(name) for name in ("codeDir", "classFileName", "className")}
    tool: dict[str, Any] = {"name": built_in} if built_in else {}
    if own["className"]:
        file_name = own["classFileName"]
        if not file_name.endswith(".py"):
            fields.place.at("classFileName").refuse("expected the name of a Python file", found=file_name)
        tool |= {"className": f"{file_name[:-3]}.{own['className']}", "codeDirectory": own["codeDir"] or "."}
    arguments = fields.take("classArgs", dict, "an object with arguments")
    if arguments is not None:
        tool["classArgs"] = arguments
    for name in _TOOL_SILENT:
        fields.take(name)
    if not tool:
        fields.place.refuse(f"expected builtin{kind.title()}Name, or codeDir, classFileName and className")
    notes.extend(f"{kind}.{name} has no effect" for name in fields.left())
    return tool
