"""Is the whole training predicted: evaluations, resumed checkpoints, accumulation, the last batch? To the byte."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from memfit.job.description import describe_job  # noqa: E402
from memfit.predict.child.messages import UNSEEN, Failure, TraceReply, TraceRequest  # noqa: E402
from memfit.predict.child.run_script import BY_BACKWARDS  # noqa: E402
from memfit.predict.fake import steps  # noqa: E402
from memfit.predict.fake.child_main import answer  # noqa: E402
from memfit.predict.fake.kernels.sparse import INSIDE  # noqa: E402
from memfit.predict.fake.probe.in_process import ProbesHere  # noqa: E402
from memfit.predict.fake.probe.real_reference import real_script_peak  # noqa: E402
from memfit.predict.fake.skipped_steps import SEARCHES  # noqa: E402
from memfit.predict.levels.guesses import OF_SEEN  # noqa: E402
from memfit.predict.levels.liveness import peak_of  # noqa: E402
from memfit.predict.observe.later.rounds_by_value import ROUNDS  # noqa: E402
from memfit.predict.observe.repeating_batches import LARGER_MAY_FOLLOW  # noqa: E402
from memfit.predict.options import PredictOptions  # noqa: E402

pytestmark = pytest.mark.slow
"""Each of them runs a whole script, most of them more than once."""
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
COLLECTS_ARRAYS = """
for epoch in range(2):
    for x, _ in batches(100, 16):
        train(x)
    inputs, means = [], []
    with torch.no_grad():
        for x, y in batches(3000, 100):
            inputs.append(x.detach().cpu().numpy()[:, ::2])
            means.append(model(x).numpy().mean(0))
"""
EVALUATES_WITH_GRADIENTS = """
for epoch in range(2):
    for x, _ in batches(100, 16):
        train(x)
results = []
for x, y in batches(3000, 100):
    results.append(model(x).detach())
"""
GOES_ON_BESIDE_A_GRAPH = """
for epoch in range(3):
    for x, _ in batches(100, 16):
        train(x)
    for x, y in batches(900, 300):
        results = model(x)
        results.sum().item()
for x, y in batches(900, 300):
    results = model(x)
    results.sum().item()
more = model(torch.randn(500, 64))
"""
KEEPS_THE_BEST_MODEL = """
import copy
for epoch in range(2):
    for x, _ in batches(100, 16):
        train(x)
    best = copy.deepcopy(model)
    assert all(parameter.grad is None for parameter in best.parameters())
    with torch.no_grad():
        model(torch.randn(2000, 64))
"""
GOES_ON_BESIDE_A_CHECKPOINT = """
import copy
def run(start, end):
    global model, optimizer
    model, optimizer = build()
    if start:
        last = torch.load(path, weights_only=False)
        model.load_state_dict(last["model"])
        optimizer.load_state_dict(last["optimizer"])
        torch.random.set_rng_state(last["rng"])
    for epoch in range(start, end):
        for x, _ in batches(100, 16):
            train(x)
        best = copy.deepcopy(model.state_dict())
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()}
        torch.save(state, path)
run(0, 3)
model = optimizer = None
run(3, 6)
"""
GROWS_IN_THE_LAST_STAGE = """
for width, count in ((64, 12), (128, 12), (256, 12)):
    for step in range(count):
        x = torch.randn(width * 8, 64)
        train(x)
        if step % 6 == 5:
            with torch.no_grad():
                model(torch.zeros(3000, 64))
"""
A_CHILD_PREPARES = """
import subprocess, sys
code = "import sys, torch; torch.save(torch.randn(2000, 2000)[:40, :64].clone(), sys.argv[1])"
subprocess.run([sys.executable, "-c", code, path], check=True)
data = torch.load(path)
for start in range(0, 40, 8):
    train(data[start : start + 8])
"""
A_CHILD_HAS_ITS_OWN = """
import os, subprocess, sys, tempfile
threads, folder = torch.get_num_threads(), tempfile.mkdtemp()
for width, place in ((64, folder), (8, os.path.join(folder, "tools"))):
    os.makedirs(place, exist_ok=True)
    with open(os.path.join(place, "own_widths.py"), "w") as stream:
        stream.write(f"WIDTH = {width}")
with open(os.path.join(folder, "tools", "prepare.py"), "w") as stream:
    stream.write("import torch, own_widths; torch.set_default_dtype(torch.float64); torch.set_num_threads(3); ")
    stream.write("torch.set_grad_enabled(False); assert own_widths.WIDTH == 8")
subprocess.run([sys.executable, os.path.join(folder, "tools", "prepare.py")], check=True)
sys.path.insert(0, folder)
import own_widths
assert (own_widths.WIDTH, torch.get_num_threads()) == (64, threads)
for _ in range(3):
    train(torch.randn(8, own_widths.WIDTH))
