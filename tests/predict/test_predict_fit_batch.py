"""Is the answer of --fit-batch the largest batch that fits, from the command line to the number?"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

JOB = """
import torch

def make(batch_size=4, width=512, device="cpu"):
    model = torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, 8)).to(device)
    batch = torch.randn(batch_size, 64, device=device), torch.randint(0, 8, (batch_size,), device=device)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.functional.cross_entropy, batch
"""


def predicted(folder: Path, *options: str) -> tuple[int, dict]:
    (folder / "job.py").write_text(JOB)
    command = [sys.executable, "-m", "memfit", "predict", "job.py:make", "--json", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return done.returncode, json.loads(done.stdout) if done.stdout else {"stderr": done.stderr}


@pytest.mark.slow
def test_the_largest_batch_fits_and_one_more_does_not(tmp_path: Path):
    code, record = predicted(tmp_path, "--device", "cuda", "--memory", "500MiB", "--fit-batch")
    best = int(record["sweep"]["largest_fitting"])
    verdicts = {int(point["value"]): point["fits"] for point in record["sweep"]["points"]}
    assert code == 0
    assert best > 1000
    assert verdicts[best]
    assert not verdicts[best + 1]
    assert all(point["how"] == "traced" for point in record["sweep"]["points"])
    assert len(verdicts) < 30
    after, _ = predicted(tmp_path, "--device", "cuda", "--memory", "500MiB", "--set", f"batch_size={best + 1}")
    assert after == 3


@pytest.mark.slow
def test_a_device_too_small_for_a_single_sample_says_so(tmp_path: Path):
    _, record = predicted(tmp_path, "--device", "cuda", "--memory", "432MiB", "--fit-batch")
    assert record["sweep"].get("largest_fitting") is None
    assert "not even batch_size=1" in record["sweep"]["reason"]
