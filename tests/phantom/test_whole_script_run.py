"""Is a whole script followed on the phantom GPU: steps without an optimizer, checkpoints, a last evaluation?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from memfit.errors import PredictionFailed, UsageError
from memfit.job.description import describe_job
from memfit.predict.child.messages import UNSEEN
from memfit.predict.child.run_script import BY_BACKWARDS
from memfit.predict.devices.parse import parse_device
from memfit.predict.phantom.library.build import has_cuda_torch
from memfit.predict.sandbox.read_only import can_forbid_writing
from memfit.records.prediction import Prediction
from memfit.testing.engines import on_phantom

pytestmark = [
    pytest.mark.skipif(not has_cuda_torch(), reason="needs a CUDA build of torch (make test-gpu)"),
    pytest.mark.timeout(300),
]

BY_HAND = """
import torch
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)]).cuda()
for step in range(STEPS):
    model.zero_grad()
    model(torch.randn(32, 256, device="cuda")).sum().backward()
    for p in model.parameters():
        p.data.add_(p.grad, alpha=-0.1)
with open("best.pt", "wb") as f:
    torch.save(model, f)
with open("best.pt", "rb") as f:
    again = torch.load(f, weights_only=False)
assert all(p.is_cuda for p in again.parameters())
torch.save({"count": torch.arange(5, device="cuda"), "seen": torch.arange(3.0), "lr": 0.5}, "state.pt")
state = torch.load("state.pt", map_location="cuda")
assert state["count"].tolist() == [0, 1, 2, 3, 4] and state["seen"].tolist() == [0, 1, 2] and state["lr"] == 0.5
assert state["seen"].is_cuda
assert not torch.load("state.pt", map_location="cpu")["count"].is_cuda
state["count"][0] = 9
assert torch.load("state.pt", map_location="cpu")["count"].tolist() == [0, 1, 2, 3, 4]
"""

SEARCHES = """
import torch
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.LBFGS(model.parameters())
def closure():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 64, device="cuda")).pow(2).sum()
    loss.backward()
    return loss
for step in range(3):
    optimizer.step(closure)
"""
IN_HOOKS = """
import torch
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def update(parameter):
    parameter.data.add_(parameter.grad, alpha=-0.1)
    parameter.grad = None
for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(update)
for step in range(1000):
    model(torch.randn(32, 256, device="cuda")).sum().backward()
"""
EVALUATES = """
import torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Sequential(torch.nn.Linear(64, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 8)).cuda()
optimizer = torch.optim.Adam(model.parameters())
train = DataLoader(TensorDataset(torch.randn(4096, 64)), batch_size=8)
test = DataLoader(TensorDataset(torch.randn(8000, 64)), batch_size=4096)
for epoch in range(3):
    for (x,) in train:
        optimizer.zero_grad()
        model(x.cuda()).sum().backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        for (x,) in test:
            model(x.cuda())
"""
EVALUATES_BETWEEN_AND_AFTER = """
import torch
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.Adam(model.parameters())
@torch.no_grad()
def evaluate(count, batch):
    return torch.cat([model(torch.randn(batch, 256, device="cuda")) for _ in range(count)])
for epoch in range(3):
    for step in range(6):
        optimizer.zero_grad()
        model(torch.randn(64, 256, device="cuda")).sum().backward()
        optimizer.step()
    evaluate(6, 64)
evaluate(20, 1024)
"""
LAST_EVALUATION_BYTES = 2 * 4 * 20 * 1024 * 256
SAVES_SAFETENSORS = """
import os, torch
from safetensors import safe_open
from safetensors.torch import load_file, load_model, save_file, save_model
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.BatchNorm1d(512)).cuda()
optimizer = torch.optim.Adam(model.parameters())
os.makedirs("folder")
for step in range(4):
    optimizer.zero_grad()
    model(torch.randn(32, 256, device="cuda")).sum().backward()
    optimizer.step()
    save_file(model.state_dict(), "folder/best.safetensors", metadata={"format": "pt"})
with safe_open("folder/best.safetensors", framework="pt", device="cuda") as file:
    assert file.get_tensor("0.weight").is_cuda and file.get_slice("0.weight")[:100].shape == (100, 256)
assert load_file("folder/best.safetensors")["1.num_batches_tracked"].item() == 4
save_model(model, "folder/model.safetensors")
assert not any(load_model(model, "folder/model.safetensors", device="cuda"))
"""
ON_THE_CPU = """
import torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(4):
    optimizer.zero_grad()
    model(torch.rand(2, 8)).sum().backward()
    optimizer.step()
"""
ROUNDS = """
import torch
def round():
    model = torch.nn.Linear(2048, 2048).cuda()
    {more}
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(4):
        model(torch.randn(8, 2048, device="cuda")).sum().backward()
        optimizer.step()
for k in range(3):
    round()
    junk = [[] for _ in range(500_000)]  # the collector comes by
"""
MODEL_BYTES = 4 * 2048 * 2048
EPOCHS = """
import torch
from torch.utils.data import DataLoader
def epoch(width):
    model = torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, 64)).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for x in DataLoader([torch.randn(256, 64) for _ in range(8)], batch_size=None):
        optimizer.zero_grad()
        model(x.cuda()).sum().backward()
        optimizer.step()