"""
COPIES_TIED_WEIGHTS = """
import copy
words, head = torch.nn.Embedding(2000, 64), torch.nn.Linear(64, 2000, bias=False)
head.weight = words.weight
tied = torch.nn.Sequential(words, head)
halves = tied.state_dict() | {"half": words.weight.detach().view(torch.int32)[:1000]}
saved = copy.deepcopy(halves)
assert saved["0.weight"].data_ptr() == saved["1.weight"].data_ptr() == saved["half"].data_ptr()
optimizer = torch.optim.SGD(tied.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    tied(torch.randint(0, 2000, (8,))).sum().backward()
    optimizer.step()
tied.load_state_dict({name: saved[name] for name in ("0.weight", "1.weight")})
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
OLD_TYPES_OF_ARRAYS = """
import numpy as np
rows = torch.FloatTensor(np.ones((4000, 64), dtype=np.float32))
copied, wider = torch.tensor(np.ones((300, 64))), torch.FloatTensor(np.ones((200, 64)))
labels = torch.LongTensor(np.nonzero(np.ones((40, 10)))[1])
head = torch.nn.Linear(10, int(labels.max()) + 1)
assert head.weight.shape == (10, 10), "a column of the array that numpy gave"
for step in range(4):
    train(rows[16 * step:16 * step + 16])
"""
MOVES_HELD_PARAMETERS = """
import warnings
warnings.simplefilter("ignore")
normed = torch.nn.utils.weight_norm(torch.nn.Linear(64, 512))
model = torch.nn.Sequential(normed, torch.nn.ReLU(), torch.nn.Linear(512, 10)).double()
optimizer = torch.optim.Adam(model.parameters())
for step in range(4):
    train(torch.randn(16, 64, dtype=torch.double))
"""
LENGTHS_DIFFER = """
def padded(rows):
    return {"x": torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)}
rows = [torch.randn(3 + 7 * number % 11, 64) for number in range(COUNT)]
for batch in DataLoader(rows, batch_size=2, collate_fn=padded):
    train(batch["x"])
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
SAVES_SAFETENSORS = """
from safetensors import safe_open
from safetensors.torch import load_file, load_model, save_file, save_model
model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.BatchNorm1d(512), torch.nn.Linear(512, 64))
model.tied = model[0]
optimizer = torch.optim.Adam(model.parameters())
folder = path + ".folder"
os.makedirs(folder)
for step in range(4):
    train(torch.randn(16, 64))
    save_file({"first": model[0].weight, **model[1].state_dict()}, folder + "/best", metadata={"step": str(step)})
with safe_open(folder + "/best", framework="pt") as file:
    assert file.metadata()["step"] in "23" and file.get_slice("first")[:100].shape == (100, 64)
    weight = file.get_tensor("first").double()
assert int(load_file(folder + "/best")["num_batches_tracked"]) in (3, 4)
save_model(model, folder + "/model")
assert not any(load_model(model, folder + "/model"))
kept = [tensor.double() for tensor in load_file(folder + "/model").values() for _ in range(20)]
"""
READS_A_LIST = """
rows = torch.tensor([[float(number)] * 64 for number in range(3000)])
for step in range(4):
    loss = model(rows[:16]).sum()
    target = torch.tensor([loss.detach(), 0.5]) + torch.as_tensor([loss.item(), 1.0])
    optimizer.zero_grad()
    torch.nn.functional.l1_loss(loss.expand(2), target).backward()
    optimizer.step()
"""
ASKS_INFERENCE_TENSORS = """
for step in range(4):
    train(torch.randn(16, 64))
with torch.inference_mode():
    kept = model(torch.randn(3000, 64))
    labels = kept.argmax(1)
    assert labels.min() >= 0
    hot = torch.nn.functional.one_hot(labels, 10).float()
    loss = torch.nn.functional.cross_entropy(kept, labels)
loss.item(), f"{loss:.3f}"
"""
SOLVES = """
left, right = torch.randn(40, 50, 8), torch.randn(40, 50, 16)
for step in range(4):
    train(torch.linalg.lstsq(left, right).solution.reshape(-1, 64))
square = torch.randn(200, 200)
torch.linalg.svd(square), torch.linalg.inv(square), torch.linalg.qr(square), torch.linalg.eigh(square @ square.T)
"""
SEARCHES_A_LINE = """
torch.manual_seed(3)
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=10, tolerance_grad=0.0, tolerance_change=0.0, lr=1e-3)
x, y = torch.randn(16, 64), torch.randn(16, 10)
def closure():
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    return loss
for step in range(3):
    optimizer.step(closure)
"""
MULTIPLIES_SPARSE = """
torch.sparse.check_sparse_tensor_invariants.disable()
ones = torch.diag(torch.ones(300)).to_sparse()
edges = torch.sparse_coo_tensor(torch.randint(0, 300, (2, 900)), torch.ones(900), (300, 300)).coalesce()
edges = edges + ones
for step in range(4):
    optimizer.zero_grad()
    torch.spmm(edges, torch.sparse.mm(ones, model(torch.randn(300, 64)))).sum().backward()
    optimizer.step()
"""
LOADS_MAPPED = """
if not os.path.exists(path):
    torch.save(model.state_dict(), path)
torch.save(torch.zeros(1000, 64), path + ".own")
kept = torch.load(path, mmap=True)
model.load_state_dict(kept, assign=True)
own = torch.load(path + ".own", mmap=True)
optimizer = torch.optim.Adam(model.parameters())
for step in range(4):
    train(own[:16] + 1)
"""
EVALUATES_AFTER_MANY_STEPS = """
for step in range(400):
    train(torch.randn(16, 64))
