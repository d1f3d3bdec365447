"""Loading of user code: the function that a job names, its arguments, and what it builds."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

from memfit.errors import UsageError
from memfit.job.description import JobDescription
from memfit.job.python_file import load_file
from memfit.job.workloads.registry import recipe_settings, workload_function


def load_function(job: JobDescription) -> Callable[..., object]:
    """The function that builds the job."""
    if job.kind == "workload":
        return workload_function(job.target)
    module = load_file(job.path)
    function = getattr(module, job.function, None)
    if not callable(function):
        names = [name for name, value in vars(module).items() if inspect.isfunction(value)]
        raise UsageError(
            f"{job.path} has no function {job.function!r}",
            found=", ".join(names[:12]) or "no functions",
            hint="FILE:function",
        )
    return function


def build_job(job: JobDescription, device: str) -> object:
    """Build the job on a device: what its function returns, with the recipe put on it."""
    function = load_function(job)
    built = function(**arguments_for(function, dict(job.settings), device))
    if job.recipe is None:
        return built
    from memfit.job.recipes.torch_recipe import with_recipe
    from memfit.job.training import as_training

    return with_recipe(as_training(built, job.target), job.recipe, job.target)


def arguments_for(function: Callable[..., object], settings: Mapping[str, object], device: str) -> dict[str, object]:
    """The keyword arguments for a function: the settings it knows, and the device if it asks for one."""
    parameters = inspect.signature(function).parameters
    recipe = recipe_settings(function)
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values()) and not recipe
    known = [name for name, p in parameters.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)] + recipe
    for name in settings:
        if name not in known and not takes_all:
            raise UsageError(
                f"the job has no setting {name!r}", found=f"it knows {', '.join(known) or 'none'}", hint="see --set"
            )
    missing = [
        name
        for name, p in parameters.items()
        if p.default is p.empty
        and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        and name not in settings
        and name != "device"
    ]
    if missing:
        raise UsageError(
            "the job needs more settings", found=f"no value for {', '.join(missing)}", hint="--set NAME=VALUE"
        )
    arguments = dict(settings)
    if "device" in parameters:
        arguments.setdefault("device", device)
    return arguments
