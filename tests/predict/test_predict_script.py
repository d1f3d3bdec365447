"""Does an unmodified script run as a ghost: predicted to the byte, nothing written, its mistakes named?"""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import memfit  # noqa: E402
from memfit.job.description import describe_job  # noqa: E402
from memfit.predict.child.messages import Failure, Reply, TraceReply, TraceRequest  # noqa: E402
from memfit.predict.fake.child_main import answer  # noqa: E402
from memfit.predict.fake.choose_route import can_fake_cuda  # noqa: E402
from memfit.predict.fake.probe.real_reference import real_script_peak  # noqa: E402
from memfit.predict.levels.liveness import live_bytes, peak_of  # noqa: E402
from memfit.predict.options import PredictOptions  # noqa: E402

TRAIN = """
import argparse, os
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--out", default="results")
options = parser.parse_args()
device = "cuda" if torch.cuda.is_available() else "cpu"
os.makedirs(options.out, exist_ok=True)

class Points(Dataset):
    def __len__(self):
        return 100
    def __getitem__(self, index):
        return torch.from_numpy(np.full((20,), index, dtype="float32")), index % 4

model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 4)).to(device)
optimizer = torch.optim.AdamW(model.parameters())
loader = DataLoader(Points(), batch_size=options.batch_size, shuffle=True, num_workers=0)
for epoch in range(3):
    for inputs, labels in loader:
        inputs, labels = inputs.to(device), labels.to(device)
        optimizer.zero_grad()
        outputs = model(inputs)
        loss = nn.functional.cross_entropy(outputs, labels)
        loss.backward()
        optimizer.step()
        correct = (outputs.argmax(1) == labels).float().mean().item()
        with open(os.path.join(options.out, "log.txt"), "a") as log:
            log.write(f"{loss.item():.3f} {correct}")
        torch.save(model.state_dict(), os.path.join(options.out, "model.pt"))
"""


def ghost(folder: Path, text: str, *arguments: str, num_steps: int = 3, name: str = "train.py") -> Reply:
    script = folder / name
    script.write_text(text)
    scratch = folder / "scratch"
    scratch.mkdir(exist_ok=True)
    request = TraceRequest(
        job=describe_job(str(script), {}, arguments), device="cpu", scratch_folder=str(scratch),
        options=PredictOptions(num_steps=num_steps, probes=False),
    )  # fmt: skip
    return answer(request)


def failure(folder: Path, text: str, *arguments: str) -> Failure:
    reply = ghost(folder, text, *arguments)
    assert isinstance(reply, Failure)
    return reply


def test_a_script_is_predicted_to_the_byte_with_its_own_arguments(tmp_path: Path):
    arguments = ("--batch-size", "16", "--out", str(tmp_path / "results"))
    reply = ghost(tmp_path, TRAIN, *arguments)
    assert isinstance(reply, TraceReply)
    assert reply.num_steps == 3
    real = real_script_peak(str(tmp_path / "train.py"), arguments, num_steps=3)
    assert peak_of(reply.timeline, "cpu")[0] == real


WEAKLY_HELD = """
import torch, weakref
model = torch.nn.Linear(64, 64)
held = [weakref.ref(parameter) for parameter in model.parameters()]
model.to("cpu")
assert all(one() is other for one, other in zip(held, model.parameters()))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(64, 64)).sum().backward()
    optimizer.step()
    model.to("cpu")
"""


def test_parameters_to_which_a_script_holds_weak_references_can_be_moved(tmp_path: Path):
    replies = [ghost(tmp_path, text) for text in (WEAKLY_HELD, WEAKLY_HELD.replace('model.to("cpu")', "pass"))]
    moved, kept = (peak_of(reply.timeline, "cpu")[0] for reply in replies if isinstance(reply, TraceReply))
    assert moved == kept


CONDITION_OF_BYTES = """
import torch
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
mask = torch.ones(64, 64, dtype=torch.uint8).triu(1)
for step in range(3):
    optimizer.zero_grad()
    torch.where(mask, model(torch.randn(64, 64)), torch.zeros(64, 64)).sum().backward()
    optimizer.step()
"""


