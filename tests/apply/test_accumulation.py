"""Under a plan, do gradients that add up over several batches stay bit-equal, and within the budget?"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch_fit_models import job_for, normed_stack

import memfit
from memfit.model.step import leaving_no_trace, storage_bytes
from memfit.profile.fake_step import predict_step
from memfit.profile.meter.meter import record_events

ROWS, BLOCKS, PARTS, UPDATES = 2048, 6, 3, 2


def parts_of(seed: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(seed)
    return [(torch.randn(ROWS, 16), torch.randint(0, 4, (ROWS,))) for _ in range(PARTS)]


def train(model: nn.Module, parts: list[tuple[torch.Tensor, torch.Tensor]], make: Any = torch.optim.SGD) -> int:
    """Some updates, each from the gradients of several batches; the most that was alive above the start."""
    optimizer = make(model.parameters(), lr=0.1)
    torch.manual_seed(7)

    def run() -> None:
        for _ in range(UPDATES):
            for inputs, targets in parts:
                (nn.functional.cross_entropy(model(inputs), targets) / PARTS).backward()
            optimizer.step()
            optimizer.zero_grad()

    return record_events(run, torch.device("cpu")).peak_bytes


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam])
def test_a_fitted_model_trains_to_the_same_weights_when_gradients_add_up(make: type[torch.optim.Optimizer]):
    plain, model = normed_stack(BLOCKS), normed_stack(BLOCKS)
    job, parts = job_for(model, rows=ROWS), parts_of(3)
    budget = predict_step(job).plain_bytes // 2
    with memfit.fit_to_budget(model, parts[0], nn.functional.cross_entropy, job.optimizer, budget=budget):
        planned_bytes = train(model, parts, make)
    plain_bytes = train(plain, parts, make)
    ours, theirs = model.state_dict(), plain.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert planned_bytes < plain_bytes


def wide_stack() -> nn.Sequential:
    """Gradients are as large as activations here."""
    torch.manual_seed(0)
    layers = [layer for _ in range(8) for layer in (nn.Linear(128, 128), nn.Tanh())]
    return nn.Sequential(nn.Linear(16, 128), *layers, nn.Linear(128, 4))


def test_the_peak_stays_within_the_budget_while_gradients_add_up():
    model = wide_stack()
    parts = [(inputs[:256], targets[:256]) for inputs, targets in parts_of(3)]
    gradients = storage_bytes([p for p in model.parameters() if p.requires_grad])
    job = job_for(model, batch=parts[0])
    budget = predict_step(job).plain_bytes - gradients // 2
    peaks = []
    for accumulates in (False, True):
        fitted = memfit.fit_to_budget(
            model, parts[0], nn.functional.cross_entropy, job.optimizer, budget=budget, accumulates=accumulates
        )
        with fitted:
            fixed = storage_bytes([*model.parameters(), *model.buffers(), *parts[0]])
            peaks.append(fixed + train(model, parts))
        proof = fitted.fit.proof
        assert proof is not None
        assert proof.bit_equal
        assert proof.measured_peak_bytes is not None
        assert proof.measured_peak_bytes <= proof.promised_bytes
    assert peaks[0] > budget  # from the second batch on, all gradients are there before the backward
    assert peaks[1] <= budget
    assert all(parameter.grad is None for parameter in model.parameters())


def test_gradients_that_the_optimizer_never_clears_have_room_in_the_budget():
    model = wide_stack()
    batch = torch.randn(256, 16), torch.randint(0, 4, (256,))
    optimizer = torch.optim.SGD(model[-1].parameters(), lr=0.1)
    gradients = storage_bytes(list(model.parameters()))
    budget = predict_step(job_for(model, batch=batch)).plain_bytes - gradients // 2
    with memfit.fit_to_budget(model, batch, nn.functional.cross_entropy, optimizer, budget=budget) as fitted:

        def run() -> None:
            for _ in range(3):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
                optimizer.step()

        peak = record_events(run, torch.device("cpu")).peak_bytes
    assert storage_bytes([*model.parameters(), *batch]) + peak <= budget
    assert any("the optimizer does not have" in note for note in fitted.fit.notes)


def test_splitting_the_batch_gives_the_gradients_that_the_lever_speaks_of():
    model, (inputs, targets) = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4)), parts_of(5)[0]
    nn.functional.cross_entropy(model(inputs), targets).backward()
    whole = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    for part in range(4):
        rows = slice(part * ROWS // 4, (part + 1) * ROWS // 4)
        (nn.functional.cross_entropy(model(inputs[rows]), targets[rows]) / 4).backward()
    for parameter, expected in zip(model.parameters(), whole, strict=True):
        torch.testing.assert_close(parameter.grad, expected)


def test_gradients_come_back_when_there_is_no_room_for_zeros_in_their_place(monkeypatch: pytest.MonkeyPatch):
    model = normed_stack(2)
    job = job_for(model)
    job.accumulates = True
    job.run()
    before = {name: parameter.grad for name, parameter in model.named_parameters()}
    made: list[torch.Tensor] = []

    def short_of_memory(like: torch.Tensor) -> torch.Tensor:
        if len(made) == 2:
            raise RuntimeError("can't allocate memory")
        made.append(torch.zeros(like.shape))
        return made[-1]

    monkeypatch.setattr(torch, "zeros_like", short_of_memory)
    with pytest.raises(RuntimeError, match="can't allocate"), leaving_no_trace(job):
        pass
    assert all(parameter.grad is before[name] for name, parameter in model.named_parameters())
