"""Is a real training measured from the outside: workers, running out of memory, the guard, the steps?"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

MIB = 1 << 20

STEPS = """
    import torch
    from torch import nn
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=.1)
    for step in range(NUM_STEPS):
        rows = 64
        SURPRISE
        optimizer.zero_grad()
        model(torch.randn(rows, 256)).square().mean().backward()
        optimizer.step()
"""


def training(num_steps: int, surprise: str = "pass") -> str:
    return STEPS.replace("NUM_STEPS", str(num_steps)).replace("SURPRISE", surprise)


def test_steps_and_phases_are_seen_without_touching_the_script(measured):
    record = measured(training(20, "import time; time.sleep(0.3 * (step > 15))"), marks=True).read()
    assert record.steps.total == 20
    steps, told = record.steps, ~record.steps.is_whole
    assert told[:3].all()
    assert told[steps.step > 16].sum() > 0
    assert (steps.group_size[steps.step > 18] == 1).all(), "long steps have a peak of their own"
    edges = [getattr(steps, f"{name}_seconds")[told] for name in ("begin", "forward", "backward", "update", "end")]
    assert all(np.all(edge <= later) for edge, later in itertools.pairwise(edges))
    assert np.all(steps.end_seconds[:-1] <= steps.begin_seconds[1:])
    assert not np.isnan(steps.peak_bytes).any()
    assert record.peak.value >= steps.peak_bytes.max()
    assert "every reset kept" in record.peak.method


@pytest.mark.slow
def test_one_large_step_shows_in_its_group_alone(measured):
    record = measured(training(12, "rows = 200_000 if step == 6 else 64"), marks=True, stable=True).read()
    steps, peaks = record.steps, record.steps.peak_bytes
    large = int(np.argmax(peaks))
    assert steps.first_step[large] <= 7 <= steps.step[large]
    assert peaks[large] - np.median(peaks) > 200 * MIB
    assert record.peak.value == pytest.approx(peaks[large], abs=MIB)


def test_the_guard_names_the_step_and_phase(measured):
    result = measured(
        training(10_000, "held = [] if step == 0 else held + [torch.ones(1 << 20)]"), marks=True, limit_bytes=450 * MIB
    )
    outcome = result.read().outcome
    assert outcome.kind == "over the limit"
    assert outcome.step is not None
    assert outcome.step > 5
    assert outcome.phase in ("data", "forward", "backward", "update")


def test_running_out_of_memory_is_a_result_with_its_message(measured):
    surprise = "x = torch.ones(1 << 50) if step == 3 else None"
    outcome = measured(training(10, surprise), marks=True).read().outcome
    assert outcome.kind == "out of memory"
    assert "allocate" in outcome.message
    assert outcome.step == 4


WORKERS = """
import sys, torch
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __init__(self):
        self.rows = torch.ones(100 << 18)
    def __len__(self):
        return 4000
    def __getitem__(self, index):
        return self.rows[index * 1000 : index * 1000 + 1000].clone()

if __name__ == "__main__":
    loader = DataLoader(Rows(), batch_size=8, num_workers=2, multiprocessing_context=sys.argv[1])
    for epoch in range(2):
        for batch in loader:
            batch.sum()
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_data_workers_are_part_of_the_tree_and_shared_pages_count_once(measured, tmp_path, method: str):
    import sys

    script = tmp_path / "workers.py"
    script.write_text(WORKERS)
    record = measured([sys.executable, str(script), method], marks=True).read()
    workers = [process for process in record.processes[1:] if (process.peak.value or 0) > 50 * MIB]
    assert len(workers) >= 2
    together = [reading for reading in record.tree_readings if len(reading.processes) >= 3]
    assert together
    at_most = max(reading.tree_bytes for reading in together)
    assert record.peak.value >= at_most
    assert record.peak.value <= record.tree.summed_resident_bytes.max()
    if method == "fork":
        assert record.peak.value == pytest.approx(at_most, rel=0.10)
        assert record.tree.summed_resident_bytes.max() > 1.5 * record.peak.value
