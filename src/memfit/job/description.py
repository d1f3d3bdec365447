"""Description of a job from its text on the command line: a script, a function in a file, or a workload."""

from __future__ import annotations

import ast
import difflib
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from memfit.errors import UsageError
from memfit.job.recipes.recipe import Recipe
from memfit.job.workloads.registry import WORKLOADS
from memfit.regular_file import read_regular

SettingValue = bool | int | float | str | None


class JobDescription(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is trained, before anything is loaded."""

    kind: Literal["script", "function", "workload"]
    target: str
    """As the user wrote it."""
    path: str = ""
    function: str = ""
    settings: dict[str, SettingValue] = {}
    arguments: tuple[str, ...] = ()
    recipe: Recipe | None = None
    """What is put on the training that a function or workload builds; None leaves it as it is."""


def describe_job(
    target: str, settings: Mapping[str, SettingValue] | None = None, arguments: tuple[str, ...] = ()
) -> JobDescription:
    """Read a target: 'train.py', 'jobs.py:make' or the name of a built-in workload."""
    settings = dict(settings or {})
    path, colon, function = target.rpartition(":")
    if colon and function.isidentifier() and path:
        _check_file(path, target)
        return JobDescription(kind="function", target=target, path=path, function=function, settings=settings)
    if target in WORKLOADS:
        if arguments:
            raise UsageError(
                "a built-in workload takes no arguments", found=" ".join(arguments), hint="use --set NAME=VALUE"
            )
        return JobDescription(kind="workload", target=target, settings=settings)
    if target.endswith(".py") or os.path.exists(target):
        _check_file(target, target)
        if settings:
            raise UsageError(
                "--set is for functions and built-in workloads",
                found=target,
                hint="give a script its own arguments behind `--`",
            )
        return JobDescription(kind="script", target=target, path=target, arguments=arguments)
    near = difflib.get_close_matches(target, WORKLOADS, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise UsageError(
        f"{target!r} is no job", hint=f"{hint}give a script, FILE:function, or one of {', '.join(WORKLOADS)}"
    )


def setting_of(job: JobDescription, name: str) -> SettingValue:
    """The value of a setting: as it was given, else the default in the text of the function; None where neither is."""
    if name in job.settings:
        return job.settings[name]
    path, function = job.path, job.function
    if job.kind == "workload":
        path = str(Path(__file__).parent / "workloads" / f"{WORKLOADS[job.target][0]}.py")
        function = f"build_{job.target}"
    try:
        tree = ast.parse(read_regular(path))
    except (OSError, SyntaxError, ValueError):
        return None
    defined = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function]
    defaults = _defaults_of(defined[-1].args) if defined else {}
    value = getattr(defaults.get(name), "value", None)  # anything but a constant is not known
    return value if isinstance(value, (bool, int, float, str)) else None


def _defaults_of(given: ast.arguments) -> dict[str, ast.expr | None]:
    """The default of every parameter that has one."""
    plain = [*given.posonlyargs, *given.args]
    found: dict[str, ast.expr | None] = {}
    if given.defaults:
        found |= {each.arg: value for each, value in zip(plain[-len(given.defaults) :], given.defaults, strict=True)}
    return found | {each.arg: value for each, value in zip(given.kwonlyargs, given.kw_defaults, strict=True)}


def _check_file(path: str, target: str) -> None:
    if not os.path.isfile(path):
        found = "a folder" if os.path.isdir(path) else "no such file"
        raise UsageError(f"{path} cannot be run", found=found, hint="give a Python file, or FILE:function")
    try:
        with warnings.catch_warnings(action="ignore"):  # of escapes in its text: Python says them when it runs
            ast.parse(read_regular(path), filename=path)
    except SyntaxError as error:
        found = f"line {error.lineno}: {error.msg}"
    except ValueError as error:  # a byte of zero: no text
        found = str(error)
    except OSError:  # what is too large for a look at it is left to Python
        return
    else:
        return
    raise UsageError(f"{path} is not Python that can run", found=found, hint=f"python {path} says the same")


def parse_settings(pairs: tuple[str, ...]) -> dict[str, SettingValue]:
    """Read '--set name=value' pairs; numbers, booleans and None are recognised, the rest is text."""
    settings: dict[str, SettingValue] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name.strip().isidentifier():
            raise UsageError(
                "this is not a setting",
                found=repr(pair),
                hint="write --set NAME=VALUE, for example --set batch_size=64",
            )
        settings[name.strip()] = parse_value(text)
    return settings


def parse_value(text: str) -> SettingValue:
    """A number, a boolean, None, or the text itself."""
    lowered = text.strip().lower()
    if lowered in ("true", "false", "none"):
        return {"true": True, "false": False, "none": None}[lowered]
    try:
        value = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError):
        return text
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else text
