"""Is every step of a Trainer within the budget, by a counter below torch's allocator that knows nothing of memfit?"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.plans.peers_count import counter_library

PROGRAM = Path(__file__).with_name("torch_counted_training.py")


def train(name: str, budget_bytes: int, folder: Path) -> dict[str, Any]:
    """Run one training in a process of its own; what its steps took and left."""
    library = counter_library()
    if library is None:
        pytest.skip("the counter is written in C, and there is no compiler (cc) here")
    record = folder / f"{name}-{budget_bytes}.json"
    environment = {**os.environ, "LD_PRELOAD": library, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, str(PROGRAM), name, str(budget_bytes), str(record)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(record.read_text())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "share", "num_before", "package"),
    [
        ("distilbert", 0.59, 0, "transformers"),
        ("lightning_accumulating", 0.85, 0, "pytorch_lightning"),
        ("lightning_manual", 0.85, 1, "pytorch_lightning"),
    ],
)
def test_every_step_is_counted_within_the_budget_and_all_losses_and_weights_are_the_plain_ones(
    name: str, share: float, num_before: int, package: str, tmp_path: Path
):
    """The first step is one of them, but for two optimizers, where the first pass of the second has no plan and more
    beside it than was predicted; what is alive while a plan is made is not. The DistilBERT makes 100 steps."""
    pytest.importorskip(package, reason=f"{package} is not installed")
    plain = train(name, 0, tmp_path)
    budget_bytes = int(share * max(plain["peaks"]))
    fitted = train(name, budget_bytes, tmp_path)
    assert fitted["digests"] == plain["digests"]
    assert max(fitted["peaks"][num_before:]) <= budget_bytes
    assert len(fitted["peaks"]) == len(plain["peaks"])
    assert fitted["is_within"]
    assert fitted["is_exact"]
    assert fitted["num_plans"] >= 1
