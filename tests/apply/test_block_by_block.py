"""Is a model fitted where its plain step is too large: never run, measured block by block, and still proven?"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch_fit_models import Drifting, Jittery, NormedBlock, Stack, job_for, normed_stack

import memfit
from memfit.errors import PredictionFailed, UsageError
from memfit.model import out_of_memory
from memfit.model.module_state import State
from memfit.model.step import Job
from memfit.profile import profile as torch_profile
from memfit.profile.block_by_block import block_nodes, profile_blocks, too_large
from memfit.profile.fake_step import predict_step
from memfit.profile.plain_step import Profile, profile_plain
from memfit.profile.profile import profile_job
from memfit.records.plan import Checkpoint, Stage, stages_of

ROWS, BLOCKS = 2048, 6
CROSS_ENTROPY = nn.functional.cross_entropy
ALONE, IN_RUNS = 2**40, 1
"""Budgets under which blocks are recomputed one by one, and within runs of blocks."""


def job_with(model: nn.Module, limit_bytes: int) -> Job:
    job = job_for(model, rows=ROWS)
    job.limit_bytes = limit_bytes
    return job


def block_profile(model: nn.Module, limit_bytes: int) -> Profile:
    return profile_blocks(job_with(model, limit_bytes), 1, "too large")


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(5) for layer in (nn.Linear(16, 16), nn.ReLU())), nn.Linear(16, 4))


@pytest.mark.parametrize("limit_bytes", [ALONE, IN_RUNS])
@pytest.mark.parametrize("make", [lambda: normed_stack(BLOCKS), mlp], ids=["blocks", "layers"])
def test_block_by_block_gives_the_bytes_that_the_plain_step_gives(make: Callable[[], nn.Module], limit_bytes: int):
    plain = profile_plain(job_for(make(), rows=ROWS), 1).chain
    blocks = block_profile(make(), limit_bytes).chain
    assert [stage.name for stage in blocks.stages] == [stage.name for stage in plain.stages]
    for ours, theirs in zip(blocks.stages, plain.stages, strict=True):
        transients = ("forward_transient_bytes", "backward_transient_bytes") if ours.recomputable else ()
        for name in ("output_bytes", "saved_bytes", "gradient_bytes", *transients):
            assert getattr(ours, name) == pytest.approx(getattr(theirs, name), abs=8192), (ours.name, name)
        assert (ours.recomputable, ours.joins_next) == (theirs.recomputable, theirs.joins_next)
        assert ours.forward_seconds >= 0.0
        assert ours.backward_seconds >= 0.0
    assert blocks.fixed == plain.fixed


@pytest.mark.parametrize("limit_bytes", [ALONE, IN_RUNS])
def test_a_block_that_saves_something_else_the_second_time_is_named_and_kept(limit_bytes: int):
    torch.manual_seed(0)
    model = Stack([NormedBlock(16), Drifting(16), NormedBlock(16), NormedBlock(16)])
    profile = block_profile(model, limit_bytes)
    kept = [stage.name for stage in profile.chain.stages if stage.name.startswith("blocks") and not stage.recomputable]
    assert kept == ["blocks.1"]
    assert any(note.startswith("blocks.1 computes something else") for note in profile.notes)


def test_every_stage_is_recomputed_alone_and_runs_end_where_they_must():
    sizes = {"forward_seconds": 0.0, "backward_seconds": 0.0, "output_bytes": 0, "saved_bytes": 0}
    stages = [Stage(name=str(i), recomputable=i != 4, joins_next=i not in (1, 3, 4), **sizes) for i in range(9)]
    for length in (1, 2, 3, 9):
        nodes = block_nodes(stages, length)
        assert list(stages_of(nodes)) == list(range(9))
        runs = [list(stages_of((node,))) for node in nodes if isinstance(node, Checkpoint)]
        assert max(len(run) for run in runs) <= length
        assert not any(set(run) >= {i, i + 1} for run in runs for i in (1, 3, 4))
    assert [list(stages_of((node,))) for node in block_nodes(stages, 9)] == [[0, 1], [2, 3], [4], [5, 6, 7, 8]]


# ---- when ----------------------------------------------------------------------------------------------------------


def left(monkeypatch: pytest.MonkeyPatch, num_bytes: int | None) -> None:
    monkeypatch.setattr(out_of_memory, "free_bytes", lambda: num_bytes)


def test_only_a_step_that_this_machine_cannot_hold_is_too_large(monkeypatch: pytest.MonkeyPatch):
    job = job_with(normed_stack(BLOCKS), 2**20)
    plain_bytes = predict_step(job).plain_bytes
    for left_bytes, is_too_large in ((None, False), (plain_bytes // 2, True), (2 * plain_bytes, False)):
        left(monkeypatch, left_bytes)
        assert bool(too_large(job)) == is_too_large
    left(monkeypatch, plain_bytes // 2)
    job.limit_bytes = None
    assert not too_large(job)


def test_what_is_predicted_is_near_what_the_plain_step_takes_and_leaves_no_trace():
    model = normed_stack(BLOCKS)
    job = job_for(model, rows=ROWS)
    before = dict(model.named_parameters()) | dict(model.named_buffers())
    values = {name: tensor.detach().clone() for name, tensor in before.items()}
    predicted = predict_step(job)
    after = dict(model.named_parameters()) | dict(model.named_buffers())
    assert all(after[name] is before[name] and torch.equal(after[name], values[name]) for name in before)
    assert all(parameter.grad is None for parameter in model.parameters())
    profile = profile_plain(job, 1)
    assert profile.plain_record_peak_bytes is not None
    fixed = sum(t.nbytes for t in [*before.values(), *job.batch])
    assert predicted.plain_bytes == pytest.approx(fixed + profile.plain_record_peak_bytes, rel=0.15)


def test_a_plain_step_that_runs_out_of_memory_is_not_run_again(monkeypatch: pytest.MonkeyPatch):
    def fails(*_: object) -> Profile:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")

    monkeypatch.setattr(torch_profile, "profile_plain", fails)
    profile = profile_job(job_for(normed_stack(2), rows=64), 1)
    assert profile.plain_record_peak_bytes is None
    assert any("ran out of memory" in note for note in profile.notes)


def test_another_error_of_the_plain_step_is_raised_as_it_is(monkeypatch: pytest.MonkeyPatch):
    def fails(*_: object) -> Profile:
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(torch_profile, "profile_plain", fails)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        profile_job(job_for(normed_stack(2), rows=64), 1)


def test_a_step_that_needs_values_says_that_it_cannot_be_predicted():
    class Looks(Stack):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * (1.0 if float(x.sum()) > 0 else 2.0)

    with pytest.raises(PredictionFailed, match="could not be found without running it"):
        block_profile(Looks([NormedBlock(16) for _ in range(3)]), ALONE)


# ---- fitted --------------------------------------------------------------------------------------------------------


def test_a_model_is_fitted_without_its_plain_step_and_trains_to_the_same_weights(monkeypatch: pytest.MonkeyPatch):
    plain, fitted_model = normed_stack(BLOCKS), normed_stack(BLOCKS)
    job = job_for(fitted_model, rows=ROWS)
    budget = predict_step(job).plain_bytes // 2
    left(monkeypatch, budget)
    monkeypatch.setattr(torch_profile, "profile_plain", None)  # whoever calls it fails
    with memfit.fit_to_budget(fitted_model, job.batch, CROSS_ENTROPY, job.optimizer, budget=budget) as fitted:
        proof = fitted.fit.proof
        assert proof is not None
        assert proof.bit_equal
        assert proof.measured_peak_bytes is not None
        assert proof.measured_peak_bytes <= budget
        assert any("block by block" in note for note in fitted.fit.notes)
        for model in (plain, fitted_model):
            step = job_for(model, rows=ROWS)
            assert step.optimizer is not None
            for _ in range(2):
                step.optimizer.zero_grad()
                step.run()
                step.optimizer.step()
    ours, theirs = fitted_model.state_dict(), plain.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_wrong_gradient_is_noticed_by_its_digest(monkeypatch: pytest.MonkeyPatch):
    model = normed_stack(BLOCKS)
    job = job_for(model, rows=ROWS)
    budget = predict_step(job).plain_bytes // 2
    left(monkeypatch, budget)
    monkeypatch.setattr(State, "lay_buffers", lambda self: None)
    with pytest.raises(memfit.errors.MemfitError, match=r"does not compute the same|differ|something else"):
        memfit.fit_to_budget(model, job.batch, CROSS_ENTROPY, job.optimizer, budget=budget)
    assert not any("forward" in module.__dict__ for module in model.modules())


def test_a_step_that_never_repeats_itself_is_refused_where_there_is_no_room_for_a_tolerance(
    monkeypatch: pytest.MonkeyPatch,
):
    torch.manual_seed(0)
    model = Stack([*(NormedBlock(16) for _ in range(BLOCKS - 1)), Jittery(16)])
    job = job_for(model, rows=ROWS)
    budget = predict_step(job).plain_bytes * 3 // 4
    left(monkeypatch, budget)
    with pytest.raises(UsageError, match="cannot hold what a tolerance would need"):
        memfit.fit_to_budget(model, job.batch, CROSS_ENTROPY, job.optimizer, budget=budget)


LIMITED = """
import faulthandler, resource
import torch
from torch import nn
import memfit
from memfit.units import MIB

