"""Result of the last pass in a variable of the loop (`out = model(x)`): how much the next pass releases, and when.

The variable that took the last result has it until the call returns that makes the next one. While a step is tried at
the beginning of a pass, that result is there all the time, which the program's own pass will not have: the logits of a
language model can be a tenth of its memory. So what will be released is separated from what the program keeps (in a
list, as a state for the next call): it is what nothing holds but the variable to which the very same call, by the code
behind it, is about to assign. Everything else counts as kept. `dis` as of Python 3.11 to 3.14.

Known limit: that the one variable is the one that is assigned is taken from the code, not looked up. A program that
moves the result on (`before = out; out = None`) keeps it longer than is counted; its passes are measured and reported.
"""

from __future__ import annotations

import dis
import gc
import sys
from collections.abc import Sequence
from functools import lru_cache
from types import CodeType, FrameType
from typing import NamedTuple

import torch
from torch.utils.weak import TensorWeakRef

from memfit.fit.recorded_pass import Tape
from memfit.fit.tensors_alive import tensors_alive
from memfit.model.step import storages_of
from memfit.model.tensors_in_arguments import tensors_in

_STORES = ("STORE_FAST", "STORE_NAME", "STORE_GLOBAL")
_OWN_REFERENCES = 2
"""Of an item of a list whose references are counted: the list's, and that of the question."""
_NAMESPACE = 0
"""Stands for the variables of a module."""
_FITTING = __name__.rpartition(".")[0]


class CodePlace(NamedTuple):
    """A place in the program's code that calls a model."""

    code: CodeType
    instruction: int


class LastResult:
    """What the call that began a pass returned; it is not kept alive."""

    def __init__(self) -> None:
        self._site: CodePlace | None = None
        self._tensors: list[TensorWeakRef] = []
        self._output_id = 0

    def note(self, output: object) -> None:
        """The call has returned this."""
        site = calling_place()
        self._site = site if site is not None and _is_assigned(*site) else None
        there = [tensor for tensor in tensors_in(output) if isinstance(tensor, torch.Tensor)]  # not what stands for one
        self._tensors = [TensorWeakRef(tensor) for tensor in there] if self._site is not None else []
        self._output_id = id(output)

    def to_release(self) -> list[torch.Tensor]:
        """Tensors of it that go when the call returns that is made now; none where that is unknown."""
        if self._site is None or calling_place() != self._site:
            return []
        tensors = _alive(self._tensors)
        if not tensors:
            return []
        holders = _holders_of(tensors)
        inside = self._parts_of_output(tensors)
        free: list[torch.Tensor] = []
        for place in range(len(tensors)):
            num_references, known = sys.getrefcount(tensors[place]) - _OWN_REFERENCES, holders[id(tensors[place])]
            is_inside = bool(inside) and num_references == len(known) and inside.issuperset(known)
            if is_inside or _is_only_in_a_variable(num_references, known):
                free.extend(tensors[place : place + 1])
        return free

    def _parts_of_output(self, tensors: list[torch.Tensor]) -> set[int]:
        """Ids of the object that the call returned and of its attributes, where one variable alone holds it."""
        found = [each for each in gc.get_referrers(*tensors) if id(each) == self._output_id and each is not tensors]
        if len(found) != 1:
            return set()
        attributes = getattr(found[0], "__dict__", None)
        holders = _holders_of(found, besides=(attributes,))
        is_free = _is_only_in_a_variable(sys.getrefcount(found[0]) - _OWN_REFERENCES, holders[id(found[0])])
        return {id(found[0]), id(attributes)} if is_free else set()


def _alive(references: list[TensorWeakRef]) -> list[torch.Tensor]:
    """In a function of its own, so that no variable is left that holds one of them."""
    return [tensor for reference in references if (tensor := reference()) is not None]


def _is_only_in_a_variable(num_references: int, holders: list[int]) -> bool:
    """Whether there is one reference, from a variable: of a function, which no collector sees, or of a module."""
    return num_references == 1 and all(holder == _NAMESPACE for holder in holders)


def _holders_of(objects: Sequence[object], besides: Sequence[object] = ()) -> dict[int, list[int]]:
    """By the id of each object, the id of what holds each reference to it that the collector knows; one look at all."""
    found: dict[int, list[int]] = {id(each): [] for each in objects}
    for holder in gc.get_referrers(*objects):
        if holder is objects or isinstance(holder, FrameType) or any(holder is each for each in besides):
            continue
        for each in map(id, gc.get_referents(holder)):
            if each in found:
                found[each].append(_NAMESPACE if _is_namespace(holder) else id(holder))
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
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").rpartition(".")[0] == _FITTING:
        frame = frame.f_back
    return None if frame is None else CodePlace(frame.f_code, frame.f_lasti)


@lru_cache(maxsize=64)
def _is_assigned(code: CodeType, instruction: int) -> bool:
    """Whether what a call returns goes to variables and nowhere else: `out = model(x)`, `mean, var = model(x)`."""
    after = [each for each in dis.get_instructions(code) if each.offset > instruction]
    if not after:
        return False
    if after[0].opname == "UNPACK_SEQUENCE":
        count = after[0].arg or 0
        return len(after) > count and all(each.opname.startswith(_STORES) for each in after[1 : count + 1])
    return after[0].opname.startswith(_STORES)


def _is_namespace(holder: object) -> bool:
    """Whether this holds the variables of a module."""
    return isinstance(holder, dict) and "__name__" in holder and "__builtins__" in holder
