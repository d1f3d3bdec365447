"""Are modules that a step runs, and that are not in the model's tree, left as they were and trained as without a plan?

A loss with weights and statistics of its own; a module in a list, in an object or behind the back of `nn.Module`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import memfit
from memfit.errors import DoesNotFit, UsageError
from memfit.model.module_state import modules_beside

WIDTH, ROWS = 32, 256


class Statistics(nn.Module):
    """A linear layer with a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear(x))


class Box:
    """An object that is no module."""

    def __init__(self, inner: nn.Module) -> None:
        self.inner = inner


class InAList(nn.Module):
    """A block with a module that has no place in its tree."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(3 * WIDTH, WIDTH)
        self.put(Statistics())

    def put(self, inner: nn.Module) -> None:
        self.hidden = [inner]

    def inner(self) -> Any:
        return self.hidden[0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.inner()(x))))


class InAnObject(InAList):
    def put(self, inner: nn.Module) -> None:
        self.box = Box(inner)

    def inner(self) -> Any:
        return self.box.inner


class BehindTheBack(InAList):
    def put(self, inner: nn.Module) -> None:
        object.__setattr__(self, "hidden", inner)

    def inner(self) -> Any:
        return self.hidden


class WithParent(InAList):
    """Its block knows the model that it is part of, as well."""

    def inner(self) -> Any:
        return self.hidden[0]

    def know(self, parent: nn.Module) -> None:
        self.parent = [parent]


class CountingLoss(nn.Module):
    """Has weights, statistics and a counter that matters."""

    center: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.head, self.norm, self.count = nn.Linear(WIDTH, 5), nn.BatchNorm1d(WIDTH), 0
        self.register_buffer("center", torch.zeros(WIDTH))

    def forward(self, out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        self.count += 1
        self.center = 0.9 * self.center + 0.1 * out.detach().mean(0)
        return F.cross_entropy(self.head(self.norm(out - self.center)), target) * (1.0 + 0.01 * self.count)


class Job:
    """A model, the modules beside it, a loss and an optimizer of all."""

    def __init__(self, kind: type[InAList], wrap: Callable[[nn.Module], Any] = lambda loss: loss) -> None:
        torch.manual_seed(0)
        blocks = [kind() for _ in range(4)]
        self.model = nn.Sequential(*blocks)
        for block in blocks:
            if isinstance(block, WithParent):
                block.know(self.model)
        self.own_loss = CountingLoss()
        self.beside = nn.ModuleList([*(block.inner() for block in blocks), self.own_loss])
        self.loss = wrap(self.own_loss)
        self.batch = torch.randn(ROWS, WIDTH), torch.randint(0, 5, (ROWS,))
        self.optimizer = torch.optim.AdamW([*self.model.parameters(), *self.beside.parameters()])

    def state(self) -> list[Any]:
        """All that a run may change."""
        tensors = [*self.model.state_dict().values(), *self.beside.state_dict().values()]
        gradients = [p.grad for p in (*self.model.parameters(), *self.beside.parameters())]
        return [[t.clone() for t in tensors], [g if g is None else g.clone() for g in gradients], self.own_loss.count]

    def fit(self, budget_bytes: int, planner: str) -> Any:
        return memfit.fit_to_budget(
            self.model, self.batch, self.loss, self.optimizer, budget=budget_bytes, planner=planner
        )

    def trained(self) -> list[Any]:
        """What two steps leave; gradients are cleared after a step, so that those which are left from before count."""
        torch.manual_seed(3)
        for _ in range(2):
            self.loss(self.model(self.batch[0]), self.batch[1]).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        return self.state()


def same(mine: Any, theirs: Any) -> bool:
    if isinstance(mine, torch.Tensor):
        return torch.equal(mine, theirs)
    if isinstance(mine, list):
        return len(mine) == len(theirs) and all(map(same, mine, theirs))
    return mine == theirs


@pytest.mark.parametrize("planner", ["best", "nested"])
@pytest.mark.parametrize("kind", [InAList, InAnObject, BehindTheBack, WithParent])
def test_modules_that_hang_beside_the_tree_are_left_alone_and_trained_as_without_a_plan(
    kind: type[InAList], planner: str
):
    plain, job = Job(kind).trained(), Job(kind)
    before = job.state()
    with pytest.raises(DoesNotFit) as refusal:
        job.fit(1000, planner)
    assert same(job.state(), before)
    assert refusal.value.needed_bytes is not None
    job.fit(refusal.value.needed_bytes, planner)
    assert same(job.state(), before)
    assert same(job.trained(), plain)


def closing_over(loss: nn.Module) -> Any:
    return lambda out, target: loss(out, target)


@pytest.mark.parametrize("wrap", [closing_over, lambda loss: loss.forward, lambda loss: Box(loss).inner])
def test_a_loss_with_weights_and_statistics_is_left_alone_however_it_is_given(wrap: Callable[[nn.Module], Any]):
    plain, job = Job(InAList).trained(), Job(InAList, wrap)
    before = job.state()
    job.fit(1 << 30, "best")
    assert same(job.state(), before)
    assert same(job.trained(), plain)


class Whole(nn.Module):
    """A model as one part of it; the loss is a method, with weights of another part and of its own."""

    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(*(InAList() for _ in range(3)))
        self.own_loss, self.factor = CountingLoss(), nn.Parameter(torch.ones(()))
        self.register_buffer("scale", torch.ones(()))

    def loss(self, out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        self.scale = self.scale * 1.01
        return self.own_loss(out, target) * self.factor * self.scale


def test_a_loss_that_is_a_method_of_what_the_model_is_part_of_leaves_no_trace():
    torch.manual_seed(0)
    whole = Whole()
    batch = torch.randn(ROWS, WIDTH), torch.randint(0, 5, (ROWS,))
    before = [*(t.clone() for t in whole.state_dict().values()), whole.own_loss.count]
    memfit.fit_to_budget(whole.net, batch, whole.loss, torch.optim.SGD(whole.parameters(), lr=0.1), budget="1GiB")
    assert same([*whole.state_dict().values(), whole.own_loss.count], before)
    assert all(p.grad is None for p in whole.parameters())


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_a_scripted_loss_is_taken_as_it_is_and_one_with_weights_is_refused():
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 5))
    batch = torch.randn(ROWS, WIDTH), torch.randint(0, 5, (ROWS,))
    memfit.fit_to_budget(model, batch, torch.jit.script(nn.CrossEntropyLoss()), None, budget="1GiB").undo()
    with_weights = torch.jit.script(nn.CrossEntropyLoss(weight=torch.ones(5)))
    with pytest.raises(UsageError, match="TorchScript"):
        memfit.fit_to_budget(model, batch, with_weights, None, budget="1GiB")


def test_parents_and_torchs_own_functions_are_not_taken_for_modules_beside():
    model = nn.Sequential(WithParent())
    model[0].know(model)  # type: ignore[operator]
    hidden = model[0].inner()  # type: ignore[operator]
    assert modules_beside(model[0], ()) == [hidden]
    assert modules_beside(model, [F.cross_entropy, torch.optim.SGD(model.parameters())]) == [hidden]


class WithAPlainWeight(nn.Module):
    """Blocks, and a weight in a list, which is no parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32)) for _ in range(4))
        self.plain = [torch.randn(32, 32).div_(6).requires_grad_()]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x @ self.plain[0]


