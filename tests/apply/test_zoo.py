"""Do models of many families compute the same after fitting, within their budget, by other eyes than memfit's?

Loss, gradients, buffers and random state of a plain copy are compared with the fitted model's by digests, on batches
that the plan was not made with. The peak is the highest sum of the events of torch's own profiler.
"""

from __future__ import annotations

import copy
import hashlib
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch_zoo import FAMILIES, REFUSED, Case

import memfit
from memfit.errors import DoesNotFit, UsageError

pytest.importorskip("transformers")
OF_PLAIN = 0.8
FAR_TOO_LITTLE = 0.3
"""Parameters, gradients and optimizer state alone take more in most of them."""


def digest(tensor: torch.Tensor | None) -> str:
    if tensor is None:
        return ""
    dense = tensor.to_dense() if tensor.is_sparse else tensor
    return hashlib.sha256(dense.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()).hexdigest()


def loss_of(case: Case, model: nn.Module, batch: Any) -> torch.Tensor:
    if isinstance(batch, dict):
        return model(**batch).loss
    assert case.loss is not None
    return case.loss(model(batch[0]), batch[1])


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)


def step(case: Case, model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> list[str]:
    """One step of training; digests of what it left."""
    loss = loss_of(case, model, batch)
    loss.backward()
    found = [digest(loss), *(digest(p.grad) for p in model.parameters())]
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return found


def trained(case: Case, model: nn.Module, batches: list[Any]) -> tuple[list[str], int]:
    """Digests of everything that some steps leave, and the peak of the last step with all that was there before it."""
    torch.manual_seed(7)
    optimizer, found = optimizer_of(model), []
    for batch in batches[:-1]:
        found += step(case, model, optimizer, batch)
    state = [value for each in optimizer.state.values() for value in each.values() if isinstance(value, torch.Tensor)]
    there = [*model.parameters(), *model.buffers(), *state, *_tensors(batches[-1])]
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        found += step(case, model, optimizer, batches[-1])
    assert profiler.profiler is not None
    results: Any = profiler.profiler.kineto_results
    events = results.events()
    peak, alive = 0, 0
    for event in sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        alive += event.nbytes()
        peak = max(peak, alive)
    found += [*map(digest, model.buffers()), digest(torch.get_rng_state())]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in there if not t.is_sparse}
    return found, peak + sum(storages.values())


def _tensors(batch: Any) -> list[torch.Tensor]:
    return list(batch.values()) if isinstance(batch, dict) else list(batch)


def traces_of(model: nn.Module) -> list[Any]:
    """What a refusal, or fitting itself, must not have changed."""
    tensors = [digest(t) for t in (*model.parameters(), *model.buffers())]
    hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]
    return [tensors, hooks, [p.grad for p in model.parameters()], digest(torch.get_rng_state())]


def fitted(case: Case, batch: Any, budget_bytes: int) -> tuple[Any, int]:
    """The fitted model and its budget: the smallest that is named where the first does not hold."""
    before = traces_of(case.model)
    try:
        return memfit.fit_to_budget(
            case.model, batch, case.loss, optimizer_of(case.model), budget=budget_bytes
        ), budget_bytes
    except DoesNotFit as refusal:
        assert traces_of(case.model) == before
        needed = refusal.needed_bytes or 0
        return memfit.fit_to_budget(case.model, batch, case.loss, optimizer_of(case.model), budget=needed), needed


QUICK = ("llama", "t5", "vit", "mixtral_with_router_loss", "mamba", "packed_lstm", "unet", "low_rank_adapters")
"""One of each kind; the others take longer than `make test` may."""


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES]
)
def test_a_fitted_model_computes_the_same_within_its_budget(name: str):
    check(name, OF_PLAIN)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_the_smallest_budget_that_is_named_holds(name: str):
    check(name, FAR_TOO_LITTLE)


def check(name: str, of_plain: float) -> None:
    """Fit a model into a share of its plain peak, or into what the refusal names, and train it beside a plain copy."""
    torch.manual_seed(0)
    case = FAMILIES[name]()
    case.model.train()
    plain = copy.deepcopy(case.model)
    batch, batches = case.batch(), [case.batch() for _ in range(2)]
    theirs, plain_bytes = trained(case, copy.deepcopy(plain), batches)
    torch.manual_seed(1)
    before = traces_of(case.model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        fit, budget_bytes = fitted(case, batch, int(of_plain * plain_bytes))
    assert traces_of(case.model) == before
    mine, peak_bytes = trained(case, case.model, batches)
    assert mine == theirs
    assert peak_bytes <= budget_bytes + 64
    fit.undo()
    assert not any("forward" in module.__dict__ for module in case.model.modules())


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_fitted_is_refused_by_name_and_left_as_it_was(name: str):
    torch.manual_seed(0)
    make, reason = REFUSED[name]
    case = make()
    before = traces_of(case.model)
    batch = case.batch()
    before[-1] = digest(torch.get_rng_state())
    with pytest.raises(UsageError, match=reason):
        memfit.fit_to_budget(case.model, batch, case.loss, optimizer_of(case.model), budget="64MiB")
    assert traces_of(case.model) == before
