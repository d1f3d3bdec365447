"""Detects calls of a model that stand behind the training loop in the source of a job.

A script may show what a trained model gives without a word of evaluation: `_, decoded = autoencoder(pictures)` behind
its loop, gradients on, or `model.decode_all(z)`. The frames above an update say where the job stands; the statements
behind that place, in the same block or in one around it, are looked at for calls of names that are models now, of their
own methods, and of functions that are given a model and call it, unless the loop calls the function too.
"""

from __future__ import annotations

import ast
import inspect
import os
import sys
from collections.abc import Container, Iterator, Mapping, Sequence
from functools import lru_cache
from types import FrameType, FunctionType

import torch

from memfit.predict.observe.phase_and_module import kind_of_file

Block = Sequence[ast.stmt]
_HELD_BY_FRAME = 3
"""References to such a copy that only its frame holds: its own, a name's, and the question's."""
BEHIND_THE_LOOP = (
    "a model is called behind the training loop, at {line}, which was not reached in time: it is not in the figures"
)
_BLOCKS = ("body", "orelse", "finalbody", "handlers")


def calls_a_model_later() -> str:
    """Where the code that called torch, or what called that code, uses a model behind the statement it is in:
    'train.py:12', empty where it does not."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if kind_of_file(frame.f_code.co_filename) == 0 and (line := _calls_later(frame)):
            return f"{os.path.basename(frame.f_code.co_filename)}:{line}"
        frame = frame.f_back
    return ""


def _calls_later(frame: FrameType) -> int:
    """The line of the first such use in the function of this frame; 0 where there is none."""
    tree = _tree_of(frame.f_code.co_filename)
    line, name = frame.f_lineno, frame.f_code.co_name
    inside = [f for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) and f.name == name and _holds(f, line)]
    if not inside and name != "<module>":
        return 0
    names = {**frame.f_globals, **_locals_of(frame)}
    block = inside[-1].body if inside else tree.body
    called_before = {name for statement in block for name in _called_around(statement, line)}
    for statement in _behind(block, line):
        for node in ast.walk(statement):
            if isinstance(node, ast.Call) and _uses_a_model(node, names, called_before):
                return node.lineno
    return 0


def _locals_of(frame: FrameType) -> dict[str, object]:
    """The local names of a frame. Up to Python 3.12 asking a function's frame leaves a copy in it, which would keep the
    tensors of that moment alive; it is emptied, unless the job itself holds it (`locals()`)."""
    kept = frame.f_locals
    found = dict(kept)
    is_copy = bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED) and type(kept) is dict
    if is_copy and sys.getrefcount(kept) <= _HELD_BY_FRAME:
        kept.clear()
    return found


def _called_around(statement: ast.stmt, line: int) -> Iterator[str]:
    """Names that are called in the statement which holds a line: what a loop calls was seen in its first rounds."""
    for node in ast.walk(statement) if _holds(statement, line) else ():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id


def _uses_a_model(call: ast.Call, names: Mapping[str, object], called_before: Container[str]) -> bool:
    """Whether a model is called: itself, by a method of its own, or in a function of the job that is given it."""
    func = call.func
    if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name):
        owner = names.get(func.value.id)
        return (
            _is_model(owner) and not hasattr(torch.nn.Module, func.attr) and callable(getattr(owner, func.attr, None))
        )
    if not isinstance(func, ast.Name):
        return False
    value = names.get(func.id)
    if isinstance(value, FunctionType) and func.id not in called_before:
        return _calls_what_it_is_given(value, call, names)
    return _is_model(value)


def _calls_what_it_is_given(function: FunctionType, call: ast.Call, names: Mapping[str, object]) -> bool:
    """Whether a function in a file of the user's calls one of the models that it is given here."""
    if kind_of_file(function.__code__.co_filename) != 0:
        return False
    own = {n.name: n for n in ast.walk(_tree_of(function.__code__.co_filename)) if isinstance(n, ast.FunctionDef)}
    definition = own.get(function.__name__)
    if definition is None:
        return False
    given = [*zip((a.arg for a in definition.args.args), call.args, strict=False)]
    given += [(keyword.arg, keyword.value) for keyword in call.keywords if keyword.arg]
    models = {n: v for n, value in given if isinstance(value, ast.Name) and _is_model(v := names.get(value.id))}
    return any(isinstance(node, ast.Call) and _uses_a_model(node, models, ()) for node in ast.walk(definition))


def _behind(block: Block, line: int) -> Iterator[ast.stmt]:
    """The statements behind a line that are run once it is left: not those of a loop around it."""
    for place, statement in enumerate(block):
        if _holds(statement, line):
            yield from block[place + 1 :]
            if not isinstance(statement, (ast.For, ast.While, ast.AsyncFor)):
                for name in _BLOCKS:
                    yield from _behind(getattr(statement, name, ()), line)


def _holds(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _is_model(value: object) -> bool:
    return isinstance(value, torch.nn.Module) and next(iter(value.parameters()), None) is not None


@lru_cache(maxsize=64)
def _tree_of(filename: str) -> ast.Module:
    try:
        with open(filename, encoding="utf-8", errors="replace") as stream:
            return ast.parse(stream.read())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return ast.Module(body=[], type_ignores=[])