with torch.no_grad():
    model(torch.randn(3000, 64)).argmax(1)
"""
EVALUATES_RARELY = """
criterion = torch.nn.CrossEntropyLoss()
for step in range(1, 125):
    loss = criterion(model(torch.randn(16, 64)), torch.zeros(16, dtype=torch.long))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 50 == 0:
        with torch.no_grad():
            model(torch.randn(10, 64))
    if step % 120 == 0:
        with torch.no_grad():
            model(torch.randn(3000, 64)).argmax(1)
"""
SAVES_A_FILE = """
for step in range(2):
    train(torch.randn(16, 64))
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path)
"""
UPDATES_IN_HOOKS = """
def update(parameter):
    assert torch.isfinite(parameter.grad).all()
    parameter.data.add_(parameter.grad, alpha=-0.1)
    parameter.grad = None
for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(update)
for step in range(STEPS):
    model(torch.randn(16, 64)).sum().backward()
"""
ACCUMULATES_FOR_LONG = """
for step in range(40):
    model(torch.randn(16, 64)).sum().backward()
    if step % 20 == 19:
        optimizer.step()
        optimizer.zero_grad()
"""
TRAINS_LONG = """
for step in range(100_000):
    train(torch.randn(16, 64))
"""

SAMPLES_INSIDE_A_MODULE = """
class Sampler(torch.nn.Module):
    def __init__(self, net, count):
        super().__init__()
        self.net, self.count = net, count
    def forward(self, x):
        for _ in range(self.count):
            x = x + self.net(x).mean(1, keepdim=True)
        return x
sampler = Sampler(model, 400)
for x, _ in batches(64, 16):
    train(x)
with torch.no_grad():
    sampler(torch.zeros(900, 64))
"""
GROWING_CACHE = """
class Writer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.position = torch.nn.Linear(64, 64), 0
        self.register_buffer("cache", torch.zeros(4096, 64))
    def forward(self, x):
        self.position += 60
        return self.net(x) + (self.cache[: self.position] * 2).sum(0)
writer = Writer()
for x, _ in batches(64, 16):
    train(x)
with torch.no_grad():
    x = torch.zeros(1, 64)
    for _ in range(60):
        x = writer(x)
"""

TRAINS_IN_A_FUNCTION = """
def main():
    for x, y in batches(96, 32):
        optimizer.zero_grad()
        result = model(x)
        loss = result.sum()
        loss.backward()
        optimizer.step()
        loss.item()
