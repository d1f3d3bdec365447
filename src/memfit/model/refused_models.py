"""Refuses models whose step cannot be repeated: wrapped for several ranks, compiled as a whole, or scripted."""

from __future__ import annotations

import sys
from typing import Any

import torch

from memfit.errors import UsageError
from memfit.model.call_sites import is_compiled

_SHARDED = (
    "it holds a part of each parameter, and gathers the rest from other ranks around the calls of its blocks",
    "fit the model on one device before it is sharded, and checkpoint the blocks that the plan recomputes by the "
    "wrapper's own means",
)
_WRAPPERS = {
    "DistributedDataParallel": (
        "it talks to other ranks and holds buckets of gradients beside the model's own",
        "before it is wrapped: memfit.fit_to_budget, or apply_plan with a plan made on one rank; leave room for "
        "another set of gradients, which DistributedDataParallel keeps",
    ),
    "FullyShardedDataParallel": _SHARDED,
    "FSDPModule": _SHARDED,
    "DataParallel": (
        "it copies the model to every GPU in each forward",
        "fit the model that it wraps, for one GPU, or before DistributedDataParallel",
    ),
}
"""What each does that a plan does not follow, and what to do instead."""
_RULED = "_memfit_is_skipped"


def refuse_model(model: torch.nn.Module) -> None:
    """Raise a UsageError that names the module which stands in the way, before anything is run."""
    if hasattr(model, "_orig_mod") or is_compiled(model):
        raise UsageError(
            "a compiled model cannot be planned",
            found=type(model).__name__,
            hint="fit the model as it is before torch.compile; blocks compiled one by one can be fitted",
        )
    for name, module in model.named_modules():
        _refuse_module(name or "the model", module)
        if is_compiled(module):
            _keep_compiler_out()


def _keep_compiler_out() -> None:
    """Tell Dynamo that memfit's frames, which compiled blocks call through torch's modes, are not to be compiled."""
    rules: Any = sys.modules.get("torch._dynamo.trace_rules")  # read in torch 2.13
    if rules is None or _RULED in rules.__dict__:
        return
    for room in ("model", "profile", "apply", "fit"):
        rules.add(f"{__name__.partition('.')[0]}.{room}")
    rules.__dict__[_RULED] = True


def _refuse_module(name: str, module: torch.nn.Module) -> None:
    wrapper = next((kind.__name__ for kind in type(module).__mro__ if kind.__name__ in _WRAPPERS), None)
    if wrapper is not None:
        found, hint = _WRAPPERS[wrapper]
        what = f"a model wrapped by {wrapper} cannot be fitted while it trains"
        raise UsageError(what, found=f"{name}: {found}", hint=hint)
    _refuse_script(name, module)


def refuse_scripts(name: str, module: torch.nn.Module) -> None:
    """Raise a UsageError if a module of the step, or one below it, runs in TorchScript."""
    for below, each in module.named_modules():
        _refuse_script(f"{name}.{below}" if below else name, each)


def _refuse_script(name: str, module: torch.nn.Module) -> None:
    if isinstance(module, torch.jit.ScriptModule):
        raise UsageError(
            "a model with modules of TorchScript cannot be planned",
            found=f"{name} is a {type(module).__name__}: its executor computes in another way after its first calls, "
            "and keeps its attributes where they cannot be put back",
            hint="fit the model with the modules as they are before torch.jit.script or torch.jit.trace",
        )
