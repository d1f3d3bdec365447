"""Does --profile leave a trace that chrome tracing and TensorBoard read, and disturb nothing else?"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from study_jobs import GOOD, run, settings_for

TRAIN = """
import nni, os
import torch
torch.set_num_threads(1)
x = nni.get_next_parameter()["x"]
assert os.environ["NNI_OUTPUT_DIR"]
model = torch.nn.Linear(64, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(8):
    model(torch.randn(4, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
nni.report_final_result(x)
"""


def test_a_trial_of_torch_leaves_one_trace_with_its_optimizer_steps(tmp_path: Path):
    pytest.importorskip("torch")
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.mine = 1\n")
    text = TRAIN + "\nassert mine == 1, 'the user has a sitecustomize too'\n"
    settings = settings_for(tmp_path, text)
    settings = msgspec.structs.replace(settings, command=f"PYTHONPATH=$PYTHONPATH:{tmp_path} {settings.command}")
    study, _ = run(settings, tmp_path / "study", profile=True)
    trial = study.trials[0]
    assert trial.kind == "done", trial.outcome.message
    assert any("torch.profiler" in note for note in trial.notes)
    traces = list((tmp_path / "study").glob("trials/00000/tensorboard/*.pt.trace.json"))
    assert len(traces) == 1
    events = json.loads(traces[0].read_text())["traceEvents"]
    names = [event.get("name", "") for event in events]
    assert sum(name.startswith("Optimizer.step#SGD") for name in names) >= 3
    assert any(name == "[memory]" for name in names)


def test_a_trial_without_torch_runs_as_ever(tmp_path: Path):
    study, _ = run(settings_for(tmp_path, GOOD), tmp_path / "study", profile=True)
    assert study.trials[0].kind == "done"
    assert not (tmp_path / "study" / "trials" / "00000" / "tensorboard").exists()
