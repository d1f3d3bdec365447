"""Are the allocator's events that a step is measured by those that torch's own profiler reports?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from memfit.profile.meter import meter
from memfit.profile.meter.meter import put_mark, record_events

CPU = torch.device("cpu")


def a_step() -> Callable[[], None]:
    """A recurrent network and a convolution, forward and backward, with marks between them."""
    torch.manual_seed(0)
    gru, convolution = nn.GRU(16, 16, 2, batch_first=True), nn.Conv1d(16, 16, 3, padding=1)
    x = torch.randn(4, 12, 16)

    def step() -> None:
        put_mark("begin")
        y = convolution(gru(x)[0].transpose(1, 2)).relu_()
        put_mark("turn")
        y.square().mean().backward()
        put_mark("done")
        for parameter in (*gru.parameters(), *convolution.parameters()):
            parameter.grad = None

    step()
    return step


def by_torch(step: Callable[[], None]) -> list[int]:
    """Bytes of all allocations, as torch.profiler reports them beside the operators."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    assert profiler.profiler is not None
    results: Any = profiler.profiler.kineto_results
    events = [event for event in results.events() if event.name() == "[memory]"]
    return [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]


def test_the_events_are_those_of_torchs_profiler_in_their_order():
    step = a_step()
    theirs = by_torch(step)
    record = record_events(step, CPU)
    assert [event.num_bytes for event in record.events] == theirs
    assert [mark.name for mark in record.marks] == ["begin", "turn", "done"]
    assert record.alive[-1] == 0


def test_operators_are_not_recorded_so_that_recording_costs_little():
    trees: list[Any] = []
    plain = meter._read
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(meter, "_read", lambda roots, device: (trees.extend(roots), plain(roots, device))[1])
        record_events(a_step(), CPU)
    assert trees
    assert not any(root.name.startswith(("aten::", "autograd::")) for root in trees)


def test_recording_ends_with_a_step_that_fails():
    def fail() -> None:
        torch.zeros(8)
        raise ValueError("middle")

    with pytest.raises(ValueError, match="middle"):
        record_events(fail, CPU)
    assert record_events(a_step(), CPU).peak_bytes > 0
