"""Stepped in the backward, are weights, optimizer state and losses those of the plain training, or is it refused?"""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch_fit_models import left_over_bytes

import memfit
from memfit.api import fitting_loop
from memfit.apply.step_in_backward import ProgramWatch, StepInBackward, refuse_what_differs, rehearsed
from memfit.errors import CannotPull, DoesNotFit, PlanBroken, UsageError
from memfit.profile.meter.meter import record_events
from memfit.profile.reference_step import digest_of
from memfit.records.plan import decode_plan, encode_plan

optim = torch.optim
OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "SGD": optim.SGD,
    "momentum": lambda groups, **given: optim.SGD(groups, momentum=0.9, nesterov=True, **given),
    "Adam": lambda groups, **given: optim.Adam(groups, amsgrad=True, **given),
    "AdamW": optim.AdamW,
    "RMSprop": lambda groups, **given: optim.RMSprop(groups, momentum=0.5, centered=True, **given),
    "Adagrad": optim.Adagrad,
    "NAdam": optim.NAdam,
    "Adamax": optim.Adamax,
}


class Tied(nn.Module):
    """An embedding whose weight is also that of the head, and a part that only some passes use."""

    def __init__(self, words: int = 40, width: int = 16) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(4))
        self.extra = nn.Linear(width, width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.extra(x) if tokens[0, 0] % 2 else x)


def tied() -> Tied:
    torch.manual_seed(0)
    return Tied()


def groups_of(model: nn.Module) -> list[dict[str, Any]]:
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    return [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "lr": 0.05}]


def batches(num: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, 40, (3, 7), generator=generator) for _ in range(num)]


def train(model: nn.Module, optimizer: Any, tokens: list[torch.Tensor]) -> list[float]:
    scheduler = optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    losses = []
    for each in tokens:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(each).flatten(0, 1), each.flatten())
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses


def same_everywhere(model: nn.Module, plain: nn.Module, optimizer: Any, of_plain: Any) -> bool:
    weights = zip(model.parameters(), plain.parameters(), strict=True)
    mine, theirs = optimizer.state_dict(), of_plain.state_dict()
    entries = [(mine["state"][number], entry) for number, entry in theirs["state"].items()]
    states = [(mine_too[name], value) for mine_too, entry in entries for name, value in entry.items()]
    return (
        all(torch.equal(a, b) for a, b in weights)
        and mine["param_groups"] == theirs["param_groups"]
        and mine["state"].keys() == theirs["state"].keys()
        and all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in states)
    )


