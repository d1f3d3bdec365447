"""Answers to questions for unknown values that keep a program out of an error which it guards.

`if torch.any(variance < 0): raise ValueError` asks for a value that a prediction does not have. A training that works
does not take the branch that raises, so the answer is known without the value. The place of the running instruction is
looked up in the source of the frame that asks (Python 3.11 and newer keep columns with the bytecode); what encloses it
decides. Standard library only.

Not followed: values that go through attributes, containers or arithmetic, and errors that the same function catches.
"""

from __future__ import annotations

import ast
import dis
import linecache
import os
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from types import CodeType, FrameType

from memfit.version import PACKAGE_FOLDER

MACHINERY = tuple(
    os.path.join("torch", *parts)
    for parts in (
        ("_ops.py",), ("_tensor.py",), ("overrides.py",), ("_compile.py",), ("utils", "_python_dispatch.py"),
        ("utils", "_device.py"),
        ("utils", "_stats.py"), ("_subclasses", ""), ("_library", ""), ("_prims_common", ""),
    )
)  # fmt: skip
"""Files of torch that stand between a question and the code that asks it."""
LEAVERS = {"exit", "quit", "_exit", "abort"}
SAME_TRUTH = {"bool", "item", "any", "all", "tolist", "cpu", "detach", "int", "float"}
"""Calls whose result is as true as what they were given."""
MOST_FRAMES = 3
"""How many callers a returned value is followed to."""
CANDIDATES = (1.0, 0.0, 2.0, -1.0)
Path = list[ast.AST]


def answer_without_error(frame: FrameType | None) -> bool | None:
    """The truth value that keeps the asking code out of its own error; None where neither answer leads into one."""
    asked = _asking(frame)
    for _ in range(MOST_FRAMES):
        path = _path_to(asked) if asked is not None else []
        if not path:
            return None
        wanted, place = _wanted(path)
        if not isinstance(place, ast.Return):
            return wanted
        asked = asked.f_back if asked is not None else None
    return None


def number_without_error(frame: FrameType | None, usual: float) -> float | None:
    """A number that keeps the asking code out of its own error; None where the usual one does, or nothing is known.

    Only of numbers that are compared with a literal one.
    """
    asked = _asking(frame)
    path = _path_to(asked) if asked is not None else []
    steps = range(len(path) - 1, 0, -1)
    index = next((i for i in steps if isinstance(path[i], ast.Compare)), None)
    if index is None:
        return None
    compare = _with_literal(path[index], path[index + 1] if index + 1 < len(path) else None)
    wanted, _ = _wanted(path[: index + 1])
    if compare is None or wanted is None or compare.holds(usual) is wanted:
        return None
    return next((number for number in (*CANDIDATES, *compare.around) if compare.holds(number) is wanted), None)


class _Comparison:
    """A comparison of the number asked for with a literal one."""

    def __init__(self, test: Callable[[float, float], bool], literal: float, is_left: bool) -> None:
        self._test, self._literal, self._is_left = test, literal, is_left
        self.around = (literal, literal + 1, literal - 1)

    def holds(self, number: float) -> bool:
        """Whether it is true for this number."""
        return self._test(number, self._literal) if self._is_left else self._test(self._literal, number)


_TESTS: dict[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.Lt: lambda a, b: a < b, ast.LtE: lambda a, b: a <= b, ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b, ast.Eq: lambda a, b: a == b, ast.NotEq: lambda a, b: a != b,
}  # fmt: skip


def _with_literal(node: ast.AST, asked: ast.AST | None) -> _Comparison | None:
    if not isinstance(node, ast.Compare) or len(node.ops) != 1 or type(node.ops[0]) not in _TESTS:
        return None
    is_left = asked is node.left
    try:
        literal = ast.literal_eval(node.comparators[0] if is_left else node.left)
    except ValueError:
        return None
    return _Comparison(_TESTS[type(node.ops[0])], literal, is_left) if isinstance(literal, (int, float)) else None


# ---- the place that asks -------------------------------------------------------------------------------------------


def _asking(frame: FrameType | None) -> FrameType | None:
    """The innermost frame that is neither memfit's nor torch's machinery around a question."""
    while frame is not None:
        filename = frame.f_code.co_filename
        if not filename.startswith((PACKAGE_FOLDER + os.sep, "<")) and not any(part in filename for part in MACHINERY):
            return frame
        frame = frame.f_back
    return None


def _path_to(frame: FrameType) -> Path:
    return _path(frame.f_code, frame.f_lasti)


@lru_cache(maxsize=4096)
def _path(code: CodeType, offset: int) -> Path:
    """From the module's tree down to the expression that an instruction is of; empty where it is not found."""
    tree, place = _tree_of(code.co_filename), _position(code, offset)
    if tree is None or place is None or None in place:
        return []
    first, last, start, end = (number or 0 for number in place)
    return _down(tree, (first, start), (last, end))


def _position(code: CodeType, offset: int) -> dis.Positions | None:
    """Where the value stands that an instruction asks for: a jump is placed at its whole statement (3.11)."""
    run = [one for one in dis.get_instructions(code) if one.offset <= offset]
    if not run:
        return None
    if ("JUMP" in run[-1].opname and "_IF_" in run[-1].opname) or run[-1].opname in ("TO_BOOL", "UNARY_NOT"):
        run = [one for one in run[:-1] if one.opname not in ("COPY", "TO_BOOL", "NOP", "EXTENDED_ARG")]
    return run[-1].positions if run else None


