"""Does a pipeline run here as predicted, compute what the model computes, and end when one of its ranks dies?"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from memfit.api import plan_pipeline, read_pipeline, run_pipeline, run_plan, write_pipeline  # noqa: E402
from memfit.errors import UsageError  # noqa: E402

JOB = """
import os
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, dies):
        super().__init__()
        self.up, self.norm, self.dies, self.calls = nn.Linear(16, 16), nn.BatchNorm1d(16), dies, 0
    def forward(self, x):
        self.calls += x.device.type != "meta"
        if self.dies and self.calls > 4:
            os.kill(os.getpid(), 9)
        return self.norm(self.up(x)).relu()

class Net(nn.Module):
    def __init__(self, dies=False):
        super().__init__()
        self.blocks = nn.ModuleList([Block(dies and index == 3) for index in range(4)])
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x

def make(dies=False):
    model = Net(dies)
    batch = torch.randn(8, 16), torch.randn(8, 16)
    return model, torch.optim.Adam(model.parameters()), nn.functional.l1_loss, batch
"""


@pytest.fixture
def job(tmp_path: Path) -> str:
    path = tmp_path / "jobs.py"
    path.write_text(JOB)
    return f"{path}:make"


def reference(path: str) -> dict[str, Any]:
    """Gradients of the same micro-batches without a pipeline."""
    from memfit.job.python_file import load_file

    torch.manual_seed(0)
    model, _, loss, (x, y) = load_file(path.rpartition(":")[0]).make()
    for part, target in zip(x.chunk(4), y.chunk(4), strict=True):
        loss(model(part), target).backward()
    return {name: each.grad / 4 for name, each in model.named_parameters()}


CUSTOM = (
    ("0F0", "0F1", "0B0", "0F2", "0B1", "0F3", "0B2", "0B3"),
    ("1F0", "1B0", "1F1", "1B1", "1F2", "1B2", "1F3", "1B3"),
)


@pytest.mark.slow
@pytest.mark.parametrize("orders", [(), CUSTOM])
def test_a_pipeline_gives_the_gradients_of_the_model_and_takes_what_was_predicted(
    job: str, tmp_path: Path, orders: Any
):
    run = run_pipeline(
        job, starts=["blocks.2"], num_ranks=2, num_micro_batches=4, keep_gradients=True, folder=tmp_path / "run",
        orders=orders, schedule="custom" if orders else "1f1b",
    )  # fmt: skip
    assert [rank.ended for rank in run.ranks] == ["done", "done"]
    found = {}
    for rank in (0, 1):
        found |= torch.load(tmp_path / "run" / f"gradients-{rank}.pt")
    expected = reference(job)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    for rank in run.ranks:
        assert rank.predicted.value == pytest.approx(rank.measured.value, abs=64)
    assert len(run.losses) == 2


@pytest.mark.slow
def test_a_rank_that_dies_ends_the_run_and_is_named(job: str):
    started = time.monotonic()
    run = run_pipeline(
        job,
        starts=["blocks.2"],
        num_ranks=2,
        num_micro_batches=4,
        settings={"dies": True},
        predicted=False,
        num_steps=5,
    )
    assert time.monotonic() - started < 120
    assert run.dead is not None
    assert (run.dead.rank, run.dead.ended, run.dead.died_in_step) == (1, "SIGKILL", 2)
    assert run.ranks[0].ended != "done"


def test_what_cannot_be_run_is_refused_before_anything_is_started(job: str):
    with pytest.raises(UsageError, match="every rank holds a stage"):
        run_pipeline(job, starts=["blocks.2"], num_ranks=3, num_micro_batches=4)
    with pytest.raises(UsageError, match="a row for each rank"):
        run_pipeline(job, starts=["blocks.2"], num_ranks=2, num_micro_batches=4, orders=[["0F0"]])


WIDE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(8)])
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x

def make(width=128):
    model = Net(width)
    batch = torch.randn(4, width), torch.randn(4, width)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), nn.functional.l1_loss, batch
"""


@pytest.fixture
def wide(tmp_path: Path) -> str:
    (tmp_path / "wide.py").write_text(WIDE)
    return f"{tmp_path / 'wide.py'}:make"


@pytest.mark.slow
def test_the_whole_model_of_the_set_up_is_not_in_the_prediction_of_a_rank(wide: str):
    starts = ["blocks.2", "blocks.4", "blocks.6"]
    run = run_pipeline(wide, starts=starts, num_ranks=4, num_micro_batches=4)
    for rank in run.ranks:
        assert rank.predicted.value == pytest.approx(rank.measured.value, abs=64)


@pytest.mark.slow
def test_a_plan_is_run_by_torch_s_own_schedule_with_the_settings_it_was_planned_for(wide: str, tmp_path: Path):
    plan = plan_pipeline(
        wide, settings=("width=64",), num_ranks=2, memory_bytes=2**30, link_bytes_per_second=1e9, schedule="1f1b",
        num_micro_batches=4,
    )  # fmt: skip
    write_pipeline(plan, tmp_path / "plan")
    run = run_plan(read_pipeline(tmp_path / "plan" / "plan.json"), num_steps=2)
    assert run.order.schedule == "1f1b"
    assert run.order.orders == ()
    assert run.order.settings == {"width": 64}
    assert [rank.ended for rank in run.ranks] == ["done", "done"]


@pytest.mark.slow
def test_torchrun_starts_what_a_plan_has_written_and_leaves_what_every_rank_took(wide: str, tmp_path: Path):
    plan = plan_pipeline(wide, num_ranks=2, memory_bytes=2**30, link_bytes_per_second=1e9, num_micro_batches=4)
    write_pipeline(plan, tmp_path / "plan")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m"]
    worker = [*command, "memfit.api.torch_pipeline_worker", str(tmp_path / "plan")]
    done = subprocess.run(
        worker, capture_output=True, text=True, timeout=120, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    run = run_plan(plan)
    for rank in (0, 1):
        left = json.loads((tmp_path / "plan" / f"rank-{rank}.json").read_bytes())
        assert left["peak_bytes"] == run.ranks[rank].measured.value


def test_ranks_are_not_started_in_a_process_that_torchrun_started(job: str, monkeypatch: pytest.MonkeyPatch):
    for name, value in {"TORCHELASTIC_RUN_ID": "none", "RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match="rank 1 of 2"):
        run_pipeline(job, starts=["blocks.2"], num_ranks=2, num_micro_batches=4)


@pytest.mark.slow
def test_what_another_run_left_in_the_folder_is_not_taken_for_a_rank_that_died(job: str, tmp_path: Path):
    (tmp_path / "rank-1.json").write_text('{"rank": 1, "peak_bytes": 7, "step_seconds": [1.0]}')
    run = run_pipeline(
        job, starts=["blocks.2"], num_ranks=2, num_micro_batches=4, settings={"dies": True}, predicted=False,
        num_steps=5, folder=tmp_path,
    )  # fmt: skip
    assert run.ranks[1].measured.value is None