"""
EVALUATION_BYTES = 2 * 4 * 4096 * 1024
"""What goes in and out of the activation of one batch of the evaluation."""


def predict(path: str) -> Prediction:
    return on_phantom(describe_job(path), parse_device("cuda:a100-40gb"), num_steps=3, most_seconds=250)


def texts(prediction: Prediction) -> str:
    return "\n".join(item.text for item in prediction.assumptions)


@pytest.mark.parametrize("num_steps", [3, 9])
def test_a_script_without_an_optimizer_is_counted_by_backwards_and_keeps_its_checkpoints(
    script: Callable[..., str], num_steps: int
):
    said = predict(script(BY_HAND.replace("STEPS", str(num_steps))))
    assert BY_BACKWARDS in texts(said)
    assert "not followed to the end" not in texts(said), texts(said)


def test_updates_in_hooks_of_the_backward_are_counted_by_backwards(script: Callable[..., str]):
    said = predict(script(IN_HOOKS))
    assert BY_BACKWARDS in texts(said)


def test_an_evaluation_behind_others_is_in_the_figures_where_there_is_time_for_it(script: Callable[..., str]):
    said = predict(script(EVALUATES_BETWEEN_AND_AFTER))
    peak = next(level for level in said.levels if level.name == "tensors").figure.value
    assert peak is not None
    assert peak > LAST_EVALUATION_BYTES
    assert "not reached" not in texts(said)


ASKS_A_CHILD = """
import subprocess, sys, torch
with open("prepare.py", "w") as file:
    file.write("import json; json.dump({'width': 512}, open('made.json', 'w')); print('made')")
assert subprocess.check_output([sys.executable, "prepare.py"], text=True) == "made\\n"
import json
model = torch.nn.Linear(json.load(open("made.json"))["width"], 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(4):
    model(torch.randn(4, 512, device="cuda")).sum().backward()
    optimizer.step()
"""
CHILD_TRAINS = """
import subprocess, sys
with open("work.py", "w") as file:
    file.write(TEXT)
subprocess.check_call([sys.executable, "work.py"])
"""


def test_a_child_python_prepares_data_and_one_that_trains_is_refused(script: Callable[..., str]):
    said = predict(script(ASKS_A_CHILD))
    assert "a child Python was run in this process" in texts(said)
    with pytest.raises(PredictionFailed, match="a child Python that trains"):
        predict(script(CHILD_TRAINS.replace("TEXT", repr(IN_HOOKS))))


RECORDS = """
import torch
torch.cuda.memory._record_memory_history(max_entries=5)
model = torch.nn.Linear(512, 512).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(4):
    model(torch.randn(4, 512, device="cuda")).sum().backward()
    optimizer.step()
    torch.cuda.memory._record_memory_history(enabled=None)
"""


def test_a_script_that_records_the_allocator_itself_does_not_end_our_record(script: Callable[..., str]):
    said = predict(script(RECORDS))
    peak = next(level for level in said.levels if level.name == "tensors").figure.value
    assert peak is not None
    assert peak > 2 * 4 * 512 * 512


COMPILED_CODE_WRITES = """
import ctypes, torch
libc = ctypes.CDLL(None, use_errno=True)
assert libc.open(b"FOLDER/theirs.txt", 1 | 64 | 512, 0o600) == -1, "compiled code writes where the script lies"
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(4):
    model(torch.randn(4, 8, device="cuda")).sum().backward()
    optimizer.step()
"""


def test_compiled_code_cannot_write_to_the_folder_of_the_script(tmp_path: Path, script: Callable[..., str]):
    if not can_forbid_writing():
        pytest.skip("this system has no Landlock")
    (tmp_path / "theirs.txt").write_text("theirs")
    predict(script(COMPILED_CODE_WRITES.replace("FOLDER", str(tmp_path))))
    assert (tmp_path / "theirs.txt").read_text() == "theirs"


def test_what_is_saved_as_safetensors_is_read_back(script: Callable[..., str]):
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    said = predict(script(SAVES_SAFETENSORS))
    assert "not followed to the end" not in texts(said), texts(said)


def test_an_evaluation_after_the_epoch_is_in_the_figures(script: Callable[..., str]):
    said = predict(script(EVALUATES))
    peak = next(level for level in said.levels if level.name == "tensors").figure.value
    assert peak is not None
    assert peak > EVALUATION_BYTES
    assert not any(item.kind == UNSEEN for item in said.assumptions), texts(said)


def test_an_optimizer_whose_iterations_end_by_value_is_listed(script: Callable[..., str]):
    said = predict(script(SEARCHES))
    assert any(item.kind == UNSEEN and "L-BFGS" in item.text for item in said.assumptions), texts(said)


def test_a_script_that_never_asks_for_the_gpu_is_told_so(script: Callable[..., str]):
    with pytest.raises(UsageError, match="put nothing on the GPU"):
        predict(script(ON_THE_CPU))


def test_models_that_rounds_leave_behind_are_freed_as_the_job_frees_them(script: Callable[..., str]):
    said = predict(script(ROUNDS.format(more="")))
    peak = next(level for level in said.levels if level.name == "tensors").figure.value
    assert peak is not None
    assert peak < 5 * MODEL_BYTES, "parameters, gradients, a gradient that is made, cuBLAS: one round, not three"


def test_tensors_that_the_collector_frees_at_a_moment_of_its_own_are_listed(script: Callable[..., str]):
    said = predict(script(ROUNDS.format(more="model.itself = [model]")))
    assert any(item.kind == UNSEEN and "reference cycles" in item.text for item in said.assumptions), texts(said)


def test_a_later_training_over_a_loader_is_followed_until_its_state_is_there(script: Callable[..., str]):
    alone, later = (
        next(level for level in predict(script(EPOCHS + end)).levels if level.name == "tensors").figure.value
        for end in ("epoch(8192)\n", "epoch(128)\nepoch(8192)\n")
    )
    assert later == alone
