"""Work objects of the fake process group that own their tensors, and values that arrive as if all ranks were alike.

A transfer holds on to its tensors: gloo's as long as its work object lives, NCCL's until it is waited for. The works of
torch's fake group hold nothing, so that what a pipeline has sent and not yet waited for would be missing (interleaved
schedules: 7 to 8 % of the peak). The methods of the process group are wrapped (read in torch 2.13).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as distributed
from torch.utils._python_dispatch import _disable_current_modes

from memfit.predict.observe.known_values import assume, keep_shadow, shadow_of
from memfit.predict.observe.storage_tracker import tensors_in
from memfit.predict.ranks.torch_collective_values import ALIKE, RULES, Known, Result, is_followed, received
from memfit.predict.ranks.torch_finished_work import OwningWork
from memfit.predict.ranks.torch_rank_listener import RankFacts

Note = Callable[[str, str], None]
Rule = Callable[..., Iterable[Result]]


NO_TENSORS = ("barrier",)


@contextlib.contextmanager
def owning_works(note: Note, facts: RankFacts) -> Iterator[None]:
    """Within, the works of every process group own their tensors, and known integers arrive."""
    group: Any = distributed.ProcessGroup
    with contextlib.ExitStack() as stack:
        for name in ("send", *RULES, *NO_TENSORS):
            if hasattr(group, name):
                call = _owning(getattr(group, name), RULES.get(name), note, facts)
                stack.enter_context(patch.object(group, name, call))
        for name, function in _objects(note).items():
            stack.enter_context(patch.object(distributed, name, function))
            stack.enter_context(patch.object(distributed.distributed_c10d, name, function))
        yield


def _owning(original: Callable[..., object], rule: Rule | None, note: Note, facts: RankFacts) -> Callable[..., object]:
    def call(group: distributed.ProcessGroup, *args: object, **kwargs: object) -> object:
        facts.note_communicator(group)
        results = _found(rule, group, args, kwargs)
        work = original(group, *args, **kwargs)
        _put(results, group.size(), note)
        tensors = list(tensors_in((args, kwargs)))
        return OwningWork(tensors, list(tensors_in(args[0]))) if work is not None and tensors else work

    return call


def _found(
    rule: Rule | None, group: distributed.ProcessGroup, args: tuple[object, ...], kwargs: dict[str, object]
) -> list[tuple[torch.Tensor, torch.Tensor | None]]:
    """The targets of a collective and their values; None where a source is unknown, or too large to be followed."""
    if rule is received:
        return [(tensor, None) for tensor in tensors_in(args[0])]
    found = []
    if rule is None:
        return found
    for target, sources, make in list[Result](rule(group.size(), group.rank(), *args, **kwargs)):
        known: list[torch.Tensor | None] = [shadow_of(source) if is_followed(source) else None for source in sources]
        parts: Known = [part for part in known if part is not None]
        if len(parts) < len(known) or not is_followed(target):
            found.append((target, None))
            continue
        with _disable_current_modes(), torch.no_grad():
            found.append((target, make(parts).to(target.dtype)))
    return found


def _put(results: list[tuple[torch.Tensor, torch.Tensor | None]], size: int, note: Note) -> None:
    for target, values in results:
        if values is None:
            keep_shadow(target, None)
            continue
        with _disable_current_modes():
            shaped = values.reshape(target.shape)
        keep_shadow(target, shaped)
        if size > 1:
            assume(target, ALIKE)


# ---- objects --------------------------------------------------------------------------------------------------------


def _objects(note: Note) -> dict[str, Callable[..., None]]:
    """Python objects that ranks exchange: all ranks send the same."""

    def all_gather(object_list: list[object], obj: object, group: object = None) -> None:
        note("ranks", ALIKE)
        object_list[:] = [obj] * len(object_list)

    def gather(obj: object, object_gather_list: list[object] | None = None, *args: object, **kwargs: object) -> None:
        note("ranks", ALIKE)
        if object_gather_list is not None:
            object_gather_list[:] = [obj] * len(object_gather_list)

    def broadcast(object_list: list[object], *args: object, **kwargs: object) -> None:
        note("ranks", ALIKE)

    def scatter(outputs: list[object], inputs: list[object] | None = None, *args: object, **kwargs: object) -> None:
        note("ranks", ALIKE)
        if inputs:
            outputs[0] = inputs[distributed.get_rank() % len(inputs)]

    return {
        "all_gather_object": all_gather, "gather_object": gather, "broadcast_object_list": broadcast,
        "scatter_object_list": scatter,
    }  # fmt: skip
