"""Is the whole training foreseen: evaluations, resumed checkpoints, accumulation, the last batch? To the byte."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from memfit.job.description import describe_job  # noqa: E402
from memfit.predict.child.messages import UNSEEN, TraceReply, TraceRequest  # noqa: E402
from memfit.predict.fake import steps  # noqa: E402
from memfit.predict.fake.child_main import answer  # noqa: E402
from memfit.predict.fake.patches.save_and_load import MAPPED  # noqa: E402
from memfit.predict.fake.probe.real_run import real_script_peak  # noqa: E402
from memfit.predict.levels.liveness import peak_of  # noqa: E402

START = """
import os, torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
def build():
    model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
    return model, torch.optim.Adam(model.parameters())
def batches(count, batch_size):
    data = TensorDataset(torch.randn(count, 64), torch.zeros(count, dtype=torch.long))
    return DataLoader(data, batch_size=batch_size)
def train(x):
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
model, optimizer = build()
path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "last.pt")
"""
EVALUATES_AFTER_EACH_EPOCH = """
for epoch in range(2):
    for x, _ in batches(100, 16):
        train(x)
    with torch.no_grad():
        for x, y in batches(1100, 500):
            model(x).argmax(1).eq(y).sum().item()
"""
COLLECTS_RESULTS = """
for epoch in range(2):
    for x, _ in batches(100, 16):
        train(x)
    results = []
    with torch.inference_mode():
        for x, _ in batches(3000, 100):
            results.append(model(x))
        results = torch.cat(results)
"""
EVALUATES_LONG_BEFORE_AND_AFTER = """
@torch.no_grad()
def evaluate():
    losses = torch.zeros(300)
    for index in range(300):
        losses[index] = model(torch.randn(700, 64)).mean().item()
    return losses.mean()
evaluate()
for step in range(4):
    train(torch.randn(16, 64))
evaluate()
"""
ACCUMULATES = """
for step in range(40):
    model(torch.randn(64, 64)).sum().backward()
    if (step + 1) % 8 == 0:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
"""
LAST_BATCH_IS_SMALLER = """
for epoch in range(3):
    for x, _ in batches(130, 64):
        train(x)
"""
RESUMES_ITS_OWN = """
for step in range(2):
    train(torch.randn(16, 64))
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path)
del model, optimizer
model, optimizer = build()
kept = torch.load(path)
model.load_state_dict(kept["model"]); optimizer.load_state_dict(kept["optimizer"])
for step in range(kept["step"], 8):
    train(torch.randn(16, 64))
os.remove(path)
"""
RESUMES_A_FILE = """
kept = torch.load(path, map_location="cpu")
model.load_state_dict(kept["model"]); optimizer.load_state_dict(kept["optimizer"])
assert optimizer.state_dict()["state"][0]["step"] == 2, "small values of the file are known"
for step in range(kept["step"], 8):
    train(torch.randn(16, 64))
"""
SAMPLES_PASS_A_MODULE = """
class Shifts(torch.nn.Module):
    def forward(self, x):
        return x + 1
class Samples(torch.utils.data.Dataset):
    def __init__(self, count):
        self.count, self.shifts = count, Shifts()
    def __len__(self):
        return self.count
    def __getitem__(self, index):
        return self.shifts(torch.zeros(64))
for x in DataLoader(Samples(100), batch_size=16):
    train(x)
with torch.no_grad():
    for x in DataLoader(Samples(1100), batch_size=500):
        torch.nn.MSELoss()(model(x), torch.zeros(len(x), 10)).item()
"""
READS_NUMPY = """
import numpy as np
pixels, labels = torch.from_numpy(np.zeros((4000, 64), "f4")), torch.frombuffer(bytearray(400_000), dtype=torch.uint8)
copied, shared = torch.tensor(np.zeros((100, 64), "f4")), torch.as_tensor(np.zeros((3000, 64), "f4"))
for step in range(4):
    train(pixels[:16] + 1)
"""
LOADS_SAFETENSORS = """
from safetensors import safe_open
from safetensors.torch import load_file, save_file
if not os.path.exists(path + ".safetensors"):
    save_file(model.state_dict(), path + ".safetensors")
model.load_state_dict(load_file(path + ".safetensors"))
with safe_open(path + ".safetensors", framework="pt") as file:
    assert file.get_slice("0.weight")[:100].shape == (100, 64)
    assert float(file.get_tensor("2.bias").abs().max()) < 1
for step in range(4):
    train(torch.randn(1600, 64))
"""
SAVES_A_FILE = """
for step in range(2):
    train(torch.randn(16, 64))
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path)
"""
TRAINS_LONG = """
for step in range(100_000):
    train(torch.randn(16, 64))
