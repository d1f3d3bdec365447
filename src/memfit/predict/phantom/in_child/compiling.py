"""`torch.compile` on the phantom GPU, which computes nothing.

Dynamo, Inductor and Triton run for real: graphs are captured, kernels are fused, generated and assembled for the
described GPU, and launched into the void. What is alive between forward and backward is what the compiled step keeps.
Two things are not real: nothing is timed, so where Inductor would try several kernels it takes the first; and values
are not followed inside a compiled region, because that would be traced as a part of it.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode  # read in torch 2.10 to 2.15
from torch.overrides import _get_current_function_mode_stack as modes_now

Note = Callable[[str, str], None]
P = ParamSpec("P")
R = TypeVar("R")
LEFT_OUT = "TORCHDYNAMO_DISABLE is set: predicted as it runs without torch.compile"
SAID = "compiled by Inductor for this GPU; where it would time several kernels, the first was taken"


@contextlib.contextmanager
def compiling(mode: TorchFunctionMode, note: Note) -> Iterator[None]:
    """Within, what `torch.compile` gives is called without the mode that follows values."""
    original: Callable[..., Callable[..., object]] = torch.compile

    def compile_it(
        model: Callable[..., object] | None = None, *args: object, **kwargs: object
    ) -> Callable[..., object]:
        if model is None:
            return lambda function: compile_it(function, *args, **kwargs)
        note("compile", LEFT_OUT if os.environ.get("TORCHDYNAMO_DISABLE") == "1" else SAID)
        compiled = original(model, *args, **kwargs)
        if not isinstance(compiled, torch.nn.Module):
            return _without(mode, compiled)
        compiled.forward = _without(mode, compiled.forward)
        return compiled

    with patch.object(torch, "compile", compile_it):
        yield


def _without(mode: TorchFunctionMode, function: Callable[P, R]) -> Callable[P, R]:
    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with _lifted(mode):
            return function(*args, **kwargs)

    return call


@contextlib.contextmanager
def _lifted(mode: TorchFunctionMode) -> Iterator[None]:
    """Within, the stack of modes is as it would be without this one."""
    before = modes_now()
    if all(each is not mode for each in before):
        yield
        return
    _replace(before, [each for each in before if each is not mode])
    try:
        yield
    finally:
        _replace(modes_now(), before)


def _replace(old: list[object], new: list[object]) -> None:
    for _ in old:
        _pop_mode()
    for each in new:
        _push_mode(each)
