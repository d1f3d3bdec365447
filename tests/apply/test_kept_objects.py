"""Does a block that keeps an object with a graph compute the same twice, whatever kind of object it is?

What a call is described with is cut off from the graphs of autograd. Objects that hold more than their attributes, and
tuples that are more than their items, stay what they are.
"""

from __future__ import annotations

import gc
import time
import types
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_law import PLANS, STAGES
from torch import nn
from torch_fit_models import Stack

from memfit.apply.checkpoints import apply_nodes

WIDTH, ROWS = 8, 16
Pair = namedtuple("Pair", ["first", "second"])


class Tagged(tuple[Any, ...]):
    """A tuple with an attribute."""

    scale: float


class Slotted:
    """Has a slot beside its attributes."""

    __slots__ = ("__dict__", "scale")


class Closing:
    """Counts how many of its kind were closed."""

    num_closed = 0

    def __del__(self) -> None:
        Closing.num_closed += 1


def put(holder: Any, **values: Any) -> Any:
    for name, value in values.items():
        setattr(holder, name, value)
    return holder


KINDS: dict[str, Callable[[torch.Tensor], Any]] = {
    "the result of topk": lambda h: h.topk(2, dim=-1),
    "a named tuple": lambda h: Pair(h, 2.0),
    "a tuple with an attribute": lambda h: put(Tagged([h]), scale=2.0),
    "a namespace": lambda h: types.SimpleNamespace(h=h, scale=2.0),
    "an object with a slot": lambda h: put(Slotted(), h=h, scale=2.0),
    "an object that is closed": lambda h: put(Closing(), h=h),
}


def scale_of(kept: Any) -> float:
    """What a later call reads from the object."""
    return 1.0 if kept is None else float(getattr(kept, "scale", 1.0))


class Keeping(nn.Module):
    """Keeps an object with a graph, and reads it in the next call."""

    def __init__(self, make: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.linear, self.make, self.last = nn.Linear(WIDTH, WIDTH), make, None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = scale_of(self.last)
        h = torch.tanh(self.linear(x) * scale)
        self.last = self.make(h * 2)
        return x + h


def gradients(make: Callable[[torch.Tensor], Any], planned: bool) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = Stack([Keeping(make) for _ in STAGES], WIDTH)
    if planned:
        apply_nodes(model, STAGES, PLANS["each alone"])
    for _ in range(3):
        model(torch.randn(ROWS, WIDTH)).square().mean().backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_that_keeps_any_object_computes_the_same_twice(kind: str):
    for mine, theirs in zip(gradients(KINDS[kind], True), gradients(KINDS[kind], False), strict=True):
        assert torch.equal(mine, theirs)


def test_no_finalizer_of_the_user_runs_for_a_copy():
    gc.collect()
    Closing.num_closed = 0
    gradients(KINDS["an object that is closed"], False)
    gc.collect()
    expected, Closing.num_closed = Closing.num_closed, 0
    gradients(KINDS["an object that is closed"], True)
    gc.collect()
    assert Closing.num_closed == expected


def nested(h: torch.Tensor) -> Any:
    deep: Any = h
    for _ in range(20):
        deep = (deep, deep)
    return {"h": h, "deep": deep}


def vocabulary(h: torch.Tensor) -> Any:
    return {"h": h, "words": {f"word {number}": number for number in range(50_000)}}


@pytest.mark.parametrize("make", [nested, vocabulary])
def test_cutting_off_large_objects_takes_no_more_than_looking_at_them(make: Callable[[torch.Tensor], Any]):
    start = time.process_time()
    gradients(make, False)
    plain_seconds = time.process_time() - start
    gradients(make, True)
    assert time.process_time() - start - plain_seconds < 1.0 + 4.0 * plain_seconds
