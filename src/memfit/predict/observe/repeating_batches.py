"""Detects repeating batches of a data loader, outputs that an evaluation keeps, and the last batch."""

from __future__ import annotations

import itertools
from collections.abc import Sequence, Sized
from types import FrameType
from typing import cast

from memfit.predict.observe.batches_by_length import BatchIterator

NEGLIGIBLE = 1e-3
LARGER_MAY_FOLLOW = (
    "batches differ in their shapes, and only the first of an epoch were seen: larger ones may follow, which "
    "--lengths auto looks for"
)
_COUNTING_LIBRARIES = ("ignite",)
"""Their loops begin a loader again until they have counted an epoch: ended early, another batch would be the last."""
MANY = 10**6
"""Batches of a loader that does not know how many it has."""


def repeats(shapes: Sequence[object], count: int) -> bool:
    """Whether the last ones are alike."""
    return len(shapes) >= count and all(shape == shapes[-1] for shape in shapes[-count:])


def grows(live: list[int], num_left: int) -> bool:
    """Whether the last of these live bytes are more than before, by what matters when it goes on like this."""
    return len(live) > 1 and (live[-1] - live[-2]) * max(1, num_left) > NEGLIGIBLE * live[-1]


def go_to_smaller_last(batches: object, shapes: Sequence[Sequence[int]]) -> bool:
    """Let a loader go on with its last batch, where that has another size; False where there is none."""
    if batches.__dict__.get("_memfit_at_last") or not hasattr(batches, "_sampler_iter") or not shapes:
        return False
    going = cast("BatchIterator", batches)
    rest = list(itertools.islice(going._sampler_iter, num_batches(batches))) if num_batches(batches) < MANY else []
    if not rest or not isinstance(rest[-1], list) or not shapes[0] or len(rest[-1]) == shapes[0][0]:
        return False
    going._sampler_iter, going._memfit_at_last = iter(rest[-1:]), True
    return True


def counts_batches(frame: FrameType | None) -> bool:
    """Whether the loop that asks for a batch counts them, so that ending its loader early ends nothing."""
    name = frame.f_globals.get("__name__", "") if frame is not None else ""
    return isinstance(name, str) and name.partition(".")[0] in _COUNTING_LIBRARIES


def larger_may_follow(batches: object, shapes: Sequence[object]) -> bool:
    """Whether the batches that a loader gave differ, others were not seen, and which to see was not chosen."""
    if getattr(batches, "memfit_chosen", False) or batches.__dict__.get("_memfit_at_last"):
        return False
    return len(shapes) < num_batches(batches) and any(shape != shapes[0] for shape in shapes)


def num_batches(batches: object) -> int:
    """The batches of a loader; many where it does not know."""
    try:
        return len(cast("Sized", batches))
    except TypeError:
        return MANY