@pytest.mark.parametrize("share", [0.1, 0.8])
@pytest.mark.parametrize("has_gradients", [False, True])
def test_gradients_of_leaves_that_are_no_parameters_are_what_they_were(share: float, has_gradients: bool):
    """An input that is attacked, a weight in a plain list, one that the loss closes over; refused and fitted."""
    torch.manual_seed(0)
    model, scale = WithAPlainWeight(), torch.ones(32, requires_grad=True)
    x, target = torch.randn(256, 32, requires_grad=True), torch.randint(0, 5, (256,))
    leaves = [x, model.plain[0], scale]

    def loss(out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy((out * scale)[:, :5], target)

    def gradients() -> list[torch.Tensor | None]:
        return [None if leaf.grad is None else leaf.grad.clone() for leaf in leaves]

    loss(model(x), target).backward()
    theirs = gradients()
    for leaf in leaves:
        leaf.grad = torch.full_like(leaf, 0.5) if has_gradients else None
    model.zero_grad()
    before = gradients()
    with memfit.fit_to_budget(model, (x, target), loss, budget="1GiB") as plain:
        plain_bytes = plain.plan.plain_peak_bytes
    fitted = None
    with contextlib.suppress(DoesNotFit):
        fitted = memfit.fit_to_budget(model, (x, target), loss, budget=int(share * plain_bytes))
    assert (fitted is None) == (share < 0.5)
    assert all(a is b is None or torch.equal(a, b) for a, b in zip(gradients(), before, strict=True))  # type: ignore[arg-type]
    for leaf in leaves:
        leaf.grad = None
    loss(model(x), target).backward()
    assert all(torch.equal(a, b) for a, b in zip(gradients(), theirs, strict=True))  # type: ignore[arg-type]
