"""How much of what the operating system says about a real training process does the ledger explain?"""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import msgspec

from memfit.explain.run.ledger import explain_peak
from memfit.records.figure import measured
from memfit.records.run import ProcessRecord, RunRecord
from memfit.records.run_parts.ledger import LedgerFacts

TRAINING = """
    import torch
    from torch import nn
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.Adam(model.parameters())
    x, y = torch.randn(8192, 784), torch.randint(0, 10, (8192,))
    for step in range(1, 13):
        rows = 8192 if step == 7 else 64
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[:rows]), y[:rows]).backward()
        optimizer.step()
"""


def test_more_than_95_percent_of_the_peak_of_a_training_process_has_a_name(hooked):
    """One step in the middle takes 128 times the batch: it is the peak, and it is not a k-th step."""
    run = hooked(TRAINING, MEMFIT_LEDGER_EVERY="5")
    assert (run.returncode, run.stderr) == (0, "")
    marks = run.marks()
    (path,) = run.folder.glob("ledger-*.jsonl")
    facts = tuple(msgspec.json.decode(line, type=LedgerFacts) for line in path.read_bytes().splitlines())
    process = ProcessRecord(
        index=0, pid=marks.pid, parent_pid=1, command="", started_seconds=0.0,
        peak=measured(marks.peak_bytes or 0, "bytes", "marks"),
    )  # fmt: skip
    record = SimpleNamespace(
        processes=(process,), ledger_facts=facts, tree_readings=(), gpus=(), peak=process.peak, samples=()
    )
    (ledger,) = explain_peak(cast(RunRecord, record))
    assert ledger.peak_bytes == marks.peak_bytes
    assert (ledger.step, ledger.phase) == (7, "backward")
    assert ledger.explained_ratio > 0.95, ledger.lines
    kinds = {line.kind for line in ledger.lines}
    assert {"interpreter", "imports", "library files", "tensors", "allocator slack"} <= kinds
    activations = sum(line.num_bytes for line in ledger.lines if line.name == "activation")
    assert activations >= 8192 * 512 * 4