@pytest.mark.filterwarnings("ignore:where received a uint8 condition")
def test_a_condition_of_bytes_is_made_a_mask_as_the_kernel_does(tmp_path: Path):
    reply = ghost(tmp_path, CONDITION_OF_BYTES)
    assert isinstance(reply, TraceReply), reply
    assert peak_of(reply.timeline, "cpu")[0] == real_script_peak(str(tmp_path / "train.py"), (), num_steps=3)


def test_a_script_writes_nothing_of_its_own(tmp_path: Path):
    reply = ghost(tmp_path, TRAIN, "--out", str(tmp_path / "results"))
    assert isinstance(reply, TraceReply)
    assert sorted(os.listdir(tmp_path)) == ["scratch", "train.py"]
    texts = [item.text for item in reply.assumptions]
    assert "a checkpoint was not written" in texts
    assert any("kept in a scratch folder" in text for text in texts)


@pytest.mark.parametrize(
    "change",
    [
        "import os; os.remove({victim!r})",
        "import os; os.rename({victim!r}, {victim!r} + 'x')",
        "import shutil, os; shutil.rmtree(os.path.dirname({victim!r}), ignore_errors=True)",
        "open({victim!r}, 'w').write('gone')",
        "from pathlib import Path; Path({victim!r}).write_text('gone')",
        "import os; os.close(os.open({victim!r}, os.O_WRONLY | os.O_TRUNC))",
        "import io; io.FileIO({victim!r}, 'w')",
    ],
)
def test_no_way_of_changing_a_file_reaches_it(tmp_path: Path, change: str):
    (tmp_path / "data").mkdir()
    victim = tmp_path / "data" / "precious.txt"
    victim.write_text("precious")
    ghost(tmp_path, change.format(victim=str(victim)))
    assert victim.read_text() == "precious"


def test_what_was_written_can_be_read_back(tmp_path: Path):
    text = (
        f"open({str(tmp_path / 'a.txt')!r}, 'w').write('x')\nassert open({str(tmp_path / 'a.txt')!r}).read() == 'x'\n"
    )
    assert failure(tmp_path, text).kind == "no step"


def test_a_mistake_of_the_script_shows_its_own_line_and_how_far_it_came(tmp_path: Path):
    text = TRAIN.replace("correct = (outputs", 'raise ValueError("mine")\n        correct = (outputs')
    failed = failure(tmp_path, text)
    assert failed.kind == "script"
    assert "after 1 optimizer steps" in failed.what
    assert failed.found == "ValueError: mine"
    assert "train.py" in failed.traceback
    assert "memfit/predict" not in failed.traceback


@pytest.mark.parametrize(
    ("text", "kind", "says"),
    [
        ("print('hello')", "no step", "without an optimizer step"),
        ("import sys; sys.exit(4)", "script", "exit code 4"),
        ("import subprocess; subprocess.run(['rm', 'x'])", "processes", "starts processes"),
        ("import subprocess; subprocess.run('git log; rm x', shell=True)", "processes", "starts processes"),
        ("import subprocess; subprocess.run(['git', 'push'])", "processes", "starts processes"),
        ("import os; os.system('rm x')", "processes", "starts processes"),
        ("import os; os.fork()", "processes", "starts processes"),
        (
            "import torch\nx = torch.randn(40, requires_grad=True)\ntorch.repeat_interleave(x, (x > 0).long())",
            "data",
            "train.py:3 needs values",
        ),
    ],
)
def test_what_a_ghost_cannot_do_is_named(tmp_path: Path, text: str, kind: str, says: str):
    failed = failure(tmp_path, text)
    assert failed.kind == kind
    assert says in f"{failed.what} {failed.found}"
    assert failed.hint