@pytest.mark.parametrize("foreach", [False, True], ids=["for-loop", "foreach"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_weights_state_and_losses_are_those_of_the_plain_training(name: str, foreach: bool):
    plain, model = tied(), tied()
    of_plain, optimizer = (OPTIMIZERS[name](groups_of(m), lr=0.01, foreach=foreach) for m in (plain, model))
    first, rest = batches(6)[:2], batches(6)[2:]
    for each, its_optimizer in ((plain, of_plain), (model, optimizer)):
        train(each, its_optimizer, first)  # the state is there already
    optimizer.zero_grad()
    refuse_what_differs(optimizer, model)
    said: list[str] = []
    stepping = StepInBackward(optimizer, model, said.append)
    stepping.start()
    losses = train(model, optimizer, rest)
    assert losses == train(plain, of_plain, rest)
    assert same_everywhere(model, plain, optimizer, of_plain)
    assert len(said) == 1
    assert "step()" in said[0]
    stepping.undo()
    assert train(model, optimizer, first) == train(plain, of_plain, first)
    assert same_everywhere(model, plain, optimizer, of_plain)


# ---- what the plain program would have done otherwise ----------------------------------------------------------------


def started(**options: Any) -> tuple[Tied, Any, StepInBackward]:
    model = tied()
    optimizer = optim.SGD(model.parameters(), lr=0.1, **options)
    stepping = StepInBackward(optimizer, model, lambda _: None)
    stepping.start()
    return model, optimizer, stepping


def backward(model: nn.Module) -> None:
    tokens = batches(1)[0]
    functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()


def change_rate(model: nn.Module, optimizer: Any) -> None:
    optimizer.param_groups[0]["lr"] = 0.2
    optimizer.step()


def step_twice(model: nn.Module, optimizer: Any) -> None:
    optimizer.step()
    optimizer.step()


def forget_to_clear(model: nn.Module, optimizer: Any) -> None:
    optimizer.step()
    backward(model)


def scale(model: nn.Module, optimizer: Any) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    scaler.scale(torch.ones(1))
    scaler.unscale_(optimizer)


INTERFERING: dict[str, Callable[[Any, Any], Any]] = {
    "clip by norm": lambda model, _: nn.utils.clip_grad_norm_(model.parameters(), 1.0),
    "clip by value": lambda model, _: nn.utils.clip_grad_value_(model.parameters(), 1.0),
    "read": lambda model, _: [p.grad for p in model.parameters()],
    "read by name": lambda model, _: model.head.weight.grad,
    "zeros": lambda _, optimizer: optimizer.zero_grad(set_to_none=False),
    "add up": lambda model, _: backward(model),
    "call in between": lambda model, _: model(batches(1)[0]),
    "no step": lambda _, optimizer: optimizer.zero_grad(),
    "no step, by the model": lambda model, _: model.zero_grad(),
    "set": lambda model, _: setattr(model.head.weight, "grad", torch.ones_like(model.head.weight)),
    "closure": lambda _, optimizer: optimizer.step(lambda: 0.0),
    "another rate": change_rate,
    "two steps": step_twice,
    "not cleared": forget_to_clear,
    "scaler": scale,
}


@pytest.mark.parametrize("name", INTERFERING)
def test_what_would_have_used_gradients_is_told_that_they_are_gone(name: str):
    model, optimizer, stepping = started()
    backward(model)
    with pytest.raises(PlanBroken, match="in the backward already"):
        INTERFERING[name](model, optimizer)
    stepping.undo()


def test_parameters_that_join_later_and_gradients_that_are_set_by_hand_are_stepped_by_the_optimizer():
    model, optimizer, stepping = started()
    late = nn.Parameter(torch.ones(3))
    optimizer.add_param_group({"params": [late]})
    late.grad = torch.ones(3)
    weight = model.extra.weight
    before = weight.detach().clone()
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    assert torch.equal(late.detach(), torch.ones(3) - 0.1 * torch.ones(3))
    assert torch.equal(weight.detach(), before - 0.1 * torch.ones_like(before))
    stepping.undo()


def test_undone_it_leaves_no_trace_and_copies_are_plain():
    model, optimizer, stepping = started()
    backward(model)
    optimizer.step()
    optimizer.zero_grad()
    other, loaded = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    for each in (other, loaded):
        assert all(type(p) is nn.Parameter for p in each.parameters())
        backward(each)
        assert each.head.weight.grad is not None
    stepping.undo()
    assert all(type(p) is nn.Parameter and not p._post_accumulate_grad_hooks for p in model.parameters())
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    assert "_compiled_call_impl" not in model.__dict__
    assert "step" not in optimizer.__dict__
    backward(model)
    assert nn.utils.clip_grad_norm_(model.parameters(), 1.0) > 0


# ---- which optimizers ------------------------------------------------------------------------------------------------


class ClipsByAll(optim.SGD):
    """Scales by the norm of all gradients together."""

    def step(self, closure: Any = None) -> None:
        gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack([g.norm() for g in gradients]))
        for gradient in gradients:
            gradient.div_(torch.clamp(norm, min=1.0))
        super().step()


class Counts(optim.SGD):
    """Changes its rate by the number of its steps, which it counts itself."""

    num_steps = 0

    def step(self, closure: Any = None) -> None:
        self.num_steps += 1
        for group in self.param_groups:
            group["lr"] = 0.1 / self.num_steps
        super().step()


class Draws(optim.SGD):
    """Adds noise."""

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.add_(torch.randn_like(parameter.grad), alpha=1e-30)
        super().step()


class Wraps(optim.SGD):
    """Steps another optimizer."""

    def __init__(self, parameters: Any, lr: float) -> None:
        parameters = list(parameters)
        super().__init__(parameters, lr=lr)
        self.inner = optim.SGD(parameters, lr=lr)


@pytest.mark.parametrize("make", [ClipsByAll, Counts, Draws, Wraps, lambda p, lr: optim.LBFGS(p, lr=lr)])
def test_an_optimizer_that_does_not_step_each_parameter_by_itself_is_refused(make: Any):
    model = tied()
    optimizer, state = make(model.parameters(), lr=0.1), torch.get_rng_state()
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    with pytest.raises(CannotPull):
        refuse_what_differs(optimizer, model)
    assert torch.equal(torch.get_rng_state(), state)
    assert str(before) == str((model.state_dict(), optimizer.state_dict()))


def test_hooks_of_the_user_on_parameters_or_before_the_step_are_refused():
    model = tied()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    handle = optimizer.register_step_pre_hook(lambda *_: None)
    with pytest.raises(CannotPull, match="cannot be taken"):
        refuse_what_differs(optimizer, model)
    handle.remove()
    model.head.weight.register_post_accumulate_grad_hook(lambda _: None)
    with pytest.raises(CannotPull, match="cannot be taken"):
        refuse_what_differs(optimizer, model)


class ReadsOtherWeights(torch.autograd.Function):
    """Its backward reads a weight that is nobody's gradient here, past autograd's own notes."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        ctx.weight = weight.data
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:  # type: ignore[override]
        return gradients[0] * ctx.weight.sum(), None


def test_a_rehearsal_shows_what_reads_a_parameter_after_its_step_and_leaves_it_as_it_was():
    torch.manual_seed(0)
    early, late = nn.Linear(4, 4), nn.Linear(4, 4)
    model, x = nn.ModuleList([early, late]), torch.randn(3, 4)
    before = copy.deepcopy(model.state_dict())

    def run() -> None:
        late(ReadsOtherWeights.apply(early(x), late.weight.detach())).sum().backward()

    run()
    assert early.weight.grad is not None
    expected = early.weight.grad.clone()
    model.zero_grad()
    kept: dict[str, torch.Tensor] = {}
    with rehearsed(model, list(model.parameters()), {}, lambda name, gradient: kept.update({name: gradient.clone()})):
        run()
    assert len(kept) == 4
    assert not torch.equal(kept["0.weight"], expected)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


# ---- fitted ----------------------------------------------------------------------------------------------------------


def wide(num_layers: int = 12, width: int = 256) -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    """Gradients and temporary values of the update are most of what it takes."""
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(num_layers)]
    return nn.Sequential(*blocks, nn.Linear(width, 4)), (torch.randn(64, width), torch.randint(0, 4, (64,)))


def steps(model: nn.Module, batch: Any, optimizer: Any, num: int = 3) -> tuple[list[float], int]:
    """Losses, and the most that was alive in a step above what was there before it; the state is there."""
    losses: list[float] = []

    def run() -> None:
        loss = functional.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        losses.append(loss.item())
        del loss
        optimizer.step()
        optimizer.zero_grad()

    run()
    gc.collect()
    return losses, max(record_events(run, torch.device("cpu")).peak_bytes for _ in range(num - 1))


def bytes_of(model: nn.Module, batch: Any, optimizer: Any) -> int:
    state = [t for entry in optimizer.state.values() for t in entry.values() if isinstance(t, torch.Tensor)]
    return sum(t.nbytes for t in (*model.parameters(), *batch, *state))


def smallest(model: nn.Module, batch: Any, optimizer: Any, **options: Any) -> int:
    with pytest.raises(DoesNotFit) as refused:
        memfit.fit_to_budget(model, batch, functional.cross_entropy, optimizer, budget=8 * 2**20, **options)
    assert refused.value.needed_bytes is not None
    return refused.value.needed_bytes


ALLOWED: dict[str, Any] = {"allow": ["step-in-backward"]}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:memfit. the optimizer's step:RuntimeWarning")
@pytest.mark.parametrize("foreach", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_where_the_update_is_the_peak_a_smaller_budget_holds_and_weights_stay_equal(foreach: bool, tmp_path: Path):
    (plain, batch), (model, _) = wide(), wide()
    of_plain, optimizer = (optim.Adam(m.parameters(), lr=0.01, foreach=foreach) for m in (plain, model))
    without, budget = smallest(model, batch, optimizer), smallest(model, batch, optimizer, **ALLOWED)
    assert budget < 0.8 * without
    fitted = memfit.fit_to_budget(model, batch, functional.cross_entropy, optimizer, budget=budget, **ALLOWED)
    assert [lever.name for lever in fitted.plan.applied_levers] == ["step-in-backward"]
    assert fitted.fit.proof is not None
    assert fitted.fit.proof.bit_equal
    assert not optimizer.state
    losses, peak_bytes = steps(model, batch, optimizer)
    assert losses == steps(plain, batch, of_plain)[0]
    assert same_everywhere(model, plain, optimizer, of_plain)
    assert bytes_of(model, batch, optimizer) + peak_bytes <= budget
    with pytest.raises(UsageError, match="already carries a plan"):
        memfit.fit_to_budget(model, batch, functional.cross_entropy, optimizer, budget="1GiB")
    fitted.write_plan(tmp_path / "plan.json")
    fitted.undo()
    assert losses != steps(model, batch, optimizer)[0]
    with pytest.raises(UsageError, match="there is none"):
        memfit.apply_plan(model, tmp_path / "plan.json")
    with memfit.apply_plan(model, tmp_path / "plan.json", optimizer=optimizer):
        backward_only = functional.cross_entropy(model(batch[0]), batch[1])
        backward_only.backward()
        with pytest.raises(PlanBroken):
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    assert all(type(p) is nn.Parameter for p in model.parameters())


def test_a_lever_that_cannot_be_pulled_leaves_no_trace_and_the_refusal_says_why():
    model, batch = wide()
    optimizer = ClipsByAll(model.parameters(), lr=0.1)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(DoesNotFit, match="ClipsByAll cannot be stepped parameter by parameter") as refused:
        memfit.fit_to_budget(model, batch, functional.cross_entropy, optimizer, budget="3.5MiB", **ALLOWED)
    budget = refused.value.needed_bytes
    assert budget is not None
    memfit.fit_to_budget(model, batch, functional.cross_entropy, optimizer, budget=budget, **ALLOWED).undo()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(type(p) is nn.Parameter and p.grad is None for p in model.parameters())
    assert not optimizer.state


class TwoParts(nn.Module):
    """Its loss is a sum of which each part has a backward of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.stack, _ = wide()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.stack(x)


def in_two_parts(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    functional.cross_entropy(logits, targets).backward(retain_graph=True)
    return logits.square().mean()


def test_a_step_with_two_backwards_is_refused():
    model, (_, batch) = TwoParts(), wide()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(DoesNotFit, match=r"needed in the backward after its step|gradient in two parts"):
        memfit.fit_to_budget(model, batch, in_two_parts, optimizer, budget="6.5MiB", **ALLOWED)
    assert all(type(p) is nn.Parameter and p.grad is None for p in model.parameters())


def test_gradients_that_add_up_are_refused():
    model, batch = wide()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(DoesNotFit, match="gradients add up"):
        memfit.fit_to_budget(
            model, batch, functional.cross_entropy, optimizer, budget="6.5MiB", accumulates=True, **ALLOWED
        )


def test_a_lever_that_there_is_not_is_refused():
    model, batch = wide()
    with pytest.raises(UsageError, match="no such lever"):
        memfit.fit_to_budget(model, batch, functional.cross_entropy, None, budget="64MiB", allow=["magic"])


def test_a_plan_of_format_2_still_opens():
    model, batch = wide()
    plan = memfit.fit_to_budget(model, batch, functional.cross_entropy, None, budget="64MiB").plan
    older = encode_plan(plan).replace(b'"format_version": 3', b'"format_version": 2')
    older = older.replace(b'"applied_levers": [],', b"")
    assert older != encode_plan(plan)
    assert b"applied_levers" not in older
    assert decode_plan(older).nodes == plan.nodes
    assert not decode_plan(older).applied_levers


# ---- in somebody's loop ----------------------------------------------------------------------------------------------


Loop = Callable[[], tuple[list[float], nn.Module, Any]]


def loop(zero_late: bool = False, between: Callable[[nn.Module, Any], Any] | None = None) -> Loop:
    def run() -> tuple[list[float], nn.Module, Any]:
        model, batch = wide()
        optimizer, losses = optim.Adam(model.parameters(), lr=0.01), []
        scheduler = optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
        for _ in range(6):
            if not zero_late:
                optimizer.zero_grad()
            loss = functional.cross_entropy(model(batch[0]), batch[1])
            if zero_late:
                optimizer.zero_grad()
            loss.backward()
            if between is not None:
                between(model, optimizer)
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())
        return losses, model, optimizer

    return run


def fitted_loop(run: Loop, budget: int) -> tuple[Any, Any]:
    fitter = fitting_loop(budget + left_over_bytes(), measure_every=1, **ALLOWED)
    fitter.start()
    try:
        found = run()
    finally:
        record = fitter.stop()
    return found, record


@pytest.mark.slow
@pytest.mark.parametrize("zero_late", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_loop_is_stepped_in_its_backward_where_nothing_else_fits(zero_late: bool):
    losses, plain, of_plain = loop(zero_late)()
    own, weights = sum(p.nbytes for p in plain.parameters()), [digest_of(p) for p in plain.parameters()]
    del plain, of_plain  # what is alive counts
    (found, model, optimizer), record = fitted_loop(loop(zero_late), int(3.8 * own))
    assert [lever.name for lever in record.fits[-1].plan.applied_levers] == ["step-in-backward"]
    assert record.within_budget
    assert found == losses
    assert [digest_of(p) for p in model.parameters()] == weights
    assert all(type(p) is nn.Parameter for p in model.parameters())
    assert not optimizer._optimizer_step_pre_hooks


def scale_rate(model: nn.Module, optimizer: Any) -> None:
    optimizer.param_groups[0]["lr"] *= 0.9


def watched(between: Callable[[Any, Any], Any]) -> str:
    """What is noted of a program that does something between its backward and its step."""
    model, batch = wide(1)
    optimizer = optim.Adam(model.parameters())
    functional.cross_entropy(model(batch[0]), batch[1]).backward()
    watch = ProgramWatch(optimizer, model)
    watch.start()
    between(model, optimizer)
    optimizer.step()
    optimizer.zero_grad()
    found = watch.stop()
    assert all(type(p) is nn.Parameter for p in model.parameters())
    assert not optimizer._optimizer_step_pre_hooks
    return found


@pytest.mark.parametrize(
    ("between", "reason"),
    [
        (lambda *_: None, ""),
        (lambda model, _: nn.utils.clip_grad_norm_(model.parameters(), 1.0), "reads gradients after its backward"),
        (scale_rate, "changes options"),
        (lambda model, _: setattr(model[0][0].weight, "grad", None), "drops gradients without a step"),
        (lambda _, optimizer: optimizer.step(), "step 2 times"),
        (lambda _, optimizer: optimizer.step(lambda: 0.0), "closure"),
    ],
    ids=["nothing", "clips", "changes the rate", "drops", "steps twice", "closure"],
)
def test_what_a_program_does_with_its_gradients_is_noted(between: Any, reason: str):
    found = watched(between)
    assert found == "" if not reason else reason in found


def test_a_loop_that_clips_is_refused_before_a_weight_is_wrong():
    own = sum(p.nbytes for p in wide()[0].parameters())
    with pytest.raises(DoesNotFit, match=r"reads gradients after its backward, in .*clip_grad"):
        fitted_loop(loop(between=lambda model, _: nn.utils.clip_grad_norm_(model.parameters(), 1.0)), int(3.8 * own))
