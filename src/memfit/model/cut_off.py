"""Cuts what is noted before a call off from the graphs of autograd, so that nothing is held longer than without a plan.

The description of a call is held by the graph that the call makes. Whatever in it leads to a tensor of that graph (a
cache among the arguments that the call put its last state into, an attribute that is kept for a log) closes a ring
through autograd, which Python's collector cannot see. What a backward does not reach would then never be released. So
tensors with a graph are replaced by tensors with the same memory and none, and the containers and plain objects that
lead to them by copies that hold what was there before the call. A second run needs their values alone.
"""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable
from typing import Any, TypeGuard, TypeVar

import torch

from memfit.model.memo_by_class import memo_by_class
from memfit.model.module_state import PLAIN, Noted, State, lay, note, unchanged
from memfit.model.tensors_in_arguments import replaced

T = TypeVar("T")
_MADE_IN_PYTHON = 1 << 9
"""Py_TPFLAGS_HEAPTYPE; classes written in C that set it have a `__new__` of their own or slots."""
_COPIED = (list, dict, set, deque, OrderedDict, defaultdict)
"""Containers of just these kinds are copied; others stay the very objects."""


def cut_off(template: object, state: State, shelves: Iterable[object]) -> tuple[object, State]:
    """The arguments and the state of a call that is over, as they were before it, without graphs.

    `shelves` are the dictionaries of the modules themselves, which are never copied.
    """
    noted = [each for each in (state.attributes, state.given) if each is not None]
    if not any(_leads_to_a_graph(each) for each in noted):
        return template, state
    cutter = _Cutter(noted, _all_of(state.given), {id(shelf) for shelf in shelves})
    arguments = replaced(template, cutter.value)  # before what is noted: a copy is known when its owner was seen
    attributes = cutter.noted(state.attributes)
    given = None if state.given is None else cutter.noted(state.given)
    return arguments, State(attributes, state.buffers, state.hooks, given)


def _has_graph(value: object) -> TypeGuard[torch.Tensor]:
    return isinstance(value, torch.Tensor) and value.grad_fn is not None


def _leads_to_a_graph(noted: Noted) -> bool:
    """Whether what was noted holds a tensor with a graph, or was changed so that it does."""
    if any(_has_graph(tensor) for tensor, _ in noted.tensors):
        return True
    changed = [container for container, content in noted.places if not unchanged(container, content)]
    return any(_has_graph(tensor) for tensor, _ in note(_values(changed)).tensors)


def _all_of(given: Noted | None) -> set[int]:
    """Ids of all containers among the arguments, if one leads to a graph: later calls fill others of them."""
    return {id(container) for container, _ in given.places} if given is not None and _leads_to_a_graph(given) else set()


def _values(containers: Iterable[Iterable[object]]) -> list[object]:
    return [value for each in containers for value in (each.values() if isinstance(each, dict) else each)]