@lru_cache(maxsize=256)
def _tree_of(filename: str) -> ast.AST | None:
    try:
        return ast.parse("".join(linecache.getlines(filename)))
    except (SyntaxError, ValueError, RecursionError):
        return None


def _down(tree: ast.AST, start: tuple[int, int], end: tuple[int, int]) -> Path:
    path: Path = [tree]
    while (below := next((node for node in _below(path[-1]) if _covers(node, start, end)), None)) is not None:
        path.append(below)
    return path


def _below(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if hasattr(child, "lineno"):
            yield child
        else:
            yield from _below(child)


def _covers(node: ast.AST, start: tuple[int, int], end: tuple[int, int]) -> bool:
    if not isinstance(node, (ast.stmt, ast.expr, ast.excepthandler)) or node.end_lineno is None:
        return False
    return (node.lineno, node.col_offset) <= start and end <= (node.end_lineno, node.end_col_offset or 0)


# ---- what follows from the answer ----------------------------------------------------------------------------------


def _wanted(path: Path) -> tuple[bool | None, ast.AST]:
    """The answer that keeps out of an error, and the statement that decides so."""
    index, is_same = len(path) - 1, True
    while isinstance(path[index], ast.expr):
        parent, child = path[index - 1], path[index]
        if isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.Not):
            is_same = not is_same
        elif isinstance(parent, ast.expr) and not _keeps_truth(parent, child):
            return None, parent
        index -= 1
    statement = path[index]
    if index + 1 == len(path):
        return None, statement
    needed = None if _is_caught(path[: index + 1]) else _needed(statement, path[index - 1], path[index + 1])
    return (None if needed is None else needed is is_same), statement


def _keeps_truth(parent: ast.expr, child: ast.AST) -> bool:
    """Whether an expression is as true as the part of it that was asked for."""
    if isinstance(parent, (ast.BoolOp, ast.NamedExpr, ast.Attribute)):
        return True
    name = parent.func if isinstance(parent, ast.Call) else None
    return (isinstance(name, ast.Name) and name.id in SAME_TRUTH) or (
        isinstance(name, ast.Attribute) and name.attr in SAME_TRUTH
    )


def _needed(statement: ast.AST, parent: ast.AST, test: ast.AST) -> bool | None:
    """What the test of a statement must be so that no error follows; None where none follows at once."""
    if isinstance(statement, ast.Assert):
        return True if test is statement.test else None
    if isinstance(statement, ast.If) and test is statement.test:
        return _needed_by_branches(statement, _after(statement, parent))
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        return _needed_of_name(statement.targets[0].id, _after(statement, parent))
    return None


def _needed_by_branches(statement: ast.If, after: Sequence[ast.stmt]) -> bool | None:
    in_body, in_other = _fails(statement.body), _fails(statement.orelse)
    if not statement.orelse and isinstance(statement.body[-1], (ast.Return, ast.Continue)):
        in_other = _fails(after[:1])
    return None if in_body is in_other else not in_body


def _needed_of_name(name: str, after: Sequence[ast.stmt]) -> bool | None:
    """A value that was given a name: the first test of that name in the statements that follow."""
    for place, statement in enumerate(after):
        test = statement.test if isinstance(statement, (ast.If, ast.Assert)) else None
        is_negated = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
        inner = test.operand if isinstance(test, ast.UnaryOp) and is_negated else test
        if isinstance(inner, ast.Name) and inner.id == name:
            is_assert = isinstance(statement, ast.Assert)
            needed = True if is_assert else _needed_by_branches(_as_if(statement), after[place + 1 :])
            return None if needed is None else needed is not is_negated
        if any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(statement)):
            return None
    return None


def _as_if(statement: ast.stmt) -> ast.If:
    assert isinstance(statement, ast.If)
    return statement


def _after(statement: ast.AST, parent: ast.AST) -> list[ast.stmt]:
    """The statements behind one, in its own block."""
    for name in ("body", "orelse", "finalbody", "handlers"):
        block = getattr(parent, name, None)
        if isinstance(block, list) and statement in block:
            return block[block.index(statement) + 1 :]
    return []


def _fails(block: Sequence[ast.stmt]) -> bool:
    """Whether statements lead straight into an error or out of the program."""
    if not block or not all(isinstance(one, (ast.Expr, ast.Assign, ast.AugAssign, ast.Raise)) for one in block):
        return False
    last = block[-1]
    if isinstance(last, ast.Raise):
        return True
    call = last.value if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call) else None
    name = call.func if call is not None else None
    return (isinstance(name, ast.Name) and name.id in LEAVERS) or (
        isinstance(name, ast.Attribute) and name.attr in LEAVERS
    )


def _is_caught(path: Sequence[ast.AST]) -> bool:
    """Whether the function itself catches errors of this place."""
    for node, child in zip(reversed(path[:-1]), reversed(path[1:]), strict=True):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            return False
        if isinstance(node, ast.Try) and node.handlers and child in node.body:
            return True
    return False