main()
"""


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Both runs free what is in reference cycles at the same moment: never. Else it hangs on what came before."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def predicted(folder: Path, text: str) -> TraceReply:
    (folder / "train.py").write_text(START + text)
    (folder / "scratch").mkdir()
    job = describe_job(str(folder / "train.py"), {}, ())
    options, scratch = PredictOptions(num_steps=3), str(folder / "scratch")
    reply = answer(TraceRequest(job=job, device="cpu", options=options, scratch_folder=scratch), ProbesHere())
    assert isinstance(reply, TraceReply), reply
    return reply


def said(reply: TraceReply, kind: str) -> list[str]:
    return [assumption.text for assumption in reply.assumptions if assumption.kind == kind]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(EVALUATES_AFTER_EACH_EPOCH, id="evaluates after each epoch"),
        pytest.param(COLLECTS_RESULTS, id="collects the results of an evaluation"),
        pytest.param(COLLECTS_ARRAYS, id="keeps arrays of its batches"),
        pytest.param(EVALUATES_WITH_GRADIENTS, id="collects results with gradients on"),
        pytest.param(GOES_ON_BESIDE_A_GRAPH, id="runs a model beside results whose graph nothing went back through"),
        pytest.param(KEEPS_THE_BEST_MODEL, id="keeps a copy of a trained model"),
        pytest.param(GOES_ON_BESIDE_A_CHECKPOINT, id="updates beside a loaded checkpoint and a best state"),
        pytest.param(GROWS_IN_THE_LAST_STAGE, id="evaluates beside batches that grow"),
        pytest.param(A_CHILD_PREPARES, id="a child Python prepares the data"),
        pytest.param(A_CHILD_HAS_ITS_OWN, id="a child Python sets what is its own"),
        pytest.param(COPIES_TIED_WEIGHTS, id="copies the state of tied weights"),
        pytest.param(EVALUATES_LONG_BEFORE_AND_AFTER, id="evaluates long before and after"),
        pytest.param(ACCUMULATES, id="accumulates gradients"),
        pytest.param(LAST_BATCH_IS_SMALLER, id="last batch is smaller"),
        pytest.param(RESUMES_ITS_OWN, id="resumes what it saved"),
        pytest.param(RESUMES_A_FILE, id="resumes a file"),
        pytest.param(READS_A_LIST, id="data come from a list"),
        pytest.param(ASKS_INFERENCE_TENSORS, id="asks tensors of inference mode for values"),
        pytest.param(SOLVES, id="solves linear systems"),
        pytest.param(EVALUATES_AFTER_MANY_STEPS, id="evaluates a larger batch after 400 steps"),
        pytest.param(EVALUATES_RARELY, id="samples every 50 steps and evaluates every 120"),
        pytest.param(SAMPLES_PASS_A_MODULE, id="each sample passes a module without parameters"),
        pytest.param(SAMPLES_INSIDE_A_MODULE, id="a module samples with another"),
        pytest.param(GROWING_CACHE, id="a model fills a cache that it was made with"),
        pytest.param(TRAINS_IN_A_FUNCTION, id="a function trains"),
        pytest.param(READS_NUMPY, id="data lie in numpy arrays"),
        pytest.param(OLD_TYPES_OF_ARRAYS, id="torch.FloatTensor(array)"),
        pytest.param(MOVES_HELD_PARAMETERS, id="parameters that a graph holds are cast"),
    ],
)
def test_the_peak_of_the_whole_script_is_predicted_to_the_byte(
    tmp_path: Path, text: str, no_collector: None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(steps, "LEAST_TO_EVALUATION_SECONDS", 20.0)  # how far five seconds reach is the processor's
    monkeypatch.setattr(steps, "MOST_AFTER_SECONDS", 60.0)
    script = str(tmp_path / "train.py")
    if text is RESUMES_A_FILE:
        Path(script).write_text(START + SAVES_A_FILE)
        real_script_peak(script, (), sys.maxsize)
    reply = predicted(tmp_path, text)
    assert peak_of(reply.timeline, "cpu")[0] == real_script_peak(script, (), sys.maxsize)
    assert said(reply, steps.UNSEEN) == []


@pytest.mark.parametrize("num_steps", [2, 100_000])
def test_updates_without_a_step_of_an_optimizer_are_counted_by_backwards(tmp_path: Path, num_steps: int):
    reply = predicted(tmp_path, UPDATES_IN_HOOKS.replace("STEPS", str(num_steps)))
    assert reply.num_steps == min(num_steps, 3)
    assert BY_BACKWARDS in said(reply, "script")
    (tmp_path / "train.py").write_text(START + UPDATES_IN_HOOKS.replace("STEPS", "3"))
    assert peak_of(reply.timeline, "cpu")[0] == real_script_peak(str(tmp_path / "train.py"), (), sys.maxsize)


def test_gradients_that_accumulate_wait_for_their_optimizer(tmp_path: Path):
    reply = predicted(tmp_path, ACCUMULATES_FOR_LONG)
    assert reply.num_steps == 2
    assert BY_BACKWARDS not in said(reply, "script")


def test_l_bfgs_makes_all_the_iterations_that_it_may(tmp_path: Path):
    reply = predicted(tmp_path, SEARCHES_A_LINE)
    real = real_script_peak(str(tmp_path / "train.py"), (), sys.maxsize)
    assert abs(peak_of(reply.timeline, "cpu")[0] - real) < 1e-3 * real
    assert SEARCHES in said(reply, "upper bound")
    assert BY_BACKWARDS not in said(reply, "script")


def test_steps_that_keep_their_graphs_are_listed(tmp_path: Path):
    text = "\nlosses = []\nfor step in range(1000):\n    loss = model(torch.randn(16, 64)).pow(2).sum()\n"
    text += "    loss.backward(retain_graph=True)\n    optimizer.step()\n    losses.append(loss)\n"
    assert [line for line in said(predicted(tmp_path, text), UNSEEN) if line.startswith("every step leaves ")]


def test_a_study_says_that_later_trials_were_not_followed(tmp_path: Path):
    library = tmp_path / "hyperopt" / "searching.py"
    library.parent.mkdir()
    (library.parent / "__init__.py").touch()
    library.write_text("def optimize(objective):\n    while True:\n        objective()\n")
    text = f"\nimport sys\nsys.path.insert(0, {str(tmp_path)!r})\nfrom hyperopt import searching\n"
    reply = predicted(tmp_path, text + "searching.optimize(lambda: train(torch.randn(16, 64)))\n")
    assert [line for line in said(reply, UNSEEN) if "many trials" in line]


def test_sparse_matrices_are_followed_by_their_entries(tmp_path: Path):
    reply = predicted(tmp_path, MULTIPLIES_SPARSE)
    real = real_script_peak(str(tmp_path / "train.py"), (), sys.maxsize)
    assert abs(peak_of(reply.timeline, "cpu")[0] - real) < 0.03 * real
    assert said(reply, UNSEEN) == [INSIDE] * len(said(reply, UNSEEN)) != []


PASSES_MESSAGES = """
torch.sparse.check_sparse_tensor_invariants.disable()
places = torch.stack([torch.arange(5000) % 300, torch.arange(5000) * 7 % 290])
edges = torch.sparse_coo_tensor(places, torch.ones(5000), (300, 300))
layer = torch.nn.Linear(64, 8)
optimizer = torch.optim.SGD(layer.parameters())
data = torch.randn(300, 64)
for step in range(3):
    optimizer.zero_grad()
    torch.spmm(edges{}, layer(data)).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("made", ["", ".coalesce()"])
def test_what_products_with_sparse_matrices_take_inside_is_seen_by_probes(tmp_path: Path, made: str):
    reply = predicted(tmp_path, PASSES_MESSAGES.replace("{}", made))
    real = real_script_peak(str(tmp_path / "train.py"), (), sys.maxsize)
    assert abs(peak_of(reply.timeline, "cpu")[0] - real) <= 16
    assert said(reply, UNSEEN) == []