faulthandler.enable()
torch.set_num_threads(1)
torch.manual_seed(0)

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside, self.outside = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x):
        return torch.relu(self.outside(torch.relu(self.inside(x)).square()))

model = nn.Sequential(*(Block() for _ in range(16)), nn.Linear(16, 4))
batch = (torch.randn(32768, 16), torch.randint(0, 4, (32768,)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def leave(mebibytes):
    status = open("/proc/self/status").read()
    taken = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmData"))
    resource.setrlimit(resource.RLIMIT_DATA, (taken + mebibytes * MIB, resource.RLIM_INFINITY))

def fit(batch):
    return memfit.fit_to_budget(model, batch, nn.functional.cross_entropy, optimizer, budget="42MiB")

leave(600)  # little enough that memfit asks fake tensors first: all code is loaded before memory gets short
fit(tuple(part[:64] for part in batch)).undo()
model.zero_grad()
leave(80)
try:
    nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
    print("plain: held")
except RuntimeError as error:
    print("plain:", "can't allocate" in str(error))
model.zero_grad()
fitted = fit(batch)
proof = fitted.fit.proof
print("proof:", proof.bit_equal, proof.measured_peak_bytes <= 42 * MIB)
print("notes:", any("block by block" in note for note in fitted.fit.notes))
"""


@pytest.mark.slow
def test_a_process_that_cannot_hold_the_plain_step_fits_and_proves_it(tmp_path: Path):
    script = tmp_path / "limited.py"
    script.write_text(LIMITED)
    environment = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-u", str(script)], capture_output=True, text=True, env=environment, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines() == ["plain: True", "proof: True True", "notes: True"]
