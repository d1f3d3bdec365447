"""Lazy import of torch._dynamo, only for a job that compiles: it takes as long as a small prediction.

Two habits of torch load the compiler although nothing is compiled (`torch._compile._disable_dynamo` and
`torch.optim.optimizer._use_grad_for_differentiable`, read in torch 2.10 to 2.15): functions that a compiler must leave
alone load it at their first call to say so, and a step of an optimizer marks a break in a graph that there is not.
Here the first are entered as their own answer, the second lose the mark. When torch._dynamo is imported by anybody,
everything is put back as it was.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

import torch

ANSWER = "__dynamo_disable"
MODULE = "torch._dynamo"
STEP = "_use_grad"


def load_dynamo_later() -> None:
    """From now on what exists of torch runs without torch._dynamo, until somebody imports it."""
    inner = getattr(torch.optim.Optimizer.add_param_group, "__code__", None)
    if MODULE in sys.modules or inner is None or ANSWER not in inner.co_consts:
        return
    functions: list[Any] = [item for item in gc.get_objects() if type(item) is FunctionType]
    wrapped = [function.__wrapped__ for function in functions if function.__code__ is inner]
    answered = [function for function in wrapped if ANSWER not in vars(function)]
    steps = [function for function in functions if _marks_a_break(function.__code__)]
    codes = [function.__code__ for function in steps]
    for function in answered:
        setattr(function, ANSWER, function)
    for function in steps:
        function.__code__ = _with_grad_of(torch.nn.Identity).__code__

    def put_back() -> None:
        for function in answered:
            if vars(function).get(ANSWER) is function:
                delattr(function, ANSWER)
        for function, code in zip(steps, codes, strict=True):
            function.__code__ = code

    sys.meta_path.insert(0, _Notice(put_back))


def _marks_a_break(code: CodeType) -> bool:
    """Whether this is the wrapper of an optimizer's step, as it is known."""
    return code.co_name == STEP and code.co_freevars == ("func",) and {"_dynamo", "graph_break"} <= set(code.co_names)


def _with_grad_of(func: Callable[..., object]) -> FunctionType:
    """A step under the gradient mode that its optimizer asks for; its code is taken, so names are torch's own."""

    def step(*args: torch.optim.Optimizer, **kwargs: object) -> object:
        before = torch.is_grad_enabled()
        try:
            torch.set_grad_enabled(args[0].defaults["differentiable"])
            return func(*args, **kwargs)
        finally:
            torch.set_grad_enabled(before)

    return step


class _Notice:
    """Sees that torch._dynamo is being imported; finds nothing itself."""

    def __init__(self, put_back: Callable[[], None]) -> None:
        self._put_back: Callable[[], None] | None = put_back

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Put everything back, once; the list of finders is being gone through, so this one stays in it."""
        if name == MODULE and self._put_back is not None:
            put_back, self._put_back = self._put_back, None
            put_back()
