"""Does an unmodified script run as a ghost: foreseen to the byte, nothing written, its mistakes named?"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from memfit.job.description import describe_job  # noqa: E402
from memfit.predict.liveness import peak_of  # noqa: E402
from memfit.predict.messages import Failure, Reply, TraceReply, TraceRequest  # noqa: E402
from memfit.predict.torch_child import answer  # noqa: E402
from memfit.predict.torch_truth import real_script_peak  # noqa: E402

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
        job=describe_job(str(script), {}, arguments), device="cpu", num_steps=num_steps, with_probes=False,
        scratch_folder=str(scratch),
    )  # fmt: skip
    return answer(request)


def failure(folder: Path, text: str, *arguments: str) -> Failure:
    reply = ghost(folder, text, *arguments)
    assert isinstance(reply, Failure)
    return reply


def test_a_script_is_foreseen_to_the_byte_with_its_own_arguments(tmp_path: Path):
    arguments = ("--batch-size", "16", "--out", str(tmp_path / "results"))
    reply = ghost(tmp_path, TRAIN, *arguments)
    assert isinstance(reply, TraceReply)
    assert reply.num_steps == 3
    real = real_script_peak(str(tmp_path / "train.py"), arguments, num_steps=3)
    assert peak_of(reply.timeline, "cpu")[0] == real


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
    assert "torch_ghost" not in failed.traceback


@pytest.mark.parametrize(
    ("text", "kind", "says"),
    [
        ("print('hello')", "no step", "without an optimizer step"),
        ("import sys; sys.exit(4)", "script", "exit code 4"),
        ("import subprocess; subprocess.run(['true'])", "processes", "starts processes"),
        ("import os; os.system('true')", "processes", "starts processes"),
        ("import multiprocessing as m; m.get_context('fork').Process(target=print).start()", "processes", "processes"),
        (
            "import torch\nx = torch.randn(4, requires_grad=True)\ntorch.repeat_interleave(x, (x > 0).long())",
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