"""


def foreseen(folder: Path, text: str) -> TraceReply:
    (folder / "train.py").write_text(START + text)
    (folder / "scratch").mkdir()
    job = describe_job(str(folder / "train.py"), {}, ())
    reply = answer(TraceRequest(job=job, device="cpu", num_steps=3, scratch_folder=str(folder / "scratch")))
    assert isinstance(reply, TraceReply), reply
    return reply


def said(reply: TraceReply, kind: str) -> list[str]:
    return [assumption.text for assumption in reply.assumptions if assumption.kind == kind]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(EVALUATES_AFTER_EACH_EPOCH, id="evaluates after each epoch"),
        pytest.param(COLLECTS_RESULTS, id="collects the results of an evaluation"),
        pytest.param(EVALUATES_LONG_BEFORE_AND_AFTER, id="evaluates long before and after"),
        pytest.param(ACCUMULATES, id="accumulates gradients"),
        pytest.param(LAST_BATCH_IS_SMALLER, id="last batch is smaller"),
        pytest.param(RESUMES_ITS_OWN, id="resumes what it saved"),
        pytest.param(RESUMES_A_FILE, id="resumes a file"),
        pytest.param(LOADS_SAFETENSORS, id="loads weights from a safetensors file"),
        pytest.param(SAMPLES_PASS_A_MODULE, id="each sample passes a module without parameters"),
        pytest.param(READS_NUMPY, id="data lie in numpy arrays"),
    ],
)
def test_the_peak_of_the_whole_script_is_foreseen_to_the_byte(tmp_path: Path, text: str):
    script = str(tmp_path / "train.py")
    if text is RESUMES_A_FILE:
        Path(script).write_text(START + SAVES_A_FILE)
        real_script_peak(script, (), sys.maxsize)
    if text is LOADS_SAFETENSORS:
        pytest.importorskip("safetensors", reason="safetensors is not installed")
        Path(script).write_text(START + text)
        real_script_peak(script, (), sys.maxsize)
    reply = foreseen(tmp_path, text)
    assert peak_of(reply.timeline, "cpu")[0] == real_script_peak(script, (), sys.maxsize)
    assert set(said(reply, steps.UNSEEN)) == ({MAPPED} if text is LOADS_SAFETENSORS else set())


def test_a_long_evaluation_is_cut_and_that_is_listed(tmp_path: Path):
    reply = foreseen(tmp_path, EVALUATES_LONG_BEFORE_AND_AFTER)
    left_out = [one for one in reply.assumptions if "were not run again" in one.text]
    assert len(left_out) == 1
    assert left_out[0].count > 290
    assert reply.num_operators < 6000


def test_an_evaluation_that_is_not_reached_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(steps, "LEAST_TO_EVALUATION_SECONDS", 0.1)
    started = time.perf_counter()
    reply = foreseen(tmp_path, TRAINS_LONG + "model.eval()\n")
    assert said(reply, steps.UNSEEN) == [
        "an evaluation after the steps, if there is one, was not reached in time: it is not in the figures"
    ]
    assert time.perf_counter() - started < 60


def test_a_training_without_evaluation_misses_none(tmp_path: Path):
    assert said(foreseen(tmp_path, TRAINS_LONG), steps.UNSEEN) == []


def test_batches_of_workers_are_not_of_the_allocator(tmp_path: Path):
    data = "TensorDataset(torch.zeros(8000, 64))"
    loader = f"\nfor (x,) in DataLoader({data}, batch_size=1000, num_workers={{}}):\n    train(x)\n"
    peaks, data_bytes = [], []
    for workers in (0, 2):
        (tmp_path / str(workers)).mkdir()
        reply = foreseen(tmp_path / str(workers), loader.format(workers))
        peaks.append(peak_of(reply.timeline, "cpu")[0])
        data_bytes.append(reply.data_bytes)
    batch_bytes = 1000 * 64 * 4
    assert peaks[0] - peaks[1] >= batch_bytes, "they lie in memory that the workers share"
    assert data_bytes[0] == 0
    assert data_bytes[1] >= batch_bytes, "which the process holds too"


SHARES_ITS_MODEL = """
import torch.multiprocessing as mp
def work(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        model(torch.zeros(16, 64)).sum().backward()
        optimizer.step()
if __name__ == "__main__":
    del optimizer
    model.share_memory()
    assert all(parameter.is_shared() for parameter in model.parameters())
    process = mp.Process(target=work, args=(model,))
    process.start(); process.join()
    assert all(parameter.grad is None for parameter in model.parameters()), "they stay in the other process"
"""


def test_a_model_in_shared_memory_is_not_of_the_allocator(tmp_path: Path):
    reply = foreseen(tmp_path, SHARES_ITS_MODEL)
    parameters = 4 * (64 * 512 + 512 + 512 * 10 + 10)
    assert peak_of(reply.timeline, "cpu")[0] < 2.5 * parameters, "gradients twice, and little beside"
    assert reply.data_bytes >= parameters


WRITES_CODE = """
import importlib, sys
folder = os.path.join(os.path.dirname(path), "written")
os.makedirs(os.path.join(folder, "package"))
for name, text in (("__init__", ""), ("metric", "from package.number import FIVE"), ("number", "FIVE = 5")):
    with open(os.path.join(folder, "package", name + ".py"), "w") as file:
        file.write(text)
sys.path.append(folder)
importlib.invalidate_caches()
assert importlib.import_module("package.metric").FIVE == 5
storages = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
assert len(storages) == 4, "storages that are not shared have different addresses"
for step in range(3):
    train(torch.zeros(16, 64))
"""


def test_code_that_the_script_writes_can_be_imported(tmp_path: Path):
    assert said(foreseen(tmp_path, WRITES_CODE), steps.UNSEEN) == []
    assert not (tmp_path / "written").exists()


def test_a_loop_of_a_library_may_evaluate_though_no_file_of_the_user_says_so(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(steps, "LEAST_TO_EVALUATION_SECONDS", 0.5)
    library = tmp_path / "site-packages" / "some_trainer.py"
    library.parent.mkdir()
    library.write_text(
        "def fit(model, optimizer, x):\n    for _ in range(100_000):\n"
        "        model(x).sum().backward()\n        optimizer.step()\n        optimizer.zero_grad()\n"
    )
    text = f"import sys\nsys.path.insert(0, {str(library.parent)!r})\nimport some_trainer\n"
    reply = foreseen(tmp_path, text + "some_trainer.fit(model, optimizer, torch.randn(16, 64))\n")
    assert any(item.kind == UNSEEN and "if there is one" in item.text for item in reply.assumptions)
