"""When memory runs out while a step is measured or proven: is it said in plain words, with the model as it was?"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch_fit_models import NormedBlock, Stack, job_for

import memfit
from memfit.errors import DoesNotFit, MemfitError
from memfit.model import out_of_memory
from memfit.model.out_of_memory import is_out_of_memory, unless_memory_runs_out
from memfit.profile import profile
from memfit.profile.fake_step import predict_step

ROWS = 2048
WORDS = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate"
)


class Greedy(NormedBlock):
    """Runs out of memory from its `nth` second run on."""

    allowed = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch._C._current_graph_task_id() != -1:
            Greedy.allowed -= 1
            if Greedy.allowed < 0:
                raise RuntimeError(f"{WORDS} 131072 bytes.")
        return super().forward(x)


def greedy_stack(allowed: int) -> Stack:
    torch.manual_seed(0)
    Greedy.allowed = allowed
    return Stack([Greedy(16) for _ in range(6)])


def failure_of(model: Stack, share: float) -> MemfitError:
    """The error of a fit; and nothing of it is left in the model."""
    job = job_for(model, rows=ROWS)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    budget = int(share * predict_step(job).plain_bytes)
    with pytest.raises(MemfitError) as caught:
        memfit.fit_to_budget(model, job.batch, nn.functional.cross_entropy, job.optimizer, budget=budget)
    assert not any("forward" in module.__dict__ for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    return caught.value


def left(monkeypatch: pytest.MonkeyPatch, num_bytes: int | None) -> None:
    monkeypatch.setattr(out_of_memory, "free_bytes", lambda: num_bytes)


def no_plain_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise RuntimeError(f"{WORDS} 1 bytes.")

    monkeypatch.setattr(profile, "profile_plain", fails)


RECOMPUTED_IN_PROFILE = 6
"""Every block once, to see what it holds in passing."""


def test_running_out_within_a_proof_says_what_was_left_and_what_the_plan_needs(monkeypatch: pytest.MonkeyPatch):
    left(monkeypatch, None)
    error = failure_of(greedy_stack(RECOMPUTED_IN_PROFILE), 0.6)
    assert error.what == "memory ran out while proving the plan; the model was left as it was"
    assert "the plan needs about" in error.found
    assert "a smaller budget or batch" in error.hint
    assert error.exit_code == 1


def test_running_out_while_measuring_block_by_block_is_the_answer_that_it_does_not_fit(
    monkeypatch: pytest.MonkeyPatch,
):
    no_plain_step(monkeypatch)
    left(monkeypatch, 64 * 1024)
    error = failure_of(greedy_stack(2), 0.6)
    assert isinstance(error, DoesNotFit)
    assert error.exit_code == 3
    assert error.what.startswith("memory ran out while measuring the step block by block")
    assert error.limit_bytes == 64 * 1024
    assert error.needed_bytes is not None
    assert error.needed_bytes > error.limit_bytes
    assert "64.0 KiB left here" in error.found


def test_with_room_left_by_the_numbers_it_is_a_failure_and_no_answer(monkeypatch: pytest.MonkeyPatch):
    no_plain_step(monkeypatch)
    left(monkeypatch, 2**30)
    error = failure_of(greedy_stack(2), 0.6)
    assert not isinstance(error, DoesNotFit)
    assert error.exit_code == 1
    assert "kernels and Python take memory beside it" in error.found


def test_what_a_failed_step_held_is_let_go_and_other_errors_pass():
    held: list[int] = []

    class Held:
        def __del__(self) -> None:
            held.append(1)

    def runs_out() -> None:
        keeper = Held()
        raise RuntimeError(f"{WORDS} {id(keeper)} bytes.")

    assert unless_memory_runs_out(runs_out) is None
    assert held == [1]
    with pytest.raises(RuntimeError, match="shapes"):
        unless_memory_runs_out(lambda: (_ for _ in ()).throw(RuntimeError("shapes do not match")))
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("shapes do not match"))