class _Cutter:
    """Copies each container and object that leads to a graph once."""

    def __init__(self, noted: list[Noted], leading: set[int], shelves: set[int]) -> None:
        self._contents: dict[int, tuple[Any, Any]] = {
            id(container): (container, content) for each in noted for container, content in each.places
        }
        self._copies: dict[int, Any] = {}
        self._alive: list[object] = []
        """What was copied: no other object gets its id meanwhile."""
        self._leading = self._find_leading(leading) - shelves

    def noted(self, noted: Noted) -> Noted:
        """The same, with copies in place of what leads to a graph."""
        contents = [self._cut(content) for _, content in noted.places]
        containers = [self._copies.get(id(container), container) for container, _ in noted.places]
        places = list(zip(containers, contents, strict=True))
        return Noted(places, [each for each in noted.tensors if not _has_graph(each[0])], noted.generators)

    def value(self, value: object) -> object:
        """A value as it was before the call: itself, unless it leads to a graph."""
        if id(value) in self._copies:
            return self._copies[id(value)]
        if _has_graph(value):
            return self._keep(value, value.detach().requires_grad_(value.requires_grad))
        if isinstance(value, tuple):
            return self._copy_tuple(value)
        if id(value) in self._leading and type(value) in _COPIED:
            return self._copy(value)
        inner = getattr(value, "__dict__", None)
        if isinstance(inner, dict) and id(inner) in self._leading and _is_plain(value):
            return self._copy_object(value, inner)
        return value

    def _copy_tuple(self, value: tuple[object, ...]) -> tuple[object, ...]:
        """A tuple of the same kind, if something in it is to be replaced and it holds nothing else."""
        if not _is_bare(value):
            return value
        parts = [self.value(each) for each in value]
        if all(part is each for part, each in zip(parts, value, strict=True)):
            return self._keep(value, value)
        return self._keep(value, _rebuilt(value, parts))

    def _copy(self, container: object) -> object:
        made = self._keep(container, copy.copy(container))
        lay(made, self._cut(self._contents[id(container)][1]))
        return made

    def _copy_object(self, value: object, inner: dict[str, object]) -> object:
        made = self._keep(value, object.__new__(type(value)))
        self._keep(inner, made.__dict__)
        lay(made.__dict__, self._cut(self._contents[id(inner)][1]))
        return made

    def _keep(self, value: object, made: T) -> T:
        self._alive.append(value)
        self._copies[id(value)] = made
        return made

    def _cut(self, content: Iterable[object]) -> dict[object, object] | list[object]:
        if isinstance(content, dict):
            return {key: self.value(each) for key, each in content.items()}
        return [self.value(each) for each in content]

    def _find_leading(self, leading: set[int]) -> set[int]:
        """Ids of the containers from which a tensor with a graph can be reached, before the call or now."""
        below = {key: self._below(container, content) for key, (container, content) in self._contents.items()}
        leading = leading | {key for key, found in below.items() if None in found}
        while more := {key for key, found in below.items() if key not in leading and not leading.isdisjoint(found)}:
            leading |= more
        return leading

    def _below(self, container: Iterable[object], content: Iterable[object]) -> set[int | None]:
        """Ids of the containers in one; None stands for a tensor with a graph."""
        found: set[int | None] = set()
        seen: set[int] = set()
        waiting = _values([content] if unchanged(container, content) else [content, container])
        while waiting:
            value = waiting.pop()
            if isinstance(value, PLAIN) or id(value) in seen:
                continue
            seen.add(id(value))
            if isinstance(value, tuple):
                waiting.extend(value)
            elif _has_graph(value):
                found.add(None)
            elif id(value) in self._contents:
                found.add(id(value))
            elif not self._is_known(value) and any(_has_graph(tensor) for tensor, _ in note([value]).tensors):
                found.add(None)  # the call put it there
            inner = getattr(value, "__dict__", None)
            if isinstance(inner, dict) and id(inner) in self._contents:
                found.add(id(inner))
        return found

    def _is_known(self, value: object) -> bool:
        return id(value) in self._contents or id(getattr(value, "__dict__", None)) in self._contents


def _is_plain(value: object) -> bool:
    """Whether a copy of an object's attributes is a copy of the object.

    It has no slots, no base written in C that may hold something beside them, no way of its own to be made, and nothing
    that happens when a copy dies.
    """
    return _holds_attributes_only(type(value)) and not isinstance(value, (torch.nn.Module, type))


@memo_by_class
def _holds_attributes_only(kind: type) -> bool:
    if kind.__new__ is not object.__new__ or hasattr(kind, "__del__"):
        return False
    own = [each for each in kind.__mro__ if each is not object]
    return all(each.__flags__ & _MADE_IN_PYTHON and not _slots_of(each) for each in own)


def _slots_of(kind: type) -> set[str]:
    slots = kind.__dict__.get("__slots__", ())
    return ({slots} if isinstance(slots, str) else set(slots)) - {"__dict__", "__weakref__"}


def _is_bare(value: tuple[object, ...]) -> bool:
    """Whether a tuple is its items and nothing else: a plain or named one, or a result such as that of topk."""
    if type(value) in (tuple, torch.Size):
        return True
    is_named = type(value).__bases__ == (tuple,) and hasattr(value, "_fields")
    return not getattr(value, "__dict__", None) and (is_named or _is_result_of_torch(value))


def _is_result_of_torch(value: object) -> bool:
    return type(value).__module__ == "torch.return_types"


def _rebuilt(value: tuple[object, ...], parts: list[object]) -> tuple[object, ...]:
    if _is_result_of_torch(value):
        return type(value)(parts)
    return tuple.__new__(type(value), parts)