OPENS_AND_COMPILES = """
from sqlite3 import dbapi2
dbapi2.connect(path + ".db").execute("create table t (a)")
@torch.jit.script
def shift(x):
    return x + torch.tensor(1.0)
for step in range(3):
    train(shift(torch.randn(16, 64)))
"""


def test_a_database_by_the_name_that_sqlalchemy_uses_and_torchscript_of_what_is_replaced(tmp_path: Path):
    predicted(tmp_path, OPENS_AND_COMPILES)
    assert not list(tmp_path.glob("*.db"))


def counted_peak(script: Path) -> int:
    """The peak of the allocator's own bytes over a whole script, counted from outside of torch."""
    source = Path(__file__).parents[2] / "benchmarks" / "accuracy" / "allocator_counter.c"
    library, peak = script.with_name("counter.so"), script.with_name("peak")
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl", "-lpthread"], check=True)
    environment = os.environ | {"LD_PRELOAD": str(library), "ALLOCATOR_PEAK_FILE": str(peak), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, script], check=True, env=environment)
    return int.from_bytes(peak.read_bytes(), "little")


@pytest.mark.parametrize("text", [LOADS_SAFETENSORS, LOADS_MAPPED], ids=["safetensors", "torch.load(mmap=True)"])
def test_tensors_in_a_mapped_file_are_not_of_the_allocator(tmp_path: Path, text: str):
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    script = tmp_path / "train.py"
    script.write_text(START + text)
    subprocess.run([sys.executable, script], check=True)
    reply = predicted(tmp_path, text)
    assert peak_of(reply.timeline, "cpu")[0] == counted_peak(script)
    assert reply.data_bytes >= 4 * 64 * 512, "the process holds them"


def test_what_is_saved_as_safetensors_is_read_back(tmp_path: Path):
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    reply = predicted(tmp_path, SAVES_SAFETENSORS)
    assert not said(reply, UNSEEN)
    assert not list(tmp_path.glob("*.folder")), "the script's own folder is left as it was"
    script = tmp_path / "train.py"
    # A name may be in the file twice in the prediction; what is read is copied for as many names as in a real run.
    assert peak_of(reply.timeline, "cpu")[0] >= counted_peak(script)


@pytest.mark.parametrize(("count", "is_said"), [(80, True), (6, False)], ids=["40 batches", "all 3 are seen"])
def test_batches_of_different_lengths_say_that_larger_ones_may_follow(tmp_path: Path, count: int, is_said: bool):
    reply = predicted(tmp_path, LENGTHS_DIFFER.replace("COUNT", str(count)))
    assert (LARGER_MAY_FOLLOW in said(reply, UNSEEN)) == is_said, reply.assumptions


def test_a_long_evaluation_is_cut_and_that_is_listed(tmp_path: Path):
    reply = predicted(tmp_path, EVALUATES_LONG_BEFORE_AND_AFTER)
    left_out = [one for one in reply.assumptions if "were not run again" in one.text]
    assert len(left_out) == 1
    assert left_out[0].count > 290
    assert reply.num_operators < 6000


def test_calls_inside_of_a_module_that_repeat_are_cut_too(tmp_path: Path):
    reply = predicted(tmp_path, SAMPLES_INSIDE_A_MODULE)
    assert sum(one.count for one in reply.assumptions if "were not run again" in one.text) > 380


def test_an_evaluation_that_is_not_reached_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(steps, "LEAST_TO_EVALUATION_SECONDS", 0.1)
    monkeypatch.setattr(steps, "TO_THE_END_SECONDS", 0.1)
    started = time.process_time()
    reply = predicted(tmp_path, TRAINS_LONG + "model.eval()\n")
    assert said(reply, steps.UNSEEN) == [
        "an evaluation after the steps, if there is one, was not reached in time: it is not in the figures"
    ]
    assert time.process_time() - started < 60


def test_a_training_without_evaluation_misses_none(tmp_path: Path):
    assert said(predicted(tmp_path, TRAINS_LONG), steps.UNSEEN) == []


def test_batches_of_workers_are_not_of_the_allocator(tmp_path: Path):
    data = "TensorDataset(torch.zeros(8000, 64))"
    loader = f"\nfor (x,) in DataLoader({data}, batch_size=1000, num_workers={{}}):\n    train(x)\n"
    peaks, data_bytes = [], []
    for workers in (0, 2):
        (tmp_path / str(workers)).mkdir()
        reply = predicted(tmp_path / str(workers), loader.format(workers))
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
    reply = predicted(tmp_path, SHARES_ITS_MODEL)
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
    assert said(predicted(tmp_path, WRITES_CODE), steps.UNSEEN) == []
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
    reply = predicted(tmp_path, text + "some_trainer.fit(model, optimizer, torch.randn(16, 64))\n")
    assert any(item.kind == UNSEEN and "if there is one" in item.text for item in reply.assumptions)


JOINS_MANY_ENTRIES = """
import torch
weights = torch.nn.Parameter(torch.randn(300, 4))
optimizer = torch.optim.Adam([weights])
for step in range(3):
    dense = weights @ weights.t()
    places = (dense > 0).nonzero().t()
    joined = torch.sparse_coo_tensor(places, torch.ones(places.shape[1]), (300, 300)).coalesce()
    optimizer.zero_grad()
    torch.sparse.mm(joined, weights).sum().backward()
    optimizer.step()
"""


