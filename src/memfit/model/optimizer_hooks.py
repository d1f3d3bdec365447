"""Finds the tensors that an optimizer holds beside its state, and those that its hooks and hooks of parameters carry.

An average of the weights that a step hook updates is such a tensor: it is there in every step, and no forward reads it.
Followed are attributes, containers, what functions have closed over, and the globals of their file that they name. What
a hook makes when it first runs is not there yet, and cannot be known.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from types import FunctionType, MethodType

import torch

from memfit.model.module_state import ALL_OBJECTS, closed_over, named_by, note

_ON_PARAMETERS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_ON_STEPS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
_ON_ALL_STEPS = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")
"""Private names were read in torch 2.13."""
_COUNTED_ELSEWHERE = ("state", "step", "zero_grad")


def step_hooks(optimizer: torch.optim.Optimizer | None) -> list[Callable[..., object]]:
    """The hooks around an optimizer's step, with those around the step of every optimizer."""
    if optimizer is None:
        return []
    own = [_functions_in(getattr(optimizer, name, None)) for name in _ON_STEPS]
    shared_by_all = importlib.import_module(torch.optim.Optimizer.__module__)
    shared = [_functions_in(getattr(shared_by_all, name, None)) for name in _ON_ALL_STEPS]
    return [hook for hooks in (*own, *shared) for hook in hooks]


def tensors_beside_state(
    parameters: Iterable[torch.Tensor], optimizer: torch.optim.Optimizer | None
) -> list[torch.Tensor]:
    """Tensors that can be reached from an optimizer beside its state, from its hooks, and from hooks of parameters."""
    hooks = step_hooks(optimizer)
    hooks += [hook for p in parameters for name in _ON_PARAMETERS for hook in _functions_in(getattr(p, name, None))]
    held = [value for name, value in getattr(optimizer, "__dict__", {}).items() if name not in _COUNTED_ELSEWHERE]
    return _reached(held, hooks)


def _functions_in(hooks: object) -> list[Callable[..., object]]:
    return [hook for hook in hooks.values() if callable(hook)] if isinstance(hooks, Mapping) else []


def _reached(values: list[object], functions: Iterable[Callable[..., object]]) -> list[torch.Tensor]:
    waiting: list[object] = list(functions)
    files = {id(function.__globals__) for function in map(_plain, waiting) if function is not None}
    seen: set[int] = set()
    while waiting:  # functions may carry functions
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if callable(value) and not isinstance(value, (type, torch.nn.Module, torch.Tensor)):
            function = _plain(value)
            is_theirs = function is not None and id(function.__globals__) in files  # not what libraries name
            waiting += [*closed_over(value), *(named_by(function) if is_theirs else ())]
        values.append(value)
    noted = note(values, most_objects=ALL_OBJECTS)
    modules = [value for value in values if isinstance(value, torch.nn.Module)]
    for container, content in noted.places:
        inside: Iterable[object] = content.values() if isinstance(container, dict) else content
        modules += [value for value in inside if isinstance(value, torch.nn.Module)]
    found = [tensor for tensor, _ in noted.tensors]
    return [*found, *(t for module in modules for t in (*module.parameters(), *module.buffers()))]


def _plain(function: object) -> FunctionType | None:
    """The function itself, under a method of an object."""
    inner = function.__func__ if isinstance(function, MethodType) else function
    return inner if isinstance(inner, FunctionType) else None
