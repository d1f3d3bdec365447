"""Finds the loop whose number of rounds may follow from a guessed value: a rollout that ends when it is `done`.

An episode of reinforcement learning is as long as its actions make it, and what it collects is a batch later. A loop
counts when it ends by something that a call in it gave, collects something, and trains nothing itself: a loop that
trains makes more or fewer steps, which changes no size. Found by the source around the line that asks, and around the
lines that called it. Calls are known by their names alone.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator
from functools import lru_cache
from types import FrameType

from memfit.predict.observe.later.lines_that_ran import is_own_file
from memfit.predict.observe.later.reaches_model import definition_of, tree_of
from memfit.predict.observe.source_files import kind_of_file

ROUNDS = (
    "how often the loop at {line} goes round may follow from a guessed value, and with it the size of what it collects"
)
_COLLECT = frozenset(("append", "appendleft", "extend", "add", "push", "put", "insert", "store", "remember", "record"))
_COLLECTS = ("put_", "store_", "push_", "collect", "remember_", "record_", "save_transition", "add_transition")
_TRAINS = frozenset(("backward", "fit", "train_step", "training_step", "optimize_model"))
_STOPS = ("terminate", "stop")
_MOST_DEPTH = 3
_LOOPS = (ast.For, ast.While, ast.AsyncFor)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def rounds_by_value(frame: FrameType | None) -> str | None:
    """'train.py:12' of the loop around this frame's line, or around a line that called it; None where there is none.

    A function that a library's loop calls (one move of an agent) stands for the body of that loop.
    """
    while frame is not None:
        filename = frame.f_code.co_filename
        if is_own_file(filename):
            for loop in _loops_around(filename, frame.f_lineno):
                if _trains(filename, loop):
                    return None
                if _collects(loop) and _ends_by_value(loop):
                    return f"{os.path.basename(filename)}:{loop.lineno}"
            body = definition_of(frame.f_code) if _is_called_by_library(frame) else None
            if body is not None and not _trains(filename, body) and _collects(body) and _ends_by_value(body):
                return f"{os.path.basename(filename)}:{body.lineno} (a library's)"
        frame = frame.f_back
    return None


def _is_called_by_library(frame: FrameType) -> bool:
    caller = frame.f_back
    return caller is not None and kind_of_file(caller.f_code.co_filename) == 1


@lru_cache(maxsize=1024)
def _loops_around(filename: str, line: int) -> tuple[ast.For | ast.While | ast.AsyncFor, ...]:
    """Loops that hold a line within its function, innermost first."""
    found: list[ast.For | ast.While | ast.AsyncFor] = []
    for node in _holding(tree_of(filename).body, line):
        if isinstance(node, _FUNCTIONS):
            found.clear()
        elif isinstance(node, _LOOPS):
            found.append(node)
    return tuple(reversed(found))


def _holding(block: Iterable[ast.AST], line: int) -> Iterator[ast.AST]:
    for node in block:
        if getattr(node, "lineno", line) <= line <= (getattr(node, "end_lineno", None) or line):
            if isinstance(node, ast.stmt):
                yield node
            yield from _holding(ast.iter_child_nodes(node), line)


def _called(nodes: Iterable[ast.AST]) -> set[str]:
    """Names of what is called in these."""
    funcs = (part.func for node in nodes for part in ast.walk(node) if isinstance(part, ast.Call))
    return {func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "") for func in funcs}


@lru_cache(maxsize=64)
def _definitions(filename: str) -> dict[str, list[ast.AST]]:
    found: dict[str, list[ast.AST]] = {}
    for node in ast.walk(tree_of(filename)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found.setdefault(node.name, []).append(node)
    return found


def _trains(filename: str, loop: ast.AST) -> bool:
    """Whether a loop makes a backward, in it or in functions of its file that it calls."""
    seen: set[str] = set()
    names = _called([loop])
    for _ in range(_MOST_DEPTH):
        if names & _TRAINS:
            return True
        seen |= names
        names = {name for each in names for name in _called(_definitions(filename).get(each, ())) if name not in seen}
    return bool(names & _TRAINS)


def _collects(loop: ast.AST) -> bool:
    return any(name in _COLLECT or name.startswith(_COLLECTS) for name in _called([loop]))


def _ends_by_value(loop: ast.AST) -> bool:
    """Whether what ends a loop is something that a call in it gave."""
    given = {
        name.id
        for node in ast.walk(loop)
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and any(isinstance(p, ast.Call) for p in ast.walk(node))
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        for name in ast.walk(target)
        if isinstance(name, ast.Name)
    }
    tests = [loop.test] if isinstance(loop, ast.While) else []
    tests += [node.test for node in ast.walk(loop) if isinstance(node, ast.If) and _leaves(node)]
    return any(isinstance(part, ast.Name) and part.id in given for test in tests for part in ast.walk(test))


def _leaves(branch: ast.If) -> bool:
    """Whether a branch leaves the loop that it stands in, or tells a library to leave its own."""
    block = (*branch.body, *branch.orelse)
    tells = any(name.startswith(_STOPS) for name in _called(block))
    return tells or any(isinstance(statement, (ast.Break, ast.Return)) for statement in block)
