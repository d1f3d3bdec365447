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

import memfit
from memfit.apply.checkpoints import apply_nodes
from memfit.errors import DoesNotFit, PlanBroken, UsageError
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


class Following(nn.Module):
    """A frozen layer follows a trained one in every forward."""

    def __init__(self, write: Callable[[torch.Tensor, torch.Tensor], object]) -> None:
        super().__init__()
        self.linear, self.slow, self.write = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), write
        self.slow.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.write(self.slow.weight, self.linear.weight)
        return torch.tanh(self.linear(x)) + self.slow(x)


class Renormed(nn.Module):
    """Keeps the rows of its own trained weight short, in every forward."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.linear.weight.data = torch.renorm(self.linear.weight.data * 1.1, 2, 0, 0.5)
        return torch.tanh(self.linear(x))


class MaxNorm(nn.Module):
    """An embedding that torch shortens where it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.linear = nn.Embedding(5, WIDTH, max_norm=0.3), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(x + self.words(torch.arange(ROWS) % 5)))


def replace_data(slow: torch.Tensor, fast: torch.Tensor) -> None:
    slow.data = 0.9 * slow.data + 0.1 * fast.data


WRITERS: dict[str, Callable[[], nn.Module]] = {
    "in place": lambda: Following(lambda slow, fast: slow.lerp_(fast, 0.1)),
    "with the value that it has": lambda: Following(lambda slow, fast: slow.mul_(1.0)),
    "through its data": lambda: Following(lambda slow, fast: slow.data.lerp_(fast.data, 0.1)),
    "with other data": lambda: Following(replace_data),
    "its trained weight": Renormed,
    "an embedding with max_norm": MaxNorm,
}


def fit(model: nn.Module, batch: Any, optimizer: torch.optim.Optimizer, budget_bytes: int) -> None:
    memfit.fit_to_budget(model, batch, nn.functional.mse_loss, optimizer, budget=budget_bytes)


def fit_into_little(model: nn.Module, batch: Any, optimizer: torch.optim.Optimizer) -> None:
    """Into the least that it fits into."""
    with pytest.raises(DoesNotFit) as refused:
        fit(model, batch, optimizer, sum(tensor.nbytes for tensor in (*model.parameters(), *batch)))
    assert refused.value.needed_bytes is not None
    fit(model, batch, optimizer, refused.value.needed_bytes)


@pytest.mark.parametrize("how", WRITERS)
@pytest.mark.parametrize("is_tight", [False, True])
def test_a_model_that_writes_into_its_parameters_is_fitted_without_a_trace(how: str, is_tight: bool):
    def trained(fits: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = Stack([WRITERS[how]() for _ in STAGES], WIDTH)
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
        batch = torch.randn(ROWS, WIDTH), torch.randn(ROWS, 4)
        before = [p.detach().clone() for p in model.parameters()]
        if fits:
            fit_into_little(model, batch, optimizer) if is_tight else fit(model, batch, optimizer, 1 << 30)
        assert all(torch.equal(p, value) for p, value in zip(model.parameters(), before, strict=True))
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(batch[0]), batch[1]).backward()
            optimizer.step()
        return [p.detach() for p in model.parameters()]

    assert all(torch.equal(*pair) for pair in zip(trained(True), trained(False), strict=True))


def step_at_once(parameter: torch.Tensor) -> None:
    assert parameter.grad is not None
    parameter.data.add_(parameter.grad, alpha=-0.1)


def test_a_model_that_is_updated_within_its_backward_is_refused_as_it_was():
    model = stack()
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step_at_once)
    before = [p.detach().clone() for p in model.parameters()]
    batch = torch.randn(ROWS, WIDTH), torch.randn(ROWS, 4)
    optimizer = torch.optim.SGD(model.parameters())
    with pytest.raises(UsageError, match="updated within the backward"):
        fit(model, batch, optimizer, 1 << 30)
    assert all(torch.equal(p, value) for p, value in zip(model.parameters(), before, strict=True))