def test_both_optimizers_of_a_gan_make_their_steps(tmp_path: Path):
    text = """
import torch
one, two = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
first, second = torch.optim.SGD(one.parameters()), torch.optim.Adam(two.parameters())
while True:
    for _ in range(2):
        one(torch.randn(2, 3)).sum().backward(); first.step(); first.zero_grad()
    two(torch.randn(2, 3)).sum().backward(); second.step(); second.zero_grad()
"""
    reply = ghost(tmp_path, text, num_steps=2)
    assert isinstance(reply, TraceReply)
    assert reply.num_steps == 4
    assert any(span.category == "optimizer state" for span in reply.timeline.spans)


def test_a_training_under_an_except_clause_still_ends(tmp_path: Path):
    text = """
import torch
model = torch.nn.Linear(3, 3)
optimizer = torch.optim.SGD(model.parameters())
for step in range(1000):
    try:
        model(torch.randn(2, 3)).sum().backward(); optimizer.step()
    except Exception:
        pass
"""
    reply = ghost(tmp_path, text)
    assert isinstance(reply, TraceReply)
    assert reply.num_steps == 3


KEEPS_CHECKPOINTS = """
import glob, io, os, shutil, torch

def save_raw(tensors, path):
    with open(path, "wb") as stream:
        for tensor in tensors.values():
            stream.write(tensor.detach().cpu().contiguous().numpy().tobytes())

folder = {folder!r}
os.makedirs(folder, exist_ok=True)
model = torch.nn.Linear(50, 10)
optimizer = torch.optim.Adam(model.parameters())
for step in range(4):
    model(torch.ones(8, 50)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    path = os.path.join(folder, f"{{step}}.raw")
    save_raw(model.state_dict(), path)
    assert os.path.getsize(path) == (50 * 10 + 10) * 4, os.path.getsize(path)
    torch.save({{"model": model.state_dict(), "step": step}}, os.path.join(folder, "new.pt"))
    os.replace(os.path.join(folder, "new.pt"), os.path.join(folder, "last.pt"))
    assert sorted(os.listdir(folder)) == [f"{{n}}.raw" for n in range(step + 1)] + ["last.pt"], os.listdir(folder)
    loaded = torch.load(os.path.join(folder, "last.pt"))
    assert loaded["step"] == step
    model.load_state_dict(loaded["model"])
    os.makedirs(os.path.join(folder, "old", "deep"))
    open(os.path.join(folder, "old", "deep", "a"), "w").close()
    shutil.rmtree(os.path.join(folder, "old"))
    assert glob.glob(os.path.join(folder, "old*")) == []
    buffer = io.BytesIO()
    torch.save(optimizer.state_dict(), buffer)
    buffer.seek(0)
    optimizer.load_state_dict(torch.load(buffer))
"""


def test_checkpoints_exist_for_the_script_and_for_nobody_else(tmp_path: Path):
    folder = tmp_path / "checkpoints"
    reply = ghost(tmp_path, KEEPS_CHECKPOINTS.format(folder=str(folder)))
    assert isinstance(reply, TraceReply), reply
    assert not folder.exists()
    assert any("checkpoint was not written" in assumption.text for assumption in reply.assumptions)


def test_a_checkpoint_keeps_no_tensor_alive(tmp_path: Path):
    """Saving every step holds nothing back: the steps after the first look alike."""
    saving = ghost(tmp_path, KEEPS_CHECKPOINTS.format(folder=str(tmp_path / "c")), num_steps=4)
    assert isinstance(saving, TraceReply), saving
    timeline = saving.timeline
    peaks = []
    live = live_bytes(timeline, "cpu")
    bounds = [mark.start for mark in timeline.phases if mark.phase == "update"]
    for start, end in itertools.pairwise([*bounds, timeline.num_events]):
        peaks.append(int(live[start:end].max()))
    assert len(set(peaks[1:3])) == 1, peaks


WRAPPED = """
import torch
model = torch.nn.DataParallel(torch.nn.Linear(8, 4).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    model(torch.randn(16, 8)).sum().backward()
    optimizer.step()
"""


@pytest.mark.skipif(bool(can_fake_cuda()), reason="fake CUDA tensors do not work with this build of torch")
def test_a_model_in_data_parallel_runs_on_one_gpu(tmp_path: Path):
    (tmp_path / "train.py").write_text(WRAPPED)
    prediction = memfit.predict_peak(str(tmp_path / "train.py"), device="cuda:a100-40gb", engine="fake")
    assert prediction.num_steps == 3


