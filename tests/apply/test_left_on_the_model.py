"""Is everything that a model carries counted, put back after a step of memfit's own, and left alone otherwise?"""

from __future__ import annotations

import gc
import random
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from test_law import PLANS, STAGES
from torch import nn
from torch_fit_models import Stack

from memfit.apply.checkpoints import apply_nodes
from memfit.model.random_and_autocast import seed_all
from memfit.model.step import hanging_bytes, job_of, leaving_no_trace

WIDTH, ROWS = 8, 16


def stack() -> Stack:
    return Stack([nn.Linear(WIDTH, WIDTH) for _ in STAGES], WIDTH)


class Held(nn.Module):
    """Has something on it."""

    def __init__(self, thing: Any) -> None:
        super().__init__()
        self.linear, self.thing = nn.Linear(WIDTH, WIDTH), thing

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


def test_every_one_of_many_tensors_on_a_model_counts():
    model = Held([torch.zeros(256) for _ in range(20_000)])
    assert hanging_bytes(model) == 20_000 * 1024


def test_tensors_of_inference_mode_count_and_disturb_nothing():
    with torch.inference_mode():
        table = torch.zeros(256)
    job = job_of(Held([table]), (torch.randn(ROWS, WIDTH), torch.zeros(ROWS, WIDTH)), nn.functional.mse_loss, None)
    with leaving_no_trace(job):
        job.run()
    assert job.around_bytes == 1024


def test_an_optimizer_that_hangs_on_the_model_is_counted_once():
    model = stack()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(ROWS, WIDTH)).sum().backward()
    optimizer.step()
    model.chosen = optimizer  # type: ignore[assignment]
    assert job_of(model, torch.randn(ROWS, WIDTH), lambda out: out.sum(), optimizer).around_bytes == 0


class Lazy(nn.Module):
    """Draws its noise in the first forward."""

    noise: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "noise"):
            self.register_buffer("noise", torch.randn(WIDTH))
        return torch.sin(x + self.noise)


def test_a_buffer_that_the_first_step_registers_is_taken_away_again():
    model = Stack([Lazy() for _ in STAGES], WIDTH)
    job = job_of(model, torch.randn(ROWS, WIDTH), lambda out: out.sum(), None)
    with leaving_no_trace(job):
        job.run()
    assert not any(hasattr(block, "noise") for block in model.blocks)


def test_blocks_that_register_a_buffer_in_their_first_call_compute_the_same_twice():
    def gradients(planned: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = Stack([nn.Sequential(nn.Linear(WIDTH, WIDTH), Lazy()) for _ in STAGES], WIDTH)
        if planned:
            apply_nodes(model, STAGES, PLANS["one run"])
        model(torch.randn(ROWS, WIDTH)).square().sum().backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    for mine, theirs in zip(gradients(True), gradients(False), strict=True):
        assert torch.equal(mine, theirs)


def test_a_seed_for_devices_that_come_later_is_left_alone(monkeypatch: pytest.MonkeyPatch):
    seeded: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    seed_all(3)
    first = torch.rand(()), random.random(), np.random.rand()
    seed_all(3)
    assert (torch.rand(()), random.random(), np.random.rand()) == first
    assert seeded == []


class Counting(nn.Module):
    """Keeps a tensor that no loss is made of, and writes into another, so that its calls are not made again."""

    def __init__(self, made: list[weakref.ref[torch.Tensor]]) -> None:
        super().__init__()
        self.linear, self.made, self.count, self.last = nn.Linear(WIDTH, WIDTH), made, [torch.zeros(1)], None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.linear(x))
        self.last = torch.exp(y) * torch.sigmoid(x)
        self.made.append(weakref.ref(self.last))  # type: ignore[arg-type]
        self.count[0].add_(1)
        return x + y


@pytest.mark.filterwarnings("ignore:.*memfit")
def test_calls_that_are_kept_hold_nothing_longer_than_without_a_plan():
    def left(planned: bool) -> int:
        made: list[weakref.ref[torch.Tensor]] = []
        model = Stack([Counting(made) for _ in STAGES], WIDTH)
        if planned:
            apply_nodes(model, STAGES, PLANS["each alone"])
        for _ in range(5):
            model(torch.randn(ROWS, WIDTH)).square().mean().backward()
        gc.collect()
        return sum(ref() is not None for ref in made)

    assert left(True) == left(False)


class Pausing(nn.Module):
    """Lets another thread draw while it runs."""

    def __init__(self, draw: Callable[[], None]) -> None:
        super().__init__()
        self.linear, self.draw = nn.Linear(WIDTH, WIDTH), draw

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.draw()
        return torch.tanh(self.linear(x))


@pytest.mark.filterwarnings("ignore:.*memfit")
def test_no_random_number_that_another_thread_drew_comes_again():
    drawn: list[float] = []
    asked, answered, over = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        while not over.is_set():
            if asked.wait(0.01):
                asked.clear()
                drawn.append(random.random())
                answered.set()

    def draw() -> None:
        asked.set()
        assert answered.wait(10.0)
        answered.clear()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        model = Stack([Pausing(draw) for _ in STAGES], WIDTH)
        apply_nodes(model, STAGES, PLANS["each alone"])
        for _ in range(4):
            model(torch.randn(ROWS, WIDTH)).square().mean().backward()
    finally:
        over.set()
        thread.join()
    assert len(set(drawn)) == len(drawn) >= 4 * len(STAGES)
