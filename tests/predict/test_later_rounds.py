"""Does a prediction know what a training does in later rounds, or say that it does not?"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from memfit.job.description import describe_job  # noqa: E402
from memfit.predict.child.messages import UNSEEN, TraceReply, TraceRequest  # noqa: E402
from memfit.predict.fake import steps  # noqa: E402
from memfit.predict.fake.child_main import answer  # noqa: E402
from memfit.predict.fake.probe.in_process import ProbesHere  # noqa: E402
from memfit.predict.fake.probe.real_reference import real_script_peak  # noqa: E402
from memfit.predict.fake.step_peaks import StepPeaks  # noqa: E402
from memfit.predict.levels.liveness import peak_of  # noqa: E402
from memfit.predict.options import PredictOptions  # noqa: E402

NET = """
import copy, random, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0); random.seed(0)
net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.Adam(net.parameters())
batches = DataLoader(TensorDataset(torch.randn(384, 64)), batch_size=32)
def train(x):
    optimizer.zero_grad()
    net(x).sum().backward()
    optimizer.step()
"""
LATER = {
    "an average that is kept from a step on, counted over short epochs": """
count = 0
for epoch in range(4):
    for (x,) in batches:
        train(x)
        count += 1
        if count == 30:
            average = copy.deepcopy(net)
""",
    "results that are kept now and then": """
kept = []
for epoch in range(6):
    for k, (x,) in enumerate(batches):
        train(x)
        if k % 4 == 0:
            with torch.no_grad():
                kept.append(net(torch.randn(64, 64)))
""",
    "a larger batch from a step on": """
size = 16
for k in range(120):
    if k == 100:
        size = 200
    train(torch.randn(size, 64))
""",
    "lengths by a formula": """
class Lengths:
    count = 0
    @property
    def now(self):
        return min(200, 16 * (1 + self.count // 20))
lengths = Lengths()
for k in range(160):
    train(torch.randn(lengths.now, 64))
    lengths.count += 1
""",
}


def predicted(folder: Path, text: str) -> TraceReply:
    (folder / "train.py").write_text(text)
    (folder / "scratch").mkdir()
    job = describe_job(str(folder / "train.py"), {}, ())
    scratch = str(folder / "scratch")
    request = TraceRequest(job=job, device="cpu", options=PredictOptions(num_steps=3), scratch_folder=scratch)
    reply = answer(request, ProbesHere())
    assert isinstance(reply, TraceReply), reply
    return reply


def unseen(reply: TraceReply) -> list[str]:
    return [item.text for item in reply.assumptions if item.kind == UNSEEN]


@pytest.mark.slow
@pytest.mark.parametrize("case", LATER)
def test_what_a_training_does_in_later_rounds_is_counted(tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(steps, "TO_THE_END_SECONDS", 30.0)
    reply = predicted(tmp_path, NET + LATER[case])
    assert abs(peak_of(reply.timeline, "cpu")[0] - real_script_peak(str(tmp_path / "train.py"), (), sys.maxsize)) <= 64
    assert all("of the script" in text or "every" in text for text in unseen(reply))


RANDOM_PATHS = """
class Paths(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(64, 64) for _ in range(8))
    def forward(self, x):
        for part in self.parts:
            x = x + part(x).relu() if random.random() < 0.5 else x
        return x
net = Paths()
optimizer = torch.optim.SGD(net.parameters())
for k in range(60):
    train(torch.randn(256, 64))
"""


def test_a_model_that_draws_its_path_is_run_in_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its calls look alike and hold different amounts: none stands for the next."""
    monkeypatch.setattr(steps, "TO_THE_END_SECONDS", 30.0)
    monkeypatch.setattr(steps, "PASS_AFTER_SECONDS", 0.0)
    reply = predicted(tmp_path, NET + RANDOM_PATHS)
    assert peak_of(reply.timeline, "cpu")[0] == real_script_peak(str(tmp_path / "train.py"), (), sys.maxsize)


def test_steps_that_differ_are_listed_where_the_run_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(steps, "TO_THE_END_SECONDS", 0.0)
    monkeypatch.setattr(steps, "DIFFERING_SECONDS", 0.0)
    text = NET + "for k in range(100_000):\n    train(torch.randn(16 + k, 64))\n"
    assert any("steps hold different amounts" in text for text in unseen(predicted(tmp_path, text)))


@pytest.mark.parametrize(
    ("peaks", "is_listed"),
    [
        ([9, 9, 5, 5, 5, 5], False),
        ([9, 9, 5, 7, 5, 7, 5], False),
        ([9, 9, 5, 7, 6], True),
        ([9, 9, 5, 6, 7], True),
        ([9, 9, 5, 6], False),
    ],
)
def test_the_highest_step_is_believed_once_it_came_again(peaks: list[int], is_listed: bool):
    seen = StepPeaks()
    for place, peak in enumerate(peaks):
        seen.note([place], 1000 * peak)
    assert bool(seen.text(10_000)) is is_listed


def test_a_step_that_was_passed_over_counts_as_what_it_looks_like():
    seen = StepPeaks()
    for calls, peak in (("ab", 1), ("ab", 1), ("ab", 1000), ("c", 2000), ("ab", 1000)):
        seen.note(calls, peak)
    assert seen.text(10_000)
    assert not seen.text(10_000_000)
    seen.note("c", None)
    assert not seen.text(10_000)
