"""Long stretches without gradients: calls of a model whose shapes repeat are answered without being run again.

A call is left out only where it cannot change the answer: the same module was run with arguments of the same geometry
several times before, each time made as many storages and bytes, kept nothing but its result, gave a result of the same
geometry, and began with at least as many live bytes as now. Its result is then made as before. What is left out is
listed. Within an outermost module this holds for one that is called many times there: a sampler that calls its network.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, cast

import torch
from torch.utils import _pytree

from memfit.predict.observe.known_values import covers_storage, is_known
from memfit.predict.observe.storage_tracker import Tracker

ALIKE = 3
"""Calls that are run before the next ones are left out."""
MANY = 8
"""Calls of a module within an outermost one from which on they are compared."""
NEGLIGIBLE = 1e-4
"""Share of the live bytes by which a later call may begin higher, for numbers that a script collects."""
PLAIN = (type(None), bool, int, float, str, torch.dtype, torch.device)
R = TypeVar("R")
Key = tuple[object, ...]
Geometry = tuple[tuple[int, ...], tuple[int, ...], int | torch.SymInt, torch.dtype, torch.device]
"""Of a tensor: shape, strides, offset, type and device."""
Leaf = Geometry | bool | int | float | str | torch.dtype | torch.device | None


@dataclass(slots=True)
class SeenCall:
    """Calls alike: how many, the most live bytes one began with, what they made, and their result."""

    count: int
    most_live_bytes: int
    made: tuple[int, int]
    """Storages and bytes. A model that fills a cache it was made with takes more in each call."""
    result: tuple[tuple[Leaf, ...], _pytree.TreeSpec]
    """Leaves, tensors by their geometry, and how they are nested."""


class RepeatedCalls:
    """Runs outermost modules, or answers for them."""

    def __init__(self, tracker: Tracker, note: Callable[[str, str], None]) -> None:
        self._tracker, self._note = tracker, note
        self._seen: weakref.WeakKeyDictionary[torch.nn.Module, dict[Key, SeenCall]] = weakref.WeakKeyDictionary()
        self._within: Counter[int] = Counter()
        """Calls of each module since the outermost one was entered."""

    def enter(self) -> None:
        """An outermost module is called."""
        self._within.clear()

    def run_within(self, module: torch.nn.Module, inputs: object, call: Callable[[], R]) -> R:
        """The result of a call within an outermost module."""
        if torch.is_grad_enabled():
            return call()
        self._within[id(module)] += 1
        is_compared = module in self._seen or self._within[id(module)] > MANY
        if not is_compared or next(iter(module.parameters()), None) is None:
            return call()
        return self.run(module, inputs, call)

    def run(self, module: torch.nn.Module, inputs: object, call: Callable[[], R]) -> R:
        """The result of a call, run or made again."""
        key = None if torch.is_grad_enabled() or has_own_hooks(module) else key_of(module, inputs)
        if key is None:
            return call()
        seen = self._seen.setdefault(module, {})
        known, live_bytes = seen.get(key), self._tracker.live_bytes()
        if known and known.count >= ALIKE and live_bytes <= known.most_live_bytes * (1 + NEGLIGIBLE):
            self._note("script", "calls of a model without gradients were not run again, since their shapes repeat")
            return cast("R", _made_again(*known.result))
        num_births = len(self._tracker.log.births)
        result = call()
        births = self._tracker.log.births[num_births:]
        made = len(births), sum(birth.num_bytes for birth in births)
        shown = geometry_of(result) if self._keeps_only(result, num_births) else None
        if shown is None:
            seen.pop(key, None)
        elif known is not None and known.result == shown and known.made == made:
            known.count, known.most_live_bytes = known.count + 1, max(live_bytes, known.most_live_bytes)
        else:
            seen[key] = SeenCall(1, live_bytes, made, shown)
        return result

    def _keeps_only(self, result: object, num_births: int) -> bool:
        """Whether all that was made since then and is alive is this result, each tensor with a storage of its own."""
        tensors = [leaf for leaf in _pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        uids = [self._tracker.uid_of(tensor) for tensor in tensors]
        whole = all(covers_storage(tensor) and not is_known(tensor) for tensor in tensors)
        return whole and len(set(uids)) == len(uids) and set(uids) == self._tracker.living_since(num_births)


def key_of(module: torch.nn.Module, inputs: object) -> Key | None:
    """What a call looks like; None where an argument is neither a tensor nor plain."""
    looks = geometry_of(inputs)
    if looks is None:
        return None
    leaves, nest = looks
    first = next(iter(module.parameters()), None)
    kind = (None, None) if first is None else (first.dtype, str(first.device))
    autocast = tuple((torch.is_autocast_enabled(name), torch.get_autocast_dtype(name)) for name in ("cpu", "cuda"))
    settings = plain_settings(module)
    return leaves, str(nest), module.training, kind, autocast, torch.is_inference_mode_enabled(), settings


def plain_settings(module: torch.nn.Module) -> tuple[object, ...]:
    """Numbers and names that a module and those within it hold: a position in a cache, a depth that grows."""
    return tuple(
        value
        for part in module.modules()
        for name, value in part.__dict__.items()
        if type(value) in (bool, int, float, str) and name != "training"
    )


def has_own_hooks(module: torch.nn.Module) -> bool:
    """Whether a hook that is not torch's own would see a call, of a module or within it: it may keep the results."""
    return any(
        not _is_of_torch(hook)
        for part in module.modules()
        for hooks in (part._forward_hooks, part._forward_pre_hooks)
        for hook in hooks.values()
    )


def _is_of_torch(hook: object) -> bool:
    owner = getattr(hook, "__module__", None) or type(hook).__module__
    return owner.partition(".")[0] == "torch"


def geometry_of(value: object) -> tuple[tuple[Leaf, ...], _pytree.TreeSpec] | None:
    """A nest with tensors described by their geometry; None where it holds anything but tensors and plain values."""
    leaves, nest = _pytree.tree_flatten(value)
    found: list[Leaf] = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            if leaf.layout is not torch.strided:
                return None
            found.append((tuple(leaf.shape), leaf.stride(), leaf.storage_offset(), leaf.dtype, leaf.device))
        elif type(leaf) in PLAIN:
            found.append(leaf)
        else:
            return None
    return tuple(found), nest


def _made_again(leaves: tuple[Leaf, ...], nest: _pytree.TreeSpec) -> object:
    """New tensors of this geometry."""
    made = [
        torch.empty_strided(leaf[0], leaf[1], dtype=leaf[3], device=leaf[4]) if isinstance(leaf, tuple) else leaf
        for leaf in leaves
    ]
    return _pytree.tree_unflatten(made, nest)
