"""Does `--shard` put torch's own code on a function, and does the arithmetic of sharding agree with it?"""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from memfit.api import predict_peak, predict_ranks  # noqa: E402
from memfit.errors import UsageError  # noqa: E402
from memfit.job.torch_shard import blocks_of  # noqa: E402
from memfit.testing.oracles.sharding_arithmetic import shard  # noqa: E402

JOB = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3)])
    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return x

WIDTH = 48

def make():
    model = Net()
    return model, torch.optim.Adam(model.parameters()), lambda out: out.sum(), torch.ones(4, WIDTH)
"""


@pytest.fixture
def job(tmp_path: Path) -> str:
    path = tmp_path / "jobs.py"
    path.write_text(JOB)
    return f"{path}:make"


@pytest.mark.slow
def test_the_arithmetic_holds_what_torchs_own_fully_shard_holds(job: str):
    whole = predict_peak(job, probes=False).timeline
    assert whole is not None
    arithmetic = shard(whole, 3, "fsdp")
    found = predict_ranks(job, ranks=3, shard="fsdp", probes=False)
    assert [each.ranks for each in found.classes] == [(0, 1, 2)]
    real = found.of_rank(1).timeline
    assert real is not None
    for category in ("parameter", "optimizer state"):
        ours, torchs = (
            sum(span.num_bytes for span in timeline.spans if span.category == category and span.end is None)
            for timeline in (arithmetic, real)
        )
        assert ours == torchs, category


@pytest.mark.slow
def test_ranks_without_rows_are_a_class_of_their_own_and_hold_less(job: str):
    found = predict_ranks(job, ranks=32, shard="fsdp", probes=False)  # 48 rows: 2 each for 24 ranks, then none
    assert [each.ranks for each in found.classes] == [tuple(range(24)), tuple(range(24, 32))]
    held = [{s.name: s.num_bytes for s in each.prediction.at_peak.by_category} for each in found.classes]
    assert held[0].get("optimizer state", 0) > held[1].get("optimizer state", 0)


def test_a_step_of_its_own_cannot_be_put_under_ddp(tmp_path: Path):
    path = tmp_path / "own.py"
    path.write_text(JOB + "\ndef step():\n    model, optimizer, loss, batch = make()\n    return lambda: None\n")
    with pytest.raises(UsageError, match="no model and optimizer"):
        predict_peak(f"{path}:step", ranks=2, shard="ddp", probes=False)


def test_blocks_are_the_outermost_numbered_modules():
    inner = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    model = torch.nn.ModuleDict({"layers": torch.nn.ModuleList([inner, torch.nn.Linear(2, 2)]), "0x": inner[0]})
    assert blocks_of(model) == [inner, model["layers"][1]]
