"""Finds what a job would still do where its run is ended, by the source behind the place where it stands.

The frames above an update say where a job stands. What comes later is what stands behind that place, up the frames, and
everything in a loop around it; of this, statements that ran before (see `lines_that_ran`) hold nothing new. A statement
that may call a model or train one is named, and so is a loop around the training that goes on with other values
(`for width in (64, 2048)`). Functions that are called from seen lines are not searched for branches that did not run.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import FrameType
from typing import NamedTuple

from memfit.predict.observe.later.changes_sizes import CHANGES, KEEPS, changes_sizes, keeps_tensors
from memfit.predict.observe.later.frame_names import names_of
from memfit.predict.observe.later.lines_that_ran import LinesThatRan, is_own_file
from memfit.predict.observe.later.made_anew import made_anew
from memfit.predict.observe.later.reaches_model import (
    UNKNOWN,
    attribute_of,
    calls_in,
    definition_of,
    is_model,
    may_run_a_model,
    tree_of,
    with_assigned,
)

BEHIND_THE_LOOP = (
    "a model is called behind the training loop, at {line}, which was not reached in time: it is not in the figures"
)
IN_THE_LOOP = (
    "what the training does at {line} was not reached in time, and may run a model or change what is trained: "
    "it is not in the figures"
)
OTHER_ROUNDS = (
    "the loop around the training at {line} goes on with other values, which were not reached in time: "
    "what they hold is not in the figures"
)
MADE_ANEW = (
    "the loop around the training makes a new model or optimizer in every round, at {line}, and later rounds were not "
    "reached in time: what earlier rounds leave behind is not in the figures"
)
_DEFINES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal)
_LEAVES = (ast.Return, ast.Raise, ast.Break, ast.Continue)
_LOOPS = (ast.For, ast.While, ast.AsyncFor)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_COMPREHENDS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
_PLAIN = (bool, int, float, str, type(None))
_MOST_VALUES = 10_000
Names = Mapping[str, object]


class Later(NamedTuple):
    """Something that a job would still do."""

    text: str
    line: str
    """'train.py:12'."""
    place: tuple[str, int] = ("", 0)
    """The file and the line, where it is over once that line ran."""


def left_in_loop(ran: LinesThatRan) -> Later | None:
    """What the loop that asks for a batch would do in later rounds that it did not do yet; None where that is nothing.

    For a loop over a data loader that is to be ended early: a count of its rounds may lead there.
    """
    try:
        frame = next(_own_frames(sys._getframe(1)), None)
        return None if frame is None else _left_in(frame, ran)
    except Exception as error:  # a question of ours must never end the job
        return Later(f"what the training loop does later could not be read ({type(error).__name__})", "")


def _left_in(frame: FrameType, ran: LinesThatRan) -> Later | None:
    block, filename = _block_of(frame), frame.f_code.co_filename
    loops = [*_loops_around(block, frame.f_lineno)]
    if not loops:
        return None
    body, names = getattr(loops[-1], "body", ()), names_of(frame)
    if number := keeps_tensors(body, names):
        return _later(KEEPS, filename, number)._replace(place=("", 0))
    return _not_done_yet(body, block, filename, ran, names)


def what_follows(ran: LinesThatRan) -> Later | None:
    """What the code that called torch, or what called that code, would still do that was not seen; None if nothing."""
    try:
        return _what_follows(sys._getframe(1), ran)
    except Exception as error:  # a question of ours must never end the job
        text = f"what stands behind the training loop could not be read ({type(error).__name__})"
        return Later(text, "")


def _what_follows(frame: FrameType | None, ran: LinesThatRan) -> Later | None:
    above = list(_own_frames(frame))
    for place, own in enumerate(above):
        is_repeated = any(_in_a_loop(outer) for outer in above[place + 1 :])
        trains_below = any(_in_a_loop(inner) for inner in above[:place])
        found = _in_frame(own, ran, is_repeated) or _made_anew(own, is_repeated, trains_below)
        if found is not None:
            return found
    return None


def _own_frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        if is_own_file(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def _in_frame(frame: FrameType, ran: LinesThatRan, is_repeated: bool) -> Later | None:
    """What one function, or the script, would still do."""
    block, line, filename = _block_of(frame), frame.f_lineno, frame.f_code.co_filename
    if not block:
        return None
    names = names_of(frame)
    if (number := _goes_on_with_others(block, line, names)) != 0:
        return _later(OTHER_ROUNDS, filename, number)
    looped = [s for s in block if is_repeated or _holds(s, line)]
    if looped:
        body = _within_loops(looped, line, is_repeated)
        if (later := _not_done_yet(body, block, filename, ran, names, calls_models=False)) is not None:
            return later
    for statements, text in ((_within_loops(looped, line, is_repeated), IN_THE_LOOP), (_behind(block, line), "")):
        seen = {ast.dump(call) for call in calls_in(block) if ran.has(filename, call)}
        known = names
        for statement in _not_run(statements, filename, ran, names):
            number = 0 if _only_repeats(statement, seen) else may_run_a_model(statement, known)
            known = with_assigned(statement, known) if isinstance(statement, ast.stmt) else known
            if number:
                return _later(text or BEHIND_THE_LOOP, filename, number)
    return None


def _not_done_yet(
    body: Sequence[ast.stmt],
    scope: Sequence[ast.stmt],
    filename: str,
    ran: LinesThatRan,
    names: Names,
    *,
    calls_models: bool = True,
) -> Later | None:
    """What a loop's body did not do yet: sizes that it changes, and calls of models in it."""
    number, name = changes_sizes(body, scope, filename, ran, names)
    if number:
        return _later(CHANGES.replace("{name}", name), filename, number)
    for statement in _not_run(body, filename, ran, names) if calls_models else ():
        if number := may_run_a_model(statement, names):
            return _later(IN_THE_LOOP, filename, number)
    return None


