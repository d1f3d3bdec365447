"""Finds where a loop makes models or optimizers anew: those of earlier rounds may live on beside the new ones.

Judged by what names stand for after a round. A statement counts when it calls something and what it leaves, under a
name, as an attribute, in a container or inside of an object, is an optimizer or has parameters that nothing it read
has: `model.to(device)` and a wrapper around a model are the same parameters. A model that has no name afterwards
(`fit(Net())`) is known by its class; a function of the user's own that was left (`self.reset()`) by what it stores in
objects. Factories of libraries whose result gets no name are not recognised.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping

import torch

from memfit.predict.observe.later.reaches_model import MOST_DEPTH, Made, body_of_call, is_model, resolve_in

_FILLS = frozenset(("append", "add", "insert", "extend", "setdefault", "update", "appendleft", "add_module"))
_NO_PARAMETERS = ("loss", "activation", "dropout", "pooling", "padding", "flatten", "distance", "upsampling", "fold")
"""Files of torch.nn.modules whose classes have no parameters, but for two."""
_MOST_ELEMENTS = 1_000
Names = Mapping[str, object]


def made_anew(node: ast.AST, names: Names, depth: int = 0) -> bool:
    """Whether a statement or expression makes a model or optimizer that was not there before.

    In a function that was left, below `depth` others, only what it stores in objects is still there to be judged.
    """
    if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr)):
        targets = [each for each in _targets_of(node) if not depth or isinstance(each, ast.Attribute)]
        return node.value is not None and _leaves_a_new_one(targets, node.value, names)
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Attribute) and node.func.attr in _FILLS:
        return any(_leaves_a_new_one([node.func.value], given, names, holds=False) for given in _given_to(node))
    if any(_is_a_new_model(given, names) for given in _given_to(node)):
        return True
    return depth < MOST_DEPTH and _calls_what_makes(node, names, depth)


def _calls_what_makes(call: ast.Call, names: Names, depth: int) -> bool:
    body, inside = body_of_call(names, call)
    return any(made_anew(part, inside, depth + 1) for statement in body for part in ast.walk(statement))


def _targets_of(node: ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr) -> list[ast.expr]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [each for target in targets for each in getattr(target, "elts", [target])]


def _given_to(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _leaves_a_new_one(targets: Iterable[ast.expr], value: ast.expr, names: Names, holds: bool = True) -> bool:
    """Whether what now stands under one of these is an optimizer, or has parameters, that the value did not read."""
    if not any(isinstance(part, ast.Call) for part in ast.walk(value)):
        return False
    read = [*_read_in(value, names)]
    known = {id(part) for each in read for part in _parts_of(each)}
    left = [resolve_in(names, target) for target in targets]
    return any(id(part) not in known for each in left for part in _parts_of(each, holds=holds))


def _read_in(value: ast.expr, names: Names) -> Iterator[object]:
    """What the names and attributes in an expression stand for now, but for what is called."""
    called = {id(part.func) for part in ast.walk(value) if isinstance(part, ast.Call)}
    for part in ast.walk(value):
        if isinstance(part, (ast.Name, ast.Attribute, ast.Subscript)) and id(part) not in called:
            yield resolve_in(names, part)


def _parts_of(value: object, holds: bool = False) -> Iterator[object]:
    """Parameters of a model, or of those in a container (or that an object holds), and optimizers."""
    if isinstance(value, torch.nn.Module):
        yield from value.parameters()
    elif isinstance(value, torch.optim.Optimizer):
        yield value
    elif isinstance(value, (list, tuple, set, dict)):
        elements = list(value.values() if isinstance(value, dict) else value)[-_MOST_ELEMENTS:]
        for each in elements:
            yield from _parts_of(each) if not isinstance(each, torch.Tensor) else ()
    elif holds and not isinstance(value, (type, torch.Tensor)) and isinstance(getattr(value, "__dict__", None), dict):
        for each in list(vars(value).values())[:_MOST_ELEMENTS]:
            yield from _parts_of(each) if isinstance(each, (torch.nn.Module, torch.optim.Optimizer)) else ()


def _is_a_new_model(node: ast.expr, names: Names) -> bool:
    """Whether an argument is the making of a model, by its class: `fit(Net())`."""
    made = resolve_in(names, node) if isinstance(node, ast.Call) else None
    if not isinstance(made, Made) or not is_model(made):
        return False
    kind = made.kind
    file = kind.__module__.rpartition(".")
    return file[0] != "torch.nn.modules" or file[2] not in _NO_PARAMETERS
