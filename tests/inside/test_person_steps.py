"""Is a step what a person calls a step: one per iteration, however many optimizers take part in it?"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from memfit.inside import this_process
from memfit.runfolder.marks import MarksFile, read_marks

X = torch.randn(4, 8)
NUM_LAYERS, NUM_ITERATIONS = 8, 12


@pytest.fixture(params=["full", "light"])
def recording(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Marks of this process, with every step marked in full or, after the first ones, only as a whole."""
    monkeypatch.setattr("memfit.inside.marks.LONGEST_PAUSE_NS", 0 if request.param == "full" else 10**12)
    monkeypatch.setattr("memfit.inside.marks.PHASE_SHARE", 1e-9 if request.param == "light" else 1.0)
    assert this_process.start(str(tmp_path))
    yield tmp_path
    this_process.stop()


def marks_of(folder: Path) -> MarksFile:
    this_process.stop()
    (path,) = folder.glob("marks-*.txt")
    found = read_marks(path, process=0, clock_start_ns=0)
    assert found is not None
    return found


def with_an_optimizer_in_each_layer(model: nn.Module) -> None:
    """Each layer steps as soon as its gradient is there, as to save the memory of all gradients at once."""
    for layer in model.children():
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
        waiting = {id(parameter) for parameter in layer.parameters()}
        seen: set[int] = set()

        def step(parameter: torch.Tensor, optimizer=optimizer, waiting=waiting, seen=seen) -> None:
            seen.add(id(parameter))
            if seen == waiting:
                seen.clear()
                optimizer.step()
                optimizer.zero_grad()

        for parameter in layer.parameters():
            parameter.register_post_accumulate_grad_hook(step)


def test_an_optimizer_per_layer_that_steps_inside_of_backward_makes_one_step_per_iteration(recording: Path):
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(NUM_LAYERS)))
    with_an_optimizer_in_each_layer(model)
    for _ in range(NUM_ITERATIONS):
        model(X).sum().backward()
    steps = marks_of(recording).steps
    assert steps.step.tolist() == list(range(1, NUM_ITERATIONS + 1))
    assert all(steps.peak_bytes > 0)


def test_a_backward_that_failed_half_way_does_not_swallow_the_next_steps(recording: Path):
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(NUM_LAYERS)))
    with_an_optimizer_in_each_layer(model)

    def fail(_: torch.Tensor) -> None:
        raise ArithmeticError

    for number in range(NUM_ITERATIONS):
        x = X.clone().requires_grad_()
        if number == 5:
            x.register_hook(fail)
            with pytest.raises(ArithmeticError):
                model(x).sum().backward()
        else:
            model(x).sum().backward()
    assert len(marks_of(recording).steps) == NUM_ITERATIONS - 1


def test_updates_inside_of_reentrant_checkpoints_belong_to_the_whole_backward(recording: Path):
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
    with_an_optimizer_in_each_layer(model)
    for _ in range(NUM_ITERATIONS):
        x = X.clone().requires_grad_()
        for layer in model:
            x = checkpoint(layer, x, use_reentrant=True)
        assert isinstance(x, torch.Tensor)
        x.sum().backward()
    assert len(marks_of(recording).steps) == NUM_ITERATIONS


def test_two_networks_that_take_turns_make_a_step_each(recording: Path):
    models = [nn.Linear(8, 8), nn.Linear(8, 8)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in models]
    for _ in range(NUM_ITERATIONS):
        for model, optimizer in zip(models, optimizers, strict=True):
            model(X).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    steps = marks_of(recording).steps
    assert steps.total == 2 * NUM_ITERATIONS
    alone = steps.group_size == 1
    assert steps.optimizer[alone].tolist() == [0, 1] * (int(alone.sum()) // 2) + [0] * (int(alone.sum()) % 2)