def _made_anew(frame: FrameType, is_repeated: bool, trains_below: bool) -> Later | None:
    """Where a loop around the one that trains makes a model or optimizer: rounds may leave theirs behind."""
    block, names = _block_of(frame), names_of(frame)
    loops = [*_loops_around(block, frame.f_lineno)]
    around = loops if trains_below else loops[:-1]
    repeated = block if is_repeated and (loops or trains_below) else around[:1]
    inner = [] if trains_below else [id(each) for loop in loops[-1:] for each in ast.walk(loop)]
    for node in (part for statement in repeated for part in ast.walk(statement)):
        if id(node) not in inner and made_anew(node, names):
            return _later(MADE_ANEW, frame.f_code.co_filename, getattr(node, "lineno", frame.f_lineno))
    return None


def _later(text: str, filename: str, number: int) -> Later:
    line = f"{os.path.basename(filename)}:{number}"
    return Later(text.replace("{line}", line), line, (filename, number))


# ---- which statements come later ---------------------------------------------------------------------------------


def _block_of(frame: FrameType) -> Sequence[ast.stmt]:
    """The statements of the function that a frame runs, or of the script; none of a lambda or comprehension."""
    if frame.f_code.co_name == "<module>":
        return tree_of(frame.f_code.co_filename).body
    definition = definition_of(frame.f_code)
    return definition.body if definition is not None else ()


def _in_a_loop(frame: FrameType) -> bool:
    if frame.f_code.co_name in _COMPREHENDS:
        return True
    block, line = _block_of(frame), frame.f_lineno
    return any(_loops_around(block, line)) or any(_comprehensions_at(block, line))


def _comprehensions_at(block: Iterable[ast.stmt], line: int) -> Iterator[ast.AST]:
    """Comprehensions at a line, which have no frame of their own from Python 3.12 on."""
    parts = (part for statement in block if _holds(statement, line) for part in ast.walk(statement))
    return (part for part in parts if isinstance(part, _COMPREHENSIONS) and _holds(part, line))


def _loops_around(block: Iterable[ast.stmt], line: int) -> Iterator[ast.stmt]:
    """Loops that hold a line, outermost first."""
    for statement in block:
        if _holds(statement, line) and not isinstance(statement, _DEFINES):
            if isinstance(statement, _LOOPS):
                yield statement
            for inner in _blocks_in(statement):
                yield from _loops_around(inner, line)


def _within_loops(block: Sequence[ast.stmt], line: int, is_repeated: bool) -> Sequence[ast.stmt]:
    """What is run again and again: the bodies of the outermost loop, or a whole function that a loop calls."""
    if is_repeated:
        return block
    outermost = next(_loops_around(block, line), None)
    return getattr(outermost, "body", ())


def _behind(block: Sequence[ast.stmt], line: int) -> Iterator[ast.stmt]:
    """The statements behind a line that are run once it is left, those of loops around it included."""
    for place, statement in enumerate(block):
        if not _holds(statement, line):
            continue
        for inner in _blocks_in(statement):
            yield from _behind(inner, line)
        yield from getattr(statement, "orelse", ()) if isinstance(statement, (*_LOOPS, ast.Try)) else ()
        yield from getattr(statement, "finalbody", ())
        yield from block[place + 1 :]


def _not_run(block: Iterable[ast.stmt], filename: str, ran: LinesThatRan, names: Names) -> Iterator[ast.AST]:
    """Simple statements, and heads of others, that did not run, up to one that leaves the block."""
    for statement in block:
        if isinstance(statement, _DEFINES):
            continue
        inner = _blocks_in(statement)
        if not inner:
            if not ran.has(filename, statement):
                yield statement
        else:
            heads = [*_heads_of(statement)]
            yield from (head for head in heads if not ran.has(filename, head))
            is_header_of_run = isinstance(statement, _LOOPS) and any(ran.has(filename, head) for head in heads)
            if isinstance(statement, ast.If):
                truth = _truth_of(statement.test, names)
                inner = [] if truth is UNKNOWN and _is_error(statement) else inner
                inner = inner if truth is UNKNOWN else [statement.body if truth else statement.orelse]
            for each in inner:
                yield from (
                    part
                    for part in _not_run(each, filename, ran, names)
                    if not (is_header_of_run and isinstance(part, ast.Assign))
                )
        if isinstance(statement, _LEAVES):
            return