CUDA_TYPES = """
import numpy as np, torch
Tensor = torch.cuda.FloatTensor if torch.cuda.is_available() else torch.FloatTensor
model = torch.nn.Linear(64, 32).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(4):
    x, y = Tensor(np.random.normal(0, 1, (16, 64))), Tensor(16, 32).fill_(1.0)
    assert torch.zeros(3).type(torch.cuda.LongTensor).is_cuda
    assert torch.zeros(3).type("torch.cuda.HalfTensor").dtype is torch.float16
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
"""


@pytest.mark.skipif(bool(can_fake_cuda()), reason="fake CUDA tensors do not work with this build of torch")
def test_the_old_types_of_cuda_make_and_cast_tensors(tmp_path: Path):
    (tmp_path / "train.py").write_text(CUDA_TYPES)
    prediction = memfit.predict_peak(str(tmp_path / "train.py"), device="cuda:a100-40gb", engine="fake")
    assert prediction.num_steps == 3


@pytest.mark.skipif(torch.version.cuda is not None, reason="a CUDA build says otherwise")
def test_a_script_that_asks_for_a_gpu_is_shown_the_option(tmp_path: Path):
    failed = failure(tmp_path, "import torch\ntorch.nn.Linear(2, 2).cuda()")
    assert "--device cuda:a100-40gb" in failed.hint


DRAWS_ITS_GRAPH = """
import torch
from torch.utils.tensorboard import SummaryWriter
model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 36, 10))
SummaryWriter("runs").add_graph(model, torch.rand(1, 3, 8, 8))
traced = torch.jit.trace(model, torch.rand(2, 3, 8, 8))
assert traced(torch.rand(5, 3, 8, 8)).shape == (5, 10)
optimizer = torch.optim.Adam(model.parameters())
for step in range(3):
    optimizer.zero_grad()
    model(torch.rand(64, 3, 8, 8)).sum().backward()
    optimizer.step()
"""


def test_a_model_that_is_traced_or_drawn_runs_as_it_is(tmp_path: Path):
    pytest.importorskip("tensorboard")
    reply = ghost(tmp_path, DRAWS_ITS_GRAPH)
    assert isinstance(reply, TraceReply)
    assert reply.num_steps == 3
    assert not (tmp_path / "runs").exists()
    assert [item.text for item in reply.assumptions if "jit.trace" in item.text]


OWN_PARAMETERS = """
import torch
class Learner(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.vars = torch.nn.ParameterList([torch.nn.Parameter(torch.randn(8, 8)), torch.nn.Parameter(torch.randn(8))])
    def forward(self, x):
        return torch.nn.functional.linear(x, *self.vars)
    def parameters(self):
        return self.vars
model = Learner()
optimizer = torch.optim.Adam(model.parameters())
for step in range(4):
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
with torch.no_grad():
    model(torch.randn(4, 8))
"""


def test_a_model_with_a_method_parameters_of_its_own_is_followed(tmp_path: Path):
    reply = ghost(tmp_path, OWN_PARAMETERS)
    assert isinstance(reply, TraceReply)
    assert {span.module for span in reply.timeline.spans if span.category == "parameter"} == {"vars"}


MADE_ON_THE_GPU = """
import torch
torch.set_default_tensor_type("torch.cuda.FloatTensor")
model = torch.nn.Linear(64, 32)
assert model.weight.is_cuda and torch.rand(3).is_cuda and torch.Tensor([1.0, 2.0]).is_cuda
torch.set_default_tensor_type(torch.FloatTensor)
assert not torch.rand(3).is_cuda and not torch.Tensor([1.0]).is_cuda
torch.set_default_tensor_type(torch.cuda.HalfTensor)
assert torch.rand(3).dtype is torch.float16
torch.set_default_tensor_type("torch.cuda.FloatTensor")
optimizer = torch.optim.Adam(model.parameters())
for step in range(3):
    model(torch.rand(4, 64)).sum().backward()
    optimizer.step()
"""


