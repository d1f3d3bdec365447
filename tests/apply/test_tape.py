"""A recorded pass that is played again: does it do what the loop did, and leave the loop's own tensors alone?"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from memfit.errors import UsageError
from memfit.fit.recorded_pass import PassRecorder, Tape, refuse_unplayable


def recorded(model: nn.Module, loop: Callable[[Callable[..., Any]], torch.Tensor]) -> Tape:
    """A tape of a loop's body, which calls the model through what it is given and returns its loss."""
    tape = Tape()
    recorder = PassRecorder(tape)
    recorder.begin()
    try:
        loss = loop(lambda *args, **kwargs: recorder.call_module(model, model, args, kwargs))
        tape.close(torch.autograd.backward, (loss,), {})
    finally:
        recorder.end()
    return tape


def gradients(model: nn.Module, run: Callable[[], Any]) -> list[torch.Tensor]:
    model.zero_grad()
    run()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def masked(call: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
    logits = call(x).clone()
    logits[:, 0] = -5.0
    return F.cross_entropy(logits, torch.ones(len(x), dtype=torch.long))


def added_in_place(call: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(())
    total += call(x).square().mean()
    total.mul_(3.0)
    return total


@pytest.mark.parametrize("body", [masked, added_in_place])
def test_what_a_loop_writes_in_place_into_its_own_results_is_done_again(body: Callable[..., torch.Tensor]):
    model, x = nn.Linear(4, 3), torch.randn(5, 4)
    tape = recorded(model, lambda call: body(call, x))
    refuse_unplayable(tape)
    expected = gradients(model, lambda: body(model, x).backward())
    assert all(torch.equal(a, b) for a, b in zip(expected, gradients(model, tape.play), strict=True))


def test_statistics_that_a_loop_keeps_are_not_counted_twice():
    model, x, running, history = nn.Linear(4, 3), torch.randn(5, 4), torch.zeros(()), torch.zeros(2)

    def body(call: Callable[..., Any]) -> torch.Tensor:
        loss = call(x).square().mean()
        with torch.no_grad():
            running.add_(loss)
            history[0] = loss
        return loss

    tape = recorded(model, body)
    before = running.clone(), history.clone()
    refuse_unplayable(tape)
    tape.play()
    assert torch.equal(running, before[0])
    assert torch.equal(history, before[1])


def test_a_centre_that_moves_with_the_loss_is_moved_in_a_copy():
    model, x, centre = nn.Linear(4, 3), torch.randn(5, 4), torch.zeros(3)

    def body(call: Callable[..., Any]) -> torch.Tensor:
        output = call(x)
        with torch.no_grad():
            centre.mul_(0.9).add_(output.mean(0), alpha=0.1)
        return (output - centre).square().mean()

    tape = recorded(model, body)
    refuse_unplayable(tape)
    moved = centre.clone()
    found = gradients(model, tape.play)
    assert torch.equal(centre, moved)
    centre.zero_()
    assert all(torch.equal(a, b) for a, b in zip(gradients(model, lambda: body(model).backward()), found, strict=True))


def test_a_made_tensor_in_an_object_that_nobody_opens_is_refused():
    model, x = nn.Linear(4, 4), torch.randn(5, 4)

    class Taking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 1)

        def forward(self, given: Any) -> torch.Tensor:
            return self.inner(given.states).mean()

    second = Taking()
    tape = Tape()
    recorder = PassRecorder(tape)
    recorder.begin()
    try:
        states = recorder.call_module(model, model, (x,), {})
        loss = recorder.call_module(second, second, (SimpleNamespace(states=states),), {})
        tape.close(torch.autograd.backward, (loss,), {})
    finally:
        recorder.end()
    with pytest.raises(UsageError):
        refuse_unplayable(tape)