def _blocks_in(statement: ast.stmt) -> list[list[ast.stmt]]:
    """The blocks of a statement, without those for errors."""
    if isinstance(statement, _DEFINES):
        return []
    return [block for name in ("body", "orelse", "finalbody") if (block := getattr(statement, name, None))]


def _heads_of(statement: ast.stmt) -> Iterator[ast.expr]:
    """The expressions in the first line of a statement with blocks."""
    if isinstance(statement, (ast.If, ast.While)):
        yield statement.test
    elif isinstance(statement, (ast.For, ast.AsyncFor)):
        yield statement.iter
    elif isinstance(statement, (ast.With, ast.AsyncWith)):
        yield from (item.context_expr for item in statement.items)


def _holds(node: ast.stmt | ast.expr, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _is_error(statement: ast.If) -> bool:
    return isinstance(statement.body[-1], ast.Raise)


def _only_repeats(statement: ast.AST, seen: set[str]) -> bool:
    """Whether all calls of a statement were made before, word for word, by functions that are no models themselves."""
    calls = [*calls_in([statement])]
    return bool(calls) and all(isinstance(call.func, ast.Name) and ast.dump(call) in seen for call in calls)


# ---- values --------------------------------------------------------------------------------------------------------


def _truth_of(test: ast.expr, names: Names) -> object:
    """What a test of settings gives (`args.half`, `mode == 'gan'`, `__name__ == ...`); UNKNOWN where numbers decide."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _truth_of(test.operand, names)
        return inner if inner is UNKNOWN else not inner
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], (ast.Eq, ast.NotEq)):
        left, right = _value_of(test.left, names), _value_of(test.comparators[0], names)
        if isinstance(left, str) and isinstance(right, str):
            return (left == right) == isinstance(test.ops[0], ast.Eq)
        return UNKNOWN
    value = _value_of(test, names) if isinstance(test, (ast.Attribute, ast.Constant)) else UNKNOWN
    return bool(value) if isinstance(value, (bool, str, type(None))) else UNKNOWN


def _value_of(node: ast.expr, names: Names) -> object:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return names.get(node.id, UNKNOWN)
    if isinstance(node, ast.Attribute):
        return attribute_of(_value_of(node.value, names), node.attr)
    return UNKNOWN


def _goes_on_with_others(block: Sequence[ast.stmt], line: int, names: Names) -> int:
    """The line of a loop around a line that goes on with other values than those it had: numbers, names, models."""
    for loop in _loops_around(block, line):
        if not isinstance(loop, ast.For) or not isinstance(loop.target, (ast.Name, ast.Tuple)):
            continue
        values = _values_of(loop.iter, names)
        now = _current(loop.target, names)
        if values is None or now is UNKNOWN or not any(_is_same(value, now) for value in values):
            continue
        last = max(place for place, value in enumerate(values) if _is_same(value, now))
        if any(not _is_same(value, now) for value in values[last + 1 :]):
            return loop.lineno
    return 0


def _values_of(node: ast.expr, names: Names) -> list[object] | None:
    """The values of a list or tuple that is written out, or a name for one, of plain values or models; else None."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("tqdm", "reversed", "list"):
        node = node.args[0] if node.args else node
    if isinstance(node, (ast.List, ast.Tuple)):
        values = [_literal(element, names) for element in node.elts]
    else:
        found = _value_of(node, names)
        if not isinstance(found, (list, tuple)) or len(found) > _MOST_VALUES:
            return None
        values = list(found)
    return values if all(_is_plain(value) for value in values) else None


def _literal(node: ast.expr, names: Names) -> object:
    if isinstance(node, ast.Tuple):
        return tuple(_literal(element, names) for element in node.elts)
    return _value_of(node, names)


def _current(target: ast.expr, names: Names) -> object:
    if isinstance(target, ast.Name):
        return names.get(target.id, UNKNOWN)
    parts = [_current(element, names) for element in target.elts] if isinstance(target, ast.Tuple) else [UNKNOWN]
    return UNKNOWN if any(part is UNKNOWN for part in parts) else tuple(parts)


def _is_plain(value: object) -> bool:
    if isinstance(value, (tuple, list)):
        return all(_is_plain(element) for element in value)
    return isinstance(value, (*_PLAIN, type)) or is_model(value)


def _is_same(first: object, second: object) -> bool:
    if isinstance(first, (tuple, list)) and isinstance(second, (tuple, list)):
        return len(first) == len(second) and all(_is_same(a, b) for a, b in zip(first, second, strict=True))
    return first is second or (type(first) is type(second) and isinstance(first, _PLAIN) and first == second)