@pytest.mark.skipif(bool(can_fake_cuda()), reason="fake CUDA tensors do not work with this build of torch")
def test_tensors_are_made_on_the_gpu_by_default(tmp_path: Path):
    (tmp_path / "train.py").write_text(MADE_ON_THE_GPU)
    prediction = memfit.predict_peak(str(tmp_path / "train.py"), device="cuda:a100-40gb", engine="fake")
    assert prediction.num_steps == 3


THREADS = """
import queue, threading
from concurrent.futures import ThreadPoolExecutor
import torch
from torch import nn
model = nn.Linear(64, 64)
optimizer = torch.optim.Adam(model.parameters())
def train():
    for _ in range(4):
        model(torch.randn(32, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    finished.put(None)
def evaluate(rows):
    with torch.no_grad():
        return model(torch.randn(rows, 64))
finished = queue.Queue()
{body}
"""
IN_A_THREAD = "threading.Thread(target=train).start(); finished.get()"
IN_A_POOL = "train(); ThreadPoolExecutor(2).submit(evaluate, 4096).result()"


@pytest.mark.parametrize(("body", "inline"), [(IN_A_THREAD, "train()"), (IN_A_POOL, "train(); evaluate(4096)")])
def test_what_threads_of_a_script_compute_is_followed_to_the_byte(tmp_path: Path, body: str, inline: str):
    """As the real run of the same work in the main thread, whose allocations the profiler sees."""
    reply = ghost(tmp_path, THREADS.format(body=body))
    assert isinstance(reply, TraceReply), reply
    (tmp_path / "inline.py").write_text(THREADS.format(body=inline))
    assert peak_of(reply.timeline, "cpu")[0] == real_script_peak(str(tmp_path / "inline.py"), (), 1000)


def test_a_run_ends_in_the_main_thread_where_its_steps_are_made_in_another(tmp_path: Path):
    text = THREADS.format(body="threading.Thread(target=train).start(); threading.Event().wait()")
    reply = ghost(tmp_path, text.replace("range(4)", "range(100000)"))
    assert isinstance(reply, TraceReply), reply


def test_threads_that_work_at_the_same_time_leave_no_band_for_the_whole_job(tmp_path: Path):
    body = "train(); ThreadPoolExecutor(1).submit(evaluate, 8).result(); evaluate(9)"
    reply = ghost(tmp_path, THREADS.format(body=body))
    assert isinstance(reply, TraceReply), reply
    assert any(item.kind == "not seen" and "threads" in item.text for item in reply.assumptions), reply.assumptions


@pytest.mark.parametrize(("width", "is_listed"), [(8, True), (2000, False)])
def test_a_list_of_losses_is_listed_where_a_thousand_of_them_count(tmp_path: Path, width: int, is_listed: bool):
    text = f"""
import torch
model = torch.nn.Linear({width}, {width})
optimizer = torch.optim.SGD(model.parameters(), 0.1)
losses = []
for _ in range(100000):
    loss = model(torch.ones(2, {width})).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())
"""
    reply = ghost(tmp_path, text, num_steps=4)
    assert isinstance(reply, TraceReply), reply
    assert any("every step leaves" in item.text for item in reply.assumptions) is is_listed


WRITTEN_SINCE = """
import torch
first, second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
optimizers = [torch.optim.Adam(model.parameters(), foreach={foreach}) for model in (first, second)]
for _ in range(3):
    hidden = first(torch.randn(2, 4))
    out = second(hidden)
    out.mean().backward(retain_graph=True)
    optimizers[1].step()
    (out ** 2).mean().backward()
    optimizers[0].step()
"""


@pytest.mark.parametrize("foreach", [False, True])
def test_a_backward_through_what_an_optimizer_wrote_since_is_refused(tmp_path: Path, foreach: bool):
    found = failure(tmp_path, WRITTEN_SINCE.format(foreach=foreach))
    assert "modified by an inplace operation" in str(found)
