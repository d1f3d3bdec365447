"""Reader of memfit's own study file.

The same ideas as in a config of NNI, but typed, and with memory in it. TOML is the usual form; the same fields in YAML
or JSON are read too.

    command = "python train.py"       # or workload = "mlp"
    trials = 40

    [goal]
    direction = "maximize"

    [memory]
    use = "limit"                     # or "objective", or "report"
    limit = "12GiB"

    [space]
    lr = { kind = "number", low = 1e-4, high = 1e-1, log = true }
    batch = { kind = "choice", options = [16, 32, 64] }
    width = { kind = "integer", low = 8, high = 512 }

Reader of the parameters (search space) in memfit's own study file.

{ kind = "choice", options = [...] }
{ kind = "nested", branches = { sgd = { momentum = {...} }, adam = {} } }
{ kind = "integer", low = 8, high = 512, log = true }        both ends belong to it
{ kind = "number", low = 1e-4, high = 1e-1, log = true, step = 0.5 }
{ kind = "normal", mean = 0, deviation = 1, log = true, step = 0.5 }
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from memfit.errors import BadQuantity
from memfit.records.study import (
    Bell,
    Branch,
    Choice,
    Goal,
    GpuWish,
    Integers,
    MemoryRule,
    Nested,
    Parameter,
    SearchSpace,
    Span,
    StudySettings,
    Tool,
)
from memfit.study.files.fields import Fields, built_in_tool, custom_tool, resolve
from memfit.study.files.text_file import read_text_file
from memfit.study.space.field_errors import FieldPlace, expect, expect_number
from memfit.study.space.nni_space import read_space
from memfit.units import parse_bytes


def read_native(written: Mapping[str, object], path: Path) -> StudySettings:
    """Read one study; paths in it are relative to its folder."""
    fields, folder = Fields(written, FieldPlace(path.name)), path.parent
    command, workload = fields.take_text("command"), fields.take_text("workload")
    if bool(command) == bool(workload):
        found = "both" if command else "neither"
        fields.place.refuse("expected either command or workload", saw=found, hint='command = "python train.py"')
    settings = StudySettings(
        name=fields.take_text("name"),
        source=f"{path.name} (memfit)",
        space=_read_space(fields, folder),
        command=command,
        workload=workload,
        fixed=fields.take("fixed", dict, "settings of the workload", {}),
        code_folder=resolve(fields.take_text("code_folder", "."), folder),
        tuner=_read_tool(fields, "tuner", folder) or Tool(name="TPE"),
        assessor=_read_tool(fields, "assessor", folder),
        goal=_read_goal(fields),
        memory=_read_memory(fields),
        seed=fields.take("seed", int, "a whole number", 0),
        concurrency=fields.take_whole("concurrency", 1, least=1),
        max_trials=fields.take_whole("trials", least=1),
        max_seconds=fields.take_seconds("time"),
        max_trial_seconds=fields.take_seconds("trial_time"),
        gpus=_read_gpus(fields),
        nni=fields.take_one_of("nni", ("shim", "installed"), "shim"),
        output_folder=_output(fields, folder),
    )
    fields.refuse_rest()
    return settings


def _output(fields: Fields, folder: Path) -> str:
    written = fields.take_text("output_folder")
    return resolve(written, folder) if written else ""


def _read_goal(fields: Fields) -> Goal:
    inner = Fields(fields.take("goal", dict, "an object with metric and direction", {}), fields.at("goal"))
    goal = Goal(
        metric=inner.take_text("metric", "default"),
        direction=inner.take_one_of("direction", ("minimize", "maximize"), "minimize"),
    )
    inner.refuse_rest()
    return goal


def _read_memory(fields: Fields) -> MemoryRule:
    place = fields.at("memory")
    inner = Fields(fields.take("memory", dict, "an object with use and limit", {}), place)
    limit_place, text = inner.at("limit"), inner.take("limit", str, "a size with a unit, such as 12GiB")
    use = inner.take_one_of("use", ("limit", "objective", "report"), "report" if text is None else "limit")
    inner.refuse_rest()
    if use == "limit" and text is None:
        place.refuse("memory is a limit, but none is given", hint='limit = "12GiB"')
    if use == "report" and text is not None:
        place.refuse("memory is only reported, so a limit has no effect", hint='use = "limit", or leave the limit out')
    try:
        return MemoryRule(use=use, limit_bytes=None if text is None else parse_bytes(text))
    except BadQuantity as error:
        limit_place.refuse(error.what, found=text, hint=error.hint)


def _read_gpus(fields: Fields) -> GpuWish:
    inner = Fields(fields.take("gpus", dict, "an object with per_trial and indices", {}), fields.at("gpus"))
    gpus = GpuWish(
        num_gpus=inner.take_whole("per_trial"),
        indices=inner.take_indices("indices"),
        trials_per_gpu=inner.take_whole("trials_per_gpu", 1, least=1),
        use_active=inner.take_flag("use_active"),
    )
    inner.refuse_rest()
    return gpus


def _read_tool(fields: Fields, kind: str, folder: Path) -> Tool | None:
    place, written = fields.at(kind), fields.take(kind, (dict, str), "a name, or an object with name and arguments")
    if written is None:
        return None
    inner = Fields({"name": written} if isinstance(written, str) else written, place)
    name, class_name = inner.take_text("name"), inner.take_text("class_name")
    folder_text = inner.take_text("code_folder", ".")
    arguments = inner.take("arguments", dict, "an object with arguments", {})
    inner.refuse_rest()
    if bool(name) == bool(class_name):
        place.refuse("expected either name or class_name", saw="both" if name else "neither")
    if class_name:
        return custom_tool(class_name, folder_text, arguments, folder, place.at("code_folder"))
    return built_in_tool(kind, name, arguments, place, place.at("arguments"))


def _read_space(fields: Fields, folder: Path) -> SearchSpace:
    """The space itself, or the name of a search-space file of NNI."""
    place, written = fields.at("space"), fields.take("space", (dict, str), "parameters by their names, or a file")
    if isinstance(written, str):
        return read_space(
            read_text_file(Path(resolve(written, folder)), written), FieldPlace(os.path.basename(written))
        )
    if not written:
        place.refuse("expected at least one parameter", hint="lr = { kind = 'number', low = 0.001, high = 1 }")
    return SearchSpace(parameters=read_parameters(written, place))


KINDS = ("choice", "nested", "integer", "number", "normal")


def read_parameters(written: Mapping[str, object], place: FieldPlace) -> tuple[Parameter, ...]:
    """The parameters of a space or of a branch, in the order of the file."""
    return tuple(_read_parameter(name, spec, place.at(name)) for name, spec in written.items())


def _read_parameter(name: str, written: object, place: FieldPlace) -> Parameter:
    fields = Fields(written, place)
    kind = fields.take_one_of("kind", KINDS, "")
    parameter = _READERS[kind](name, fields)
    fields.refuse_rest()
    return parameter


def _read_choice(name: str, fields: Fields) -> Parameter:
    place, options = fields.at("options"), fields.take("options", list, "a list of options", [])
    if not options:
        place.refuse("expected at least one option")
    return Choice(name=name, options=tuple(options))


def _read_nested(name: str, fields: Fields) -> Parameter:
    place, branches = fields.at("branches"), fields.take("branches", dict, "branches by their names", {})
    if not branches:
        place.refuse("expected at least one branch")
    return Nested(
        name=name,
        branches=tuple(
            Branch(
                name=branch,
                parameters=read_parameters(
                    expect(inner, dict, "the branch's parameters by their names", place.at(branch)), place.at(branch)
                ),
            )
            for branch, inner in branches.items()
        ),
    )


def _ends(fields: Fields) -> tuple[float, float]:
    ends = []
    for name in ("low", "high"):
        place, value = fields.at(name), fields.take(name)
        if value is None:
            place.refuse("expected a number")
        ends.append(expect_number(value, place))
    if ends[0] > ends[1]:
        fields.place.refuse("expected low below high", found=ends)
    return ends[0], ends[1]


def _positive(fields: Fields, name: str) -> float | None:
    place, value = fields.at(name), fields.take(name)
    if value is not None and expect_number(value, place) <= 0:
        place.refuse("expected a number above zero", found=value)
    return None if value is None else float(value)


def _read_integer(name: str, fields: Fields) -> Parameter:
    """Both ends belong to it, unlike NNI's randint."""
    low, high = _ends(fields)
    log = fields.take_flag("log")
    if not (low.is_integer() and high.is_integer()):
        fields.place.refuse("expected whole numbers", found=[low, high])
    if not log:
        return Integers(name=name, low=int(low), end=int(high) + 1)
    if low <= 0:
        fields.place.at("low").refuse("expected a number above zero for log", found=low)
    return Span(name=name, low=low, high=high, log=True, step=1.0, whole=True)


def _read_number(name: str, fields: Fields) -> Parameter:
    low, high = _ends(fields)
    log, step = fields.take_flag("log"), _positive(fields, "step")
    if log and low <= 0:
        fields.place.at("low").refuse("expected a number above zero for log", found=low)
    return Span(name=name, low=low, high=high, log=log, step=step)


def _read_normal(name: str, fields: Fields) -> Parameter:
    place, mean = fields.at("mean"), fields.take("mean")
    deviation = _positive(fields, "deviation")
    if mean is None or deviation is None:
        fields.place.refuse("expected mean and deviation")
    return Bell(
        name=name,
        mean=expect_number(mean, place),
        deviation=deviation,
        log=fields.take_flag("log"),
        step=_positive(fields, "step"),
    )


_READERS = {
    "choice": _read_choice,
    "nested": _read_nested,
    "integer": _read_integer,
    "number": _read_number,
    "normal": _read_normal,
}
