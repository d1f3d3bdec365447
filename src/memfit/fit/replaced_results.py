"""Result of the last pass in a variable of the loop (`out = model(x)`): how much the next pass releases, and when.

The variable that took the last result has it until the call returns that makes the next one. While a step is tried at
the beginning of a pass, that result is there all the time, which the program's own pass will not have: the logits of a
language model can be a tenth of its memory. So what will be released is separated from what the program keeps (in a
list, as a state for the next call): it is what the variables hold, and nothing else does, to which the very same call,
by the code behind it, is about to assign. They are looked up, so that a result which was moved on (`before = out`)
counts as kept, and one of which a view is left (`out = out.view(-1)`) does not. `dis` as of Python 3.11 to 3.14.
"""

from __future__ import annotations

import dis
import gc
import inspect
import sys
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, NamedTuple

import torch

from memfit.fit.recorded_pass import Tape
from memfit.fit.tensors_alive import tensors_alive
from memfit.model.step import storages_of

_STORES = ("STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "STORE_DEREF")
_OWN_REFERENCES = 2
"""Of an item of a list whose references are counted: the list's, and that of the question."""
_OF_VARIABLES = 3
"""References to the variables of a frame: its own, ours, and that of the question; more where the program has them."""
_MOST_PARTS = 2000
"""Of what variables hold; where it is more, it counts as kept."""
_OPENING = ("LOAD_ATTR", "LOAD_CONST", "LOAD_SMALL_INT", "BINARY_SUBSCR")
"""What stands between a call and a variable that gets a part of its result."""
_NOT_OPENED = (torch.nn.Module, ModuleType, type, FunctionType, torch.optim.Optimizer)
_FITTING = __name__.rpartition(".")[0]


class CodePlace(NamedTuple):
    """A place in the program's code that calls a model."""

    code: CodeType
    instruction: int


class LastResult:
    """Remembers from where the call was made that began a pass, to find what it returned in the program's variables."""

    def __init__(self) -> None:
        self._site: CodePlace | None = None

    def note(self) -> None:
        """The call that begins a pass is being made."""
        self._site = calling_place()

    def to_release(self) -> list[torch.Tensor]:
        """Tensors that go when the call returns that is made now; none where that is unknown."""
        frame = _calling_frame()
        if frame is None or self._site != CodePlace(frame.f_code, frame.f_lasti):
            return []
        names = _assigned(frame.f_code, frame.f_lasti)
        return _held_alone(_taken_from(frame, names)) if names else []


def _taken_from(frame: FrameType, names: Sequence[str]) -> list[object]:
    """What variables of a frame hold. Before Python 3.13 asking leaves a second reference to each, which goes again."""
    there: Any = frame.f_locals
    values: list[object] = [
        there[name] if name in there else frame.f_globals.get(name) for name in dict.fromkeys(names)
    ]
    is_copy = isinstance(there, dict) and there is not frame.f_globals and frame.f_code.co_flags & inspect.CO_OPTIMIZED
    if is_copy and sys.getrefcount(there) <= _OF_VARIABLES:  # the program has no `locals()`
        code = frame.f_code
        for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
            there.pop(name, None)
    return values


def _held_alone(values: list[object]) -> list[torch.Tensor]:
    """The tensors that go when one variable for each of these values is given another: nothing else holds them."""
    parts, num_known = _parts_of(values)
    values.clear()
    kept = {
        place
        for place in range(len(parts))
        if sys.getrefcount(parts[place]) - _OWN_REFERENCES != num_known[id(parts[place])]
    }
    places = {id(part): place for place, part in enumerate(parts)}
    waiting = list(kept)
    while waiting:
        inside = {places[id(each)] for each in _inside(parts[waiting.pop()]) if id(each) in places} - kept
        kept |= inside
        waiting.extend(inside)
    found = [part for place, part in enumerate(parts) if place not in kept and isinstance(part, torch.Tensor)]
    return [*found, *_bases_of(found)]


def _parts_of(values: Sequence[object]) -> tuple[list[object], Counter[int]]:
    """What values hold, themselves included, each once; and how often variables and parts hold each, by its id."""
    parts: list[object] = []
    seen: set[int] = set()
    num_known: Counter[int] = Counter()
    waiting = [value for value in values if _may_go(value)]
    num_known.update(map(id, waiting))
    while waiting and len(parts) <= _MOST_PARTS:
        part = waiting.pop()
        if id(part) not in seen:
            seen.add(id(part))
            parts.append(part)
            inside = [each for each in _inside(part) if _may_go(each)]
            num_known.update(map(id, inside))
            waiting.extend(inside)
    return ([], num_known) if waiting else (parts, num_known)


def _may_go(value: object) -> bool:
    """Whether this is a tensor, or an object that may hold some."""
    return isinstance(value, torch.Tensor) or (gc.is_tracked(value) and not isinstance(value, _NOT_OPENED))


def _inside(part: object) -> list[object]:
    return [] if isinstance(part, torch.Tensor) else gc.get_referents(part)


def _bases_of(views: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors that these are views of and that only they hold."""
    num_views = Counter(id(view._base) for view in views if view._base is not None)
    bases: list[Any] = list({id(view._base): view._base for view in views if view._base is not None}.values())
    found: list[torch.Tensor] = []
    for place in range(len(bases)):
        is_unnamed = sys.getrefcount(bases[place]) - _OWN_REFERENCES <= 1  # torch's own, for its Python object
        num_holders = bases[place]._use_count() - 1
        if is_unnamed and num_holders == num_views[id(bases[place])]:
            found.extend(bases[place : place + 1])
    return found


def bytes_to_release(result: LastResult, device: torch.device) -> int:
    """The memory that goes with the last result; what shares it with another tensor stays."""
    return _bytes_of_these_alone(result.to_release(), device)


def bytes_replaced(tape: Tape, given: Sequence[torch.Tensor]) -> int:
    """The memory of what the recorded call was given that only the tape still holds, as far as as much is given now.

    A loop over a loader has one batch, the one that is given now; a list of batches has them all.
    """
    only_here = tape.given_and_held_alone() if given else []
    if not only_here:
        return 0
    device = given[0].device
    return min(sum(storages_of(given, device).values()), _bytes_of_these_alone(only_here, device))


def _bytes_of_these_alone(tensors: list[torch.Tensor], device: torch.device) -> int:
    """The memory of these tensors without what they share with others."""
    if not tensors:
        return 0
    ids = set(map(id, tensors))
    shared = storages_of((tensor for tensor in tensors_alive() if id(tensor) not in ids), device)
    return sum(size for address, size in storages_of(tensors, device).items() if address not in shared)


def calling_place() -> CodePlace | None:
    """The place outside of this folder from which the model is being called."""
    frame = _calling_frame()
    return None if frame is None else CodePlace(frame.f_code, frame.f_lasti)


def _calling_frame() -> FrameType | None:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").rpartition(".")[0] == _FITTING:
        frame = frame.f_back
    return frame


def within_functional_call() -> bool:
    """Whether the model is being called with weights that are the program's: `torch.func.functional_call`."""
    frame = _calling_frame()
    return frame is not None and frame.f_globals.get("__name__") == "torch.nn.utils.stateless"  # read in torch 2.13


@lru_cache(maxsize=64)
def _assigned(code: CodeType, instruction: int) -> tuple[str, ...]:
    """The variables that get what a call returns, and nothing else does: `out = model(x)`, `mean, var = model(x)`,
    `logits = model(x).logits`."""
    after = [each for each in dis.get_instructions(code) if each.offset > instruction]
    while after and (after[0].opname in _OPENING or after[0].argrepr == "[]"):
        after.pop(0)
    count = 1
    if after and after[0].opname == "UNPACK_SEQUENCE":
        count = after.pop(0).arg or 0
    names: list[str] = []
    for each in after:
        if len(names) >= count or not each.opname.startswith(_STORES):
            break
        names.extend(_stored(each))
    return tuple(names[:count]) if len(names) >= count else ()


def _stored(instruction: dis.Instruction) -> tuple[str, ...]:
    """What one instruction stores; from Python 3.13 on one may store twice, or store and load."""
    named: Any = instruction.argval
    both = named if isinstance(named, tuple) else (named,)
    return both if instruction.opname == "STORE_FAST_STORE_FAST" else both[:1]