def test_entries_too_many_to_be_made_up_are_taken_to_be_all_different(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("memfit.predict.fake.kernels.sparse.MOST_MADE_UP", 1000)
    reply = predicted(tmp_path, JOINS_MANY_ENTRIES)
    assert reply.num_steps == 3
    assert any("nonzero" in text for text in said(reply, "upper bound"))


EVALUATES_IN_INFERENCE_MODE = """
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.dropout, self.norm = torch.nn.Linear(64, 64), torch.nn.Dropout(0.1), torch.nn.LayerNorm(64)
    def forward(self, x):
        scores = (self.first(x) @ x.transpose(0, 1)).softmax(-1)
        weights = self.dropout(scores)
        again = self.dropout(weights)
        return self.norm(again @ x), weights, scores
model = Block()
optimizer = torch.optim.Adam(model.parameters())
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(16, 64))[0].sum().backward()
    optimizer.step()
model.eval()
with torch.inference_mode():
    for x, _ in batches(1000, 500):
        model(x)[0].sum().item()
"""


def test_a_dropout_that_drops_nothing_copies_nothing_in_inference_mode(tmp_path: Path):
    reply = predicted(tmp_path, EVALUATES_IN_INFERENCE_MODE)
    assert peak_of(reply.timeline, "cpu")[0] == real_script_peak(str(tmp_path / "train.py"), (), sys.maxsize)


PACKS = """
from torch.nn.utils.rnn import pack_padded_sequence
class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, index):
        return torch.zeros(9, 64), torch.tensor(9 if index % 4 == 0 else {length})
layer = torch.nn.GRU(64, 8, batch_first=True)
optimizer = torch.optim.SGD(layer.parameters())
for epoch in range(2):
    for texts, lengths in DataLoader(Texts(), 4):
        optimizer.zero_grad()
        layer(pack_padded_sequence(texts, lengths, True, False))[1].sum().backward()
        optimizer.step()
"""


@pytest.mark.parametrize(("length", "is_said"), [("5", False), ("1 + index % 4 + index // 8", True)])
def test_packed_texts_of_batches_that_were_not_seen_may_be_longer(tmp_path: Path, length: str, is_said: bool):
    reply = predicted(tmp_path, PACKS.replace("{length}", length))
    assert (steps.LONGER_MAY_FOLLOW in said(reply, UNSEEN)) == is_said


READS_A_TABLE = """
import numpy as np
table = np.zeros((400, 400), dtype="float32")
table[::7, ::5] = 1.0
edges = torch.FloatTensor(table).nonzero()
assert len(torch.FloatTensor(table.astype("float64")).nonzero()) == len(edges)
for step in range(3):
    optimizer.zero_grad()
    (model(torch.randn(len(edges), 64)) * edges.float().mean()).sum().backward()
    optimizer.step()
"""


def test_the_values_of_an_array_of_any_size_are_known(tmp_path: Path):
    reply = predicted(tmp_path, READS_A_TABLE)
    assert said(reply, "upper bound") == []


SUMS_BAGS = """
bags = torch.nn.EmbeddingBag(2000, 16, mode="sum", sparse=True)
optimizer = torch.optim.SGD(bags.parameters(), lr=0.1)
indices, starts = torch.randint(0, 2000, (5000,)), torch.arange(0, 5000, 50)
for step in range(3):
    optimizer.zero_grad()
    bags(indices, starts).sum().backward()
    optimizer.step()
"""


def test_sparse_gradients_of_bags_have_a_row_for_every_index(tmp_path: Path):
    reply = predicted(tmp_path, SUMS_BAGS)
    real_bytes = real_script_peak(str(tmp_path / "train.py"), (), sys.maxsize)
    assert 0.9 * real_bytes < peak_of(reply.timeline, "cpu")[0] <= real_bytes
    assert any("EmbeddingBag" in text for text in said(reply, steps.UNSEEN))


SHOWS_ITS_MODEL = """
for step in range(100000):
    train(torch.randn(16, 64))
picture = model(torch.randn(3000, 64))
"""


def test_a_model_called_behind_the_loop_is_reached_or_listed(tmp_path: Path):
    reply = predicted(tmp_path, SHOWS_ITS_MODEL)
    assert [text for text in said(reply, UNSEEN) if "was not reached in time" in text]


DECODES_BEHIND_ITS_LOOP = """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 8)
    def encode(self, x):
        return self.layer(x)
    def compare(self, z):
        return z @ z.t()
def show(net, x):
    return net.compare(net.encode(x))
net = Net()
optimizer = torch.optim.Adam(net.parameters())
def test(x):
    with torch.no_grad():
        return net.encode(x).sum().item()
for epoch in range(60):
    x = torch.zeros(300, 64)
    optimizer.zero_grad()
    net.encode(x).sum().backward()
    optimizer.step()
    test(x)
"""


@pytest.mark.parametrize("behind", ["net.compare(net.encode(x))", "show(net, x)"], ids=["a method", "a function"])
def test_what_a_model_does_behind_a_loop_that_evaluates_is_reached(tmp_path: Path, behind: str, no_collector: None):
    reply = predicted(tmp_path, DECODES_BEHIND_ITS_LOOP + behind + "\n")
    assert peak_of(reply.timeline, "cpu")[0] == real_script_peak(str(tmp_path / "train.py"), (), sys.maxsize)
    assert said(reply, UNSEEN) == []


def test_what_a_model_does_behind_a_loop_is_listed_with_its_line_where_time_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(steps, "LEAST_TO_EVALUATION_SECONDS", 0.0)
    monkeypatch.setattr(steps, "TO_EVALUATION_SHARE", 0.0)
    monkeypatch.setattr(steps, "TO_THE_END_SECONDS", 0.0)
    reply = predicted(tmp_path, DECODES_BEHIND_ITS_LOOP + "net.compare(net.encode(x))\n")
    line = len((START + DECODES_BEHIND_ITS_LOOP).splitlines()) + 1
    assert [text for text in said(reply, UNSEEN) if f"behind the training loop, at train.py:{line}" in text]


def test_losses_that_are_kept_are_listed_where_a_loader_was_ended_early(tmp_path: Path):
    text = "losses = []\nfor epoch in range(2):\n    for x, _ in batches(400, 8):\n"
    text += "        optimizer.zero_grad()\n        loss = model(x).sum()\n        loss.backward()\n"
    reply = predicted(tmp_path, text + "        optimizer.step()\n        losses.append(model(x).detach())\n")
    assert [line for line in said(reply, UNSEEN) if line.startswith("every step leaves")]


@pytest.mark.parametrize(
    ("live", "kept"),
    [
        ([100, 500, 516, 532], 16),
        ([100, 500, 500, 500], 0),
        ([100, 900, 420, 916, 436, 932, 452, 948, 468, 964], 8),
        ([100, 900, 420, 900, 420, 900, 420, 900, 420, 900], 0),
        ([100, 900, 420, 900, 420, 900, 720, 1200, 720, 1200], 0),
    ],
)
def test_growth_from_step_to_step_is_seen_below_batches_of_different_sizes(live: list[int], kept: int):
    assert steps._kept_by_steps(live) == kept


SEVERAL_OPTIMIZERS = """
pairs = [(layer, torch.optim.Adam(layer.parameters())) for layer in (torch.nn.Linear(64, 8) for _ in range(3))]
losses = []
for epoch in range(4):
    for x, _ in batches(160, 16):
        for layer, optimizer in pairs:
            optimizer.zero_grad()
            loss = layer(x).pow(2).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.data.numpy())
"""


def test_what_steps_keep_is_listed_beside_the_states_that_other_optimizers_make_first(tmp_path: Path):
    reply = predicted(tmp_path, "del model, optimizer" + SEVERAL_OPTIMIZERS)
    assert [line for line in said(reply, UNSEEN) if line.startswith("every step leaves")]


COUNTING_ENGINE = """
class Engine:
    batch = None
    def run(self, step, loader, after):
        data = iter(loader)
        for epoch in range(2):
            made, restarted = 0, False
            while made < len(loader):
                try:
                    self.batch = next(data)
                    made, restarted = made + 1, False
                except StopIteration:
                    if restarted:
                        break
                    data, restarted = iter(loader), True
                    continue
                step(self.batch[0])
            after()
"""
COUNTED = """
import ignite
engine = ignite.Engine()
def evaluate():
    with torch.no_grad():
        model(torch.randn(900, 64))
engine.run(train, batches(64 * 9 + 4, 64), evaluate)
"""


def test_a_loop_that_counts_the_batches_of_an_epoch_ends_with_the_last_one(
    tmp_path: Path, no_collector: None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "ignite.py").write_text(COUNTING_ENGINE)
    reply = predicted(tmp_path, COUNTED)
    sys.modules.pop("ignite", None)
    assert peak_of(reply.timeline, "cpu")[0] == real_script_peak(str(tmp_path / "train.py"), (), sys.maxsize)
    sys.modules.pop("ignite", None)


PLAYS = """
import random
policy = torch.nn.Linear(4, 2)
optimizer = torch.optim.Adam(policy.parameters())
def act(state):
    return torch.distributions.Categorical(policy(torch.tensor(state)).softmax(-1)).sample().item()
def learn(states):
    optimizer.zero_grad()
    policy(torch.tensor(states)).sum().backward()
    optimizer.step()
def move(state, action):
    state = [x + random.random() * (action - 0.5) for x in state]
    return state, abs(state[0]) > 1
for episode in range(30):
    state, done, states = [0.0] * 4, False, []
    START:
        state, done = move(state, act(state))
        states.append(state)
        STOP
    learn(states)
"""


@pytest.mark.parametrize(
    ("start", "stop", "is_listed"),
    [
        ("while not done", "", True),
        ("for _ in range(50)", "if done: break", True),
        ("for _ in range(50)", "", False),
        ("for turn in range(50)", "if turn == 9: break", False),
    ],
)
def test_a_rollout_that_ends_by_its_actions_is_listed(tmp_path: Path, start: str, stop: str, is_listed: bool):
    text = PLAYS.replace("START", start).replace("STOP", stop)
    reply = predicted(tmp_path, text)
    line = (START + text).splitlines().index(f"    {start}:") + 1
    assert (ROUNDS.format(line=f"train.py:{line}") in said(reply, UNSEEN)) is is_listed


def test_a_training_that_stops_early_is_no_rollout(tmp_path: Path):
    text = "right = []\nfor epoch in range(30):\n    x = torch.randn(8, 64)\n    train(x)\n"
    text += "    found = (model(x).argmax(1) == 0).sum().item()\n    right.append(found)\n    if found == 8: break\n"
    assert [each for each in said(predicted(tmp_path, text), UNSEEN) if each.startswith("how often")] == []


TRACES = """
checked = torch.jit.trace(model, torch.randn(4000, 64))
for step in range(4):
    train(torch.randn(16, 64))
once = torch.jit.trace(model, (torch.randn(3000, 64),), check_trace=False)
"""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_trace_of_torchscript_holds_nothing_for_a_backward(tmp_path: Path, no_collector: None):
    reply = predicted(tmp_path, TRACES)
    real_bytes = real_script_peak(str(tmp_path / "train.py"), (), sys.maxsize)
    assert peak_of(reply.timeline, "cpu")[0] == pytest.approx(real_bytes, rel=1e-3)


KEEPS_SAMPLES = """
samples, fixed = [], torch.randn(200, 64)
for epoch in range(2000):
    for x, _ in batches(100, 16):
        train(x)
    samples.append(model(fixed).detach(){kept})
"""


@pytest.mark.parametrize(("kept", "is_said"), [("", True), (".sum().item()", False)])
def test_what_every_round_over_the_data_keeps_is_listed(tmp_path: Path, kept: str, is_said: bool):
    reply = predicted(tmp_path, KEEPS_SAMPLES.format(kept=kept))
    assert any("every round over the data leaves" in text for text in said(reply, UNSEEN)) == is_said


SAMPLES_OF_A_CLASS = """
class Samples(torch.utils.data.Dataset):
    kept = {{}}
    def __len__(self):
        return 640
    def __getitem__(self, index):
        {sample}
for epoch in range(2):
    for x in DataLoader(Samples(), batch_size=32):
        train(x.reshape(-1, 64))
    with torch.no_grad():
        print(model(torch.randn(8, 64)).sum().item())
"""
LATE_ONES_ARE_LARGER = "return torch.randn(1 if index < 320 else 40, 64)"
KEEPS_ALL = "return self.kept.setdefault(index, torch.randn(40, 64))"


@pytest.mark.parametrize("sample", [LATE_ONES_ARE_LARGER, KEEPS_ALL], ids=["late ones are larger", "all are kept"])
def test_a_loader_whose_later_samples_take_more_is_not_ended_early(tmp_path: Path, sample: str):
    reply = predicted(tmp_path, SAMPLES_OF_A_CLASS.format(sample=sample))
    real_bytes = real_script_peak(str(tmp_path / "train.py"), (), sys.maxsize)
    assert peak_of(reply.timeline, "cpu")[0] == pytest.approx(real_bytes, rel=1e-3)


SEARCHES_A_WIDTH = """
def fit(width):
    global model, optimizer
    model = torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.Linear(width, 10))
    optimizer = torch.optim.Adam(model.parameters())
    for x, _ in batches(100, 16):
        train(x)
    return model(x).sum().item()
results = [(fit(width), width) for width in (8, 64, 32)]
best = {best}
fit(best)
"""


@pytest.mark.parametrize(("best", "is_said"), [("min(results)[1]", True), ("256", False)])
def test_a_training_whose_size_a_search_chose_is_listed(tmp_path: Path, best: str, is_said: bool):
    reply = predicted(tmp_path, SEARCHES_A_WIDTH.format(best=best))
    assert any("models of 3 sizes, 2.38 KiB to 18.8 KiB" in text for text in said(reply, UNSEEN)) == is_said


def test_a_launcher_is_not_predicted_in_place_of_what_it_launches(tmp_path: Path):
    text = "import subprocess, sys\n"
    text += "code = 'import torch; torch.nn.Linear(9, 9)(torch.ones(1, 9)).sum().backward()'\n"
    (tmp_path / "train.py").write_text(text + "subprocess.run([sys.executable, '-c', code], check=True)\n")
    (tmp_path / "scratch").mkdir()
    job = describe_job(str(tmp_path / "train.py"), {}, ())
    options = PredictOptions(num_steps=1)
    reply = answer(TraceRequest(job=job, device="cpu", options=options, scratch_folder=str(tmp_path / "scratch")))
    assert isinstance(reply, Failure)
    assert (reply.kind, reply.found) == ("processes", "a child Python that trains")


READS_LABELS = """
data = [(torch.randn(64), number // 64) for number in range({count})]
for epoch in range({epochs}):
    for x, y in DataLoader(data, batch_size=32):
        train(torch.cat([x] * (int(y.max()) + 1)))
"""


@pytest.mark.parametrize(("count", "epochs", "is_said"), [(640, 2, True), (96, 1, False)], ids=["a part", "all"])
def test_integers_read_from_batches_are_those_of_the_batches_that_were_seen(
    tmp_path: Path, count: int, epochs: int, is_said: bool
):
    reply = predicted(tmp_path, READS_LABELS.format(count=count, epochs=epochs))
    assert any(text.endswith(OF_SEEN) for text in said(reply, "assumed value")) == is_said, reply.assumptions
