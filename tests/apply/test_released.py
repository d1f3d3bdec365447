"""Is everything that a planned step computed released when the plain model would release it?

A backward does not reach every tensor that a block makes: the last state of a cache, a value that is kept for a log.
The graphs of those must not be held by the description of the call that made them.
"""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from test_law import PLANS, STAGES, Cache
from torch import nn
from torch.nn.utils import parametrizations
from torch_fit_models import Stack

import memfit
from memfit.apply.checkpoints import apply_nodes
from memfit.records.plan import Node

WIDTH, ROWS, NUM_STEPS = 8, 16, 5


@pytest.fixture(params=PLANS)
def plan(request: pytest.FixtureRequest) -> tuple[Node, ...]:
    return PLANS[request.param]


class Layer:
    """What a cache holds for one block."""

    value: torch.Tensor | None = None


class FullCache(Cache):
    """Has a layer for every block before the first is called, as the caches of hybrid models."""

    def __init__(self) -> None:
        super().__init__()
        self.made = [Layer() for _ in STAGES]

    def update(self, number: int, value: torch.Tensor) -> torch.Tensor:
        self.made[number].value = value
        return value


CACHES: dict[str, type[Cache]] = {"cache": Cache, "cache with all layers": FullCache}


class Remembering(nn.Module):
    """Puts a tensor with a graph of its own, which no loss is made of, where `place` says."""

    def __init__(self, number: int, place: str, made: list[weakref.ref[torch.Tensor]]) -> None:
        super().__init__()
        self.linear, self.number, self.place, self.made = nn.Linear(WIDTH, WIDTH), number, place, made
        self.entropy: Any = None

    def forward(self, x: torch.Tensor, cache: Cache | None = None) -> torch.Tensor:
        y = torch.tanh(self.linear(x))
        state = torch.exp(y) * torch.sigmoid(x)
        self.made.append(weakref.ref(state))
        if cache is not None:
            cache.update(self.number, state)
        elif self.place == "attribute":
            self.entropy = state
        else:
            self.entropy = (state, [state])
        return x + y


class RememberingStack(Stack):
    """Hands a cache to every block, or none."""

    def __init__(self, place: str) -> None:
        self.made: list[weakref.ref[torch.Tensor]] = []
        super().__init__([Remembering(i, place, self.made) for i in range(len(STAGES))], WIDTH)
        self.place = place

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        cache = CACHES[self.place]() if self.place in CACHES else None
        for block in self.blocks:
            x = block(x, cache)
        return self.head(x)


@pytest.mark.parametrize("backward", [True, False], ids=["trained", "without a backward"])
@pytest.mark.parametrize("place", [*CACHES, "attribute", "tuple"])
def test_what_no_backward_reaches_is_released_as_without_a_plan(plan: tuple[Node, ...], place: str, backward: bool):
    def left(planned: bool) -> int:
        torch.manual_seed(0)
        model = RememberingStack(place)
        if planned:
            apply_nodes(model, STAGES, plan)
        for _ in range(NUM_STEPS):
            loss = model(torch.randn(ROWS, WIDTH)).square().mean()
            if backward:
                loss.backward()
            del loss
            model.zero_grad()
        gc.collect()
        return sum(ref() is not None for ref in model.made)

    assert left(planned=True) == left(planned=False)


class ReadingCache(FullCache):
    """Gives each block what the block before it left, with its graph, and counts how often it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.num_asked = {"all": 0}

    def update(self, number: int, value: torch.Tensor) -> torch.Tensor:
        self.num_asked["all"] += 1
        before = self.made[number - 1].value if number else None
        super().update(number, value)
        return value * self.num_asked["all"] if before is None else before * self.num_asked["all"] + value


class Reading(nn.Module):
    """Computes with what the cache gives."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.linear, self.number = nn.Linear(WIDTH, WIDTH), number

    def forward(self, x: torch.Tensor, cache: ReadingCache) -> torch.Tensor:
        return x + torch.tanh(cache.update(self.number, torch.sigmoid(self.linear(x))))


def test_blocks_that_read_what_others_put_into_a_cache_compute_the_same_twice(plan: tuple[Node, ...]):
    def step(planned: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        blocks, cache = nn.ModuleList([Reading(i) for i in range(len(STAGES))]), ReadingCache()
        model = nn.ModuleDict({"blocks": blocks})
        applied = apply_nodes(model, STAGES, plan) if planned else None
        x = torch.randn(ROWS, WIDTH)
        for block in blocks:
            x = block(x, cache)
        x.square().sum().backward(retain_graph=True)
        x.sum().backward()
        assert cache.num_asked["all"] == len(STAGES)
        assert (applied is None) == (not planned)
        return [x.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]

    for mine, theirs in zip(step(planned=True), step(planned=False), strict=True):
        assert torch.equal(mine, theirs)


class Taken(nn.Module):
    """A block with a weight that torch computes, for which it makes a class that closes over the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(x))


def test_a_model_with_classes_of_its_own_is_released_after_fitting():
    model = Stack([Taken() for _ in STAGES], WIDTH)
    batch = torch.randn(ROWS, WIDTH), torch.zeros(ROWS, 4)
    fitted = memfit.fit_to_budget(
        model, batch, nn.functional.mse_loss, torch.optim.SGD(model.parameters()), budget="1GiB"
    )
    fitted.undo()
    weight = weakref.ref(next(model.parameters()))
    del model, fitted, batch
    gc.collect()
    assert weight() is None
