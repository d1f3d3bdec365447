"""Options of public functions: a misspelt one is a TypeError that names the function and the nearest option."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def checked_options(function: Callable[P, R]) -> Callable[P, R]:
    """The same function, signature and docstring included, that says which option was meant by an unknown one."""
    known = [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in known:
                raise TypeError(unknown_option(function.__name__, name, known))
        return function(*args, **kwargs)

    return call


def unknown_option(function: str, name: str, known: list[str]) -> str:
    """'run_study() has no option 'trails'; did you mean 'trials'?'"""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"its options are {', '.join(known)}"
    return f"{function}() has no option {name!r}; {hint}"