def test_a_plan_from_elsewhere_on_a_model_that_writes_into_its_parameters_is_broken_aloud():
    model = Stack([WRITERS["through its data"]() for _ in STAGES], WIDTH)
    apply_nodes(model, STAGES, PLANS["each alone"])
    with pytest.raises(PlanBroken, match="its own parameters"):
        model(torch.randn(ROWS, WIDTH)).square().sum().backward()


class Seldom(nn.Module):
    """Writes into its weight from its second call on."""

    def __init__(self, calls: list[int]) -> None:
        super().__init__()
        self.linear, self.note = nn.Linear(WIDTH, WIDTH), calls.append
        self.num_calls = calls.__len__

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.note(1)
        if self.num_calls() > 1:
            with torch.no_grad():
                self.linear.weight.mul_(1.0)
        return self.linear(x)


def test_a_parameter_that_only_later_runs_write_into_is_never_passed_over():
    model = Stack([Seldom([])], WIDTH)
    job = job_of(model, torch.randn(ROWS, WIDTH), lambda out: out.sum(), None)
    with leaving_no_trace(job):
        job.run()
    with pytest.raises(UsageError, match="in some runs and not in others"), leaving_no_trace(job):
        job.run()


# ---- what hooks and optimizers carry -----------------------------------------------------------------------------

NAMED_BY_A_HOOK: list[torch.Tensor] = []


def copies_of(model: nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def in_a_closure(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    copies = copies_of(model)
    optimizer.register_step_post_hook(lambda *_: copies.sort(key=len))


def in_a_module(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    average = torch.optim.swa_utils.AveragedModel(model, use_buffers=False)
    average.n_averaged = torch.zeros(0)
    optimizer.register_step_post_hook(lambda *_: average.update_parameters(model))


def in_an_object(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    class Average:
        def __init__(self) -> None:
            self.copies = copies_of(model)

        def update(self, *_: object) -> None:
            pass

    optimizer.register_step_pre_hook(Average().update)


def in_a_global(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    NAMED_BY_A_HOOK[:] = copies_of(model)
    optimizer.register_step_post_hook(lambda *_: NAMED_BY_A_HOOK.reverse())


def in_defaults_of_gradient_hooks(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for parameter in model.parameters():
        mask = torch.ones_like(parameter)
        parameter.register_hook(lambda gradient, mask=mask: gradient * mask)


def in_hooks_of_added_gradients(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for parameter in model.parameters():
        total = torch.zeros_like(parameter)
        parameter.register_post_accumulate_grad_hook(lambda p, total=total: None)


def on_the_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.slow = copies_of(model)  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    "carry",
    [in_a_closure, in_a_module, in_an_object, in_a_global, in_defaults_of_gradient_hooks, in_hooks_of_added_gradients,
     on_the_optimizer],
)  # fmt: skip
def test_copies_of_the_parameters_that_hooks_or_an_optimizer_carry_count_once(
    carry: Callable[[nn.Module, torch.optim.Optimizer], None],
):
    model = stack()
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    assert hanging_bytes(model, None, optimizer) == 0
    carry(model, optimizer)
    copied_bytes = sum(p.nbytes for p in model.parameters())
    assert hanging_bytes(model, None, optimizer) == copied_bytes
    assert job_of(model, torch.randn(ROWS, WIDTH), torch.sum, optimizer).around_bytes == copied_bytes
    NAMED_BY_A_HOOK.clear()


def test_a_fit_says_that_a_step_hook_may_make_something():
    model = stack()
    optimizer = torch.optim.SGD(model.parameters())
    optimizer.register_step_post_hook(lambda *_: None)
    with memfit.fit_to_budget(model, torch.randn(ROWS, WIDTH), torch.sum, optimizer, budget="1GiB") as fitted:
        assert any("the optimizer's step has 1 hook:" in note for note in fitted.fit.notes)
