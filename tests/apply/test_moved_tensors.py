"""Does a step compute the same when saved tensors lie on a disk until the backward asks, and is nothing left there?"""

from __future__ import annotations

import copy
import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import memfit
from memfit.apply.checkpoints import AppliedPlan
from memfit.apply.operators import attach_operators
from memfit.errors import DoesNotFit, PlanBroken, StorageError, UsageError
from memfit.model.step import Job, job_of
from memfit.plan.operators import OperatorPlanner, Sets
from memfit.profile.meter.meter import record_events
from memfit.profile.operators import trace_operators
from memfit.records.plan import Link, read_plan

WIDTH, ROWS = 32, 256
A_DISK = Link(name="disk", out_bytes_per_second=1e9, in_bytes_per_second=1e9)


class Functions(nn.Module):
    """Layers without a module; a test may let something happen between them."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(WIDTH, WIDTH) / 6 for _ in range(6))
        self.between: Callable[[torch.Tensor], torch.Tensor] = lambda x: x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, weight in enumerate(self.weights):
            x = F.gelu(x @ weight)
            x = self.between(x) if number == 2 else x
        return x


def loss_of(out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(out[:, :5], target)


def job_for(model: nn.Module) -> Job:
    torch.manual_seed(1)
    return job_of(model, (torch.randn(ROWS, WIDTH), torch.randint(0, 5, (ROWS,))), loss_of, None)


def outcome(job: Job) -> tuple[list[torch.Tensor], int]:
    job.model.zero_grad()
    record = record_events(job.run, torch.device("cpu"))
    left = [job.seen["loss"], *(p.grad.clone() for p in job.model.parameters() if p.grad is not None)]
    job.model.zero_grad()
    return left, record.peak_bytes


def same(mine: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    return len(mine) == len(theirs) and all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


@contextmanager
def moving_everything(job: Job, folder: Path) -> Iterator[int]:
    """A model that moves all it may; the promised peak."""
    trace = trace_operators(job)
    assert trace is not None
    planner = OperatorPlanner(trace, A_DISK)
    found = planner.replayer.replay(
        *Sets().dropping((n for n, each in enumerate(trace.tensors) if each.may_move), move=True)
    )
    assert len(found.sets.moved) >= 10
    applied = AppliedPlan(job.model, [], ())
    attach_operators(applied, planner.choice(found, 0), str(folder))
    try:
        yield found.peak_bytes
    finally:
        applied.undo()


def open_files(folder: Path) -> list[int]:
    """Sizes of the files of a folder that this process holds open, those without a name included."""
    descriptors = [int(each) for each in os.listdir("/proc/self/fd")]
    own = [each for each in descriptors if os.path.realpath(f"/proc/self/fd/{each}").startswith(str(folder))]
    return [os.fstat(each).st_size for each in own]


@pytest.fixture
def job() -> Job:
    torch.manual_seed(0)
    return job_for(Functions())


def test_everything_that_is_saved_can_be_moved_and_takes_what_was_promised(job: Job, tmp_path: Path):
    theirs, plain_bytes = outcome(job)
    with moving_everything(job, tmp_path) as promised_bytes:
        for _ in range(2):  # places in the file are used again
            mine, peak_bytes = outcome(job)
            assert same(mine, theirs)
            assert peak_bytes == promised_bytes < 0.4 * plain_bytes
        (size,) = open_files(tmp_path)
        assert size < plain_bytes
    assert not open_files(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_graph_is_run_backward_twice_or_never(job: Job, tmp_path: Path):
    loss = loss_of(job.model(job.batch[0]), job.batch[1])
    loss.backward()
    theirs = [p.grad.clone() * 2.0 for p in job.model.parameters() if p.grad is not None]
    job.model.zero_grad()
    with moving_everything(job, tmp_path):
        job.model(job.batch[0])  # no backward follows
        loss = loss_of(job.model(job.batch[0]), job.batch[1])
        with torch.no_grad():
            job.model(job.batch[0])
        loss.backward(retain_graph=True)
        loss.backward()
        mine = [p.grad.clone() for p in job.model.parameters() if p.grad is not None]
    assert same(mine, theirs)


def test_what_is_written_into_after_it_was_moved_ends_the_backward(job: Job, tmp_path: Path):
    def between(x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(x)
        return y * 1.0 + y.add_(1.0) * 0.0

    job.model.between = lambda x: torch.tanh(x) * 1.0  # type: ignore[assignment]
    with moving_everything(job, tmp_path):
        job.model.between = between  # type: ignore[assignment]
        with pytest.warns(RuntimeWarning, match="add_"), pytest.raises(PlanBroken, match="written into"):
            job.run()
    job.model.zero_grad()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        job.run()  # as without a plan


def test_a_forward_of_other_operators_keeps_what_comes_after_and_computes_the_same(job: Job, tmp_path: Path):
    with moving_everything(job, tmp_path):
        job.model.between = lambda x: torch.sin(x) * 2.0  # type: ignore[assignment]
        with pytest.warns(RuntimeWarning, match="sin"):
            mine, _ = outcome(job)
    theirs, _ = outcome(job)
    assert same(mine, theirs)


@pytest.mark.parametrize(("call", "words"), [("pwrite", "did not take"), ("preadv", "did not give back")])
def test_a_disk_that_fails_in_the_middle_of_a_step_is_said(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, words: str
):
    def failing(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    theirs, _ = outcome(job)
    with moving_everything(job, tmp_path):
        with monkeypatch.context() as patched:
            patched.setattr(f"memfit.apply.disk_store.os.{call}", failing)
            with pytest.raises(StorageError, match=words):
                job.run()
        assert same(outcome(job)[0], theirs)


def test_with_a_folder_a_model_without_blocks_fits_into_less_and_its_plan_asks_for_one(job: Job, tmp_path: Path):
    model, plain = job.model, copy.deepcopy(job.model)
    needed = []
    for disk in (None, str(tmp_path)):
        with pytest.raises(DoesNotFit) as refusal:
            memfit.fit_to_budget(model, job.batch, loss_of, budget=100_000, disk=disk)
        needed.append(refusal.value.needed_bytes or 0)
        assert ("disk=" in (refusal.value.hint or "")) == (disk is None)  # only who gave none is told of it
    assert needed[1] < 0.85 * needed[0]
    fitted = memfit.fit_to_budget(model, job.batch, loss_of, budget=needed[1], disk=str(tmp_path))
    assert fitted.plan.moved_bytes > 0
    assert fitted.fit.proof is not None
    assert fitted.fit.proof.bit_equal
    assert any(decision.what.startswith("move ") for decision in fitted.plan.decisions)
    theirs, _ = outcome(job_for(plain))
    assert same(outcome(job_for(model))[0], theirs)
    fitted.write_plan(tmp_path / "plan.json")
    fitted.undo()
    assert read_plan(tmp_path / "plan.json").moved_bytes == fitted.plan.moved_bytes
    with pytest.raises(UsageError, match="no folder"):
        memfit.apply_plan(copy.deepcopy(plain), tmp_path / "plan.json")
    again = copy.deepcopy(plain)
    with memfit.apply_plan(again, tmp_path / "plan.json", disk=str(tmp_path)):
        assert same(outcome(job_for(again))[0], theirs)
