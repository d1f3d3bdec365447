"""Finds what a training loop sets under a condition that was not met yet, and from which sizes may follow.

`if step == 500: batch_size *= 2`, `if epoch > 3: model.with_auxiliary = True`, `if lr < 1e-4: crop.size = 224`. They
make no tensor, so whether they ran is not known from `lines_that_ran`; a constant that is there already was set. A name
counts where the loop hands it to a call, calculates with it or chooses by it; resets to nothing, floating-point numbers
and what is printed or only compared do not.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch

from memfit.predict.observe.later.lines_that_ran import LinesThatRan
from memfit.predict.observe.later.reaches_model import HARMLESS, is_model, resolve_in

CHANGES = (
    "the training sets '{name}' at {line} once a condition is met, and sizes may follow from it: what comes then was "
    "not reached in time"
)
KEEPS = (
    "the training keeps tensors in some of its rounds, at {line}, and a loop over its batches was ended early: later "
    "rounds hold more"
)
_FILLS = ("append", "extend", "add", "appendleft", "put", "push")
_TELLS = HARMLESS | frozenset(
    """
    format write writerow set_postfix set_postfix_str set_description add_scalar log_metrics log_dict join float round
    abs time exit remove unlink rename makedirs isfile exists warning error exception
    """.split()  # noqa: SIM905
)
_DEFINES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_LEAVES = (ast.Raise, ast.Break, ast.Return)
Names = Mapping[str, object]
Assigned = ast.Assign | ast.AugAssign | ast.AnnAssign


def changes_sizes(
    loop: Sequence[ast.stmt], scope: Sequence[ast.stmt], filename: str, ran: LinesThatRan, names: Names
) -> tuple[int, str]:
    """The line and name of the first such assignment in a loop's body; (0, '') where there is none.

    `scope` is where names are read: the whole function, or the script.
    """
    reads: set[str] | None = None
    for statement in _not_met(loop, filename, ran, False):
        for target in _targets_of(statement):
            name = target.id if isinstance(target, ast.Name) else getattr(target, "attr", "")
            if not name or not _is_another(target, statement, names):
                continue
            if _is_of_a_model(target, names):
                return statement.lineno, ast.unparse(target)
            reads = {*_sizes_read(scope)} if reads is None else reads
            if name in reads:
                return statement.lineno, ast.unparse(target)
    return 0, ""


def _not_met(block: Iterable[ast.stmt], filename: str, ran: LinesThatRan, is_conditional: bool) -> Iterator[Assigned]:
    """Assignments in branches of which no line was seen to run, and which do not leave the loop."""
    for statement in block:
        if isinstance(statement, _DEFINES):
            continue
        if isinstance(statement, (ast.Assign, ast.AugAssign, ast.AnnAssign)) and is_conditional:
            yield statement
        for name in ("body", "orelse", "finalbody"):
            inner: list[ast.stmt] = getattr(statement, name, None) or []
            conditional = is_conditional
            if isinstance(statement, ast.If) and inner:
                lines = range(inner[0].lineno, (inner[-1].end_lineno or inner[-1].lineno) + 1)
                conditional = not ran.has_any(filename, lines) and not isinstance(inner[-1], _LEAVES)
            yield from _not_met(inner, filename, ran, conditional)


def _targets_of(statement: Assigned) -> Iterator[ast.Name | ast.Attribute]:
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    for target in targets:
        yield from (each for each in getattr(target, "elts", [target]) if isinstance(each, (ast.Name, ast.Attribute)))


def _is_another(target: ast.Name | ast.Attribute, statement: Assigned, names: Names) -> bool:
    """Whether the name would stand for something else, that a size may follow from."""
    now, value = resolve_in(names, target), statement.value
    if isinstance(now, (float, torch.Tensor, torch.optim.Optimizer)) or value is None:
        return False
    if isinstance(value, (ast.List, ast.Dict, ast.Tuple, ast.Set)):
        return False
    if isinstance(value, ast.Constant):
        is_same = type(value.value) is type(now) and value.value == now
        return bool(value.value) and not isinstance(value.value, float) and not is_same
    given = resolve_in(names, value)
    is_plain = isinstance(given, (bool, int, str))
    return not (is_plain and type(given) is type(now) and given == now) and not isinstance(given, float)


def _is_of_a_model(target: ast.Name | ast.Attribute, names: Names) -> bool:
    return isinstance(target, ast.Attribute) and isinstance(resolve_in(names, target.value), torch.nn.Module)


def _sizes_read(block: Iterable[ast.AST]) -> Iterator[str]:
    """Names and attributes from which sizes may follow: arguments of calls, parts of indices and of calculations."""
    for node in block:
        if isinstance(node, (ast.If, ast.While)):
            yield from _periods_in(node.test)
            yield from _sizes_read([*node.body, *node.orelse])
        elif isinstance(node, (ast.Call, ast.Subscript)):
            yield from _names_in_sizes(node)
        elif isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
            own = {ast.unparse(target) for target in _targets_of(node)}
            yield from (name for name in _sizes_read(ast.iter_child_nodes(node)) if name not in own)
        elif not isinstance(node, (ast.JoinedStr, ast.Compare)):
            yield from _sizes_read(ast.iter_child_nodes(node))


def _periods_in(test: ast.expr) -> Iterator[str]:
    """Names in a test by which rounds are counted: `count == window`, `(i + 1) % accumulate == 0`."""
    for part in ast.walk(test):
        if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod):
            yield from _loaded([part.right])
        elif isinstance(part, ast.Compare) and isinstance(part.ops[0], ast.Eq):
            yield from _loaded(each for each in part.comparators if isinstance(each, (ast.Name, ast.Attribute)))


def _names_in_sizes(node: ast.Call | ast.Subscript) -> Iterator[str]:
    if isinstance(node, ast.Subscript):
        yield from _loaded([node.slice])
        yield from _sizes_read([node.value])
        return
    func = node.func
    name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
    if name in _TELLS:
        return
    yield from _loaded([*node.args, *(keyword.value for keyword in node.keywords)])
    yield from _sizes_read([func])


def keeps_tensors(loop: Iterable[ast.stmt], names: Names) -> int:
    """The line at which a loop puts tensors into a container in some of its rounds (`if i % 100 == 0`); else 0."""
    for node in (part for statement in loop for part in ast.walk(statement)):
        if not isinstance(node, ast.If) or not any(isinstance(part, ast.Mod) for part in ast.walk(node.test)):
            continue
        for part in (part for statement in node.body for part in ast.walk(statement)):
            if isinstance(part, ast.Call) and _fills_with_tensors(part, names):
                return part.lineno
    return 0


def _fills_with_tensors(call: ast.Call, names: Names) -> bool:
    fills = isinstance(call.func, ast.Attribute) and call.func.attr in _FILLS
    return fills and any(_is_of_tensors(given, names) for given in call.args)


def _is_of_tensors(given: ast.expr, names: Names) -> bool:
    """Whether a value is made of tensors or by a model, and is no number that was read from one."""
    if isinstance(given, ast.Call):
        func = given.func
        name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
        if name in ("item", "float", "int", "tolist"):
            return False
    found = [resolve_in(names, part) for part in ast.walk(given) if isinstance(part, (ast.Name, ast.Attribute))]
    return any(isinstance(each, torch.Tensor) or is_model(each) for each in found)


def _loaded(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        for part in ast.walk(node):
            if isinstance(part, ast.Name):
                yield part.id
            elif isinstance(part, ast.Attribute):
                yield part.attr
