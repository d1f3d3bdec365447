"""Is what an optimizer's step takes, predicted from a few stand-ins, what the real step takes?"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from memfit.errors import UsageError
from memfit.model.step import job_of
from memfit.profile.meter.meter import record_events
from memfit.profile.optimizer_update import _is_cut, _of_one, _of_some, measure_update

OPTIMIZERS: dict[str, Any] = {
    "AdamW, one after the other": lambda parameters: torch.optim.AdamW(parameters, foreach=False),
    "AdamW as it is": torch.optim.AdamW,
    "Adam, together": lambda parameters: torch.optim.Adam(parameters, foreach=True),
    "SGD with momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "RMSprop": torch.optim.RMSprop,
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_takes_in_passing_what_was_predicted(name: str):
    model = nn.Sequential(nn.Embedding(400, 256), *(nn.Linear(256, 256) for _ in range(6)), nn.Linear(256, 64))
    optimizer = OPTIMIZERS[name](model.parameters())
    job = job_of(model, torch.randint(0, 400, (8,)), lambda output: output.square().mean(), optimizer)
    predicted = measure_update(job)
    job.run()
    optimizer.step()  # makes the state
    job.run()
    taken_bytes = record_events(optimizer.step, job.device).peak_bytes
    assert predicted.transient_bytes == pytest.approx(taken_bytes, rel=0.15, abs=4096)
    assert predicted.transient_bytes >= 0.95 * taken_bytes


def test_a_step_of_parameters_of_many_sizes_takes_what_was_predicted():
    """What is left of one parameter while the next is updated is found from parameters of unequal sizes."""
    sizes = [64, 256, 1024, 4096, 9000, 9000, 100]
    model = nn.ParameterList([nn.Parameter(torch.ones(size)) for size in sizes])
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    taken_bytes = 0
    for _ in range(2):  # the first step makes the state
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        taken_bytes = record_events(optimizer.step, torch.device("cpu")).peak_bytes
    fresh = torch.optim.AdamW(model.parameters(), foreach=False)
    predicted = measure_update(job_of(model, None, None, fresh))
    assert 0.99 * taken_bytes <= predicted.transient_bytes <= 1.02 * taken_bytes


ELEMENTWISE_CASES: dict[str, Any] = {
    "SGD": lambda ps: torch.optim.SGD(ps, lr=0.1),
    "SGD, Nesterov": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "SGD, foreach, ascending": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, maximize=True, foreach=True),
    "Adam": torch.optim.Adam,
    "Adam, amsgrad, decay": lambda ps: torch.optim.Adam(ps, amsgrad=True, weight_decay=0.1),
    "Adam, foreach, amsgrad": lambda ps: torch.optim.Adam(ps, amsgrad=True, foreach=True),
    "Adam, fused": lambda ps: torch.optim.Adam(ps, fused=True),
    "AdamW, capturable": lambda ps: torch.optim.AdamW(ps, maximize=True),
    **{
        name: getattr(torch.optim, name)
        for name in ("NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop", "Rprop", "ASGD")
    },
    "RMSprop, centered": lambda ps: torch.optim.RMSprop(ps, centered=True, momentum=0.9, foreach=True),
}


@pytest.mark.parametrize("has_state", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", ELEMENTWISE_CASES)
def test_a_large_parameter_takes_what_the_line_through_its_parts_says(name: str, dtype: torch.dtype, has_state: bool):
    """To the byte: state and what is held in passing."""
    model = nn.Linear(300, 601, bias=False, dtype=dtype)
    optimizer = ELEMENTWISE_CASES[name](model.parameters())
    job = job_of(model, torch.ones(2, 300, dtype=dtype), lambda output: output.square().mean(), optimizer)
    if has_state:
        job.run()
        optimizer.step()
    group = optimizer.param_groups[0]
    assert _is_cut(optimizer, model.weight)
    by_parts, whole = _of_one(job, optimizer, group, model.weight), _of_some(job, optimizer, group, [model.weight])
    assert (by_parts.state_bytes, by_parts.transient_bytes) == (whole.state_bytes, whole.transient_bytes)


def test_measuring_the_update_of_a_large_parameter_holds_a_part_of_it():
    model = nn.Linear(1000, 1000, bias=False)
    job = job_of(
        model, torch.ones(2, 1000), lambda output: output.square().mean(), torch.optim.Adam(model.parameters())
    )
    largest: list[int] = []
    zeros = torch.Tensor.new_zeros

    def noted(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        made = zeros(self, *args, **kwargs)
        largest.append(made.numel())
        return made

    torch.Tensor.new_zeros = noted
    try:
        update = measure_update(job)
    finally:
        torch.Tensor.new_zeros = zeros
    assert update.state_bytes == 2 * 4_000_000 + 4
    assert 0 < max(largest) <= model.weight.numel() // 8


def test_an_optimizer_that_looks_at_whole_matrices_is_measured_whole():
    model = nn.Linear(300, 601, bias=False)
    optimizer = torch.optim.Adafactor(model.parameters())
    assert not _is_cut(optimizer, model.weight)


class Slow(torch.optim.SGD):
    """Holds copies of the parameters, by position."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, lr=0.1)
        self.slow = [p.detach().clone() for p in parameters]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter, slow in zip(self.param_groups[0]["params"], self.slow, strict=False):
            slow.lerp_(parameter, 0.5)


def test_tensors_on_an_optimizer_are_not_written_into_where_its_step_is_measured():
    model = nn.Linear(8, 8, bias=False)
    optimizer = Slow(list(model.parameters()))
    before = optimizer.slow[0].clone()
    measure_update(job_of(model, torch.ones(2, 8), torch.sum, optimizer))
    assert torch.equal(optimizer.slow[0], before)


def test_a_step_that_cannot_be_taken_with_one_parameter_is_refused_by_name():
    model = nn.Linear(8, 4)
    optimizer = Slow(list(model.parameters()))
    with pytest.raises(UsageError, match="the step of Slow could not be measured"):
        measure_update(job_of(model, torch.ones(2, 8), torch.sum, optimizer))
