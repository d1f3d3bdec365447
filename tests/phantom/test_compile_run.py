"""Is a compiled training step predicted as Inductor would run it, and can it be left out? Needs CUDA and triton."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path

import pytest

from memfit.job.description import describe_job
from memfit.predict.devices.parse import parse_device
from memfit.predict.phantom.in_child.compiler_processes import CompilingFiles
from memfit.predict.phantom.library.build import has_cuda_torch
from memfit.predict.sandbox.scratch_files import ProcessRefused
from memfit.records.prediction import Prediction
from memfit.testing.engines import on_phantom

needs_triton = pytest.mark.skipif(
    not has_cuda_torch() or importlib.util.find_spec("triton") is None,
    reason="needs a CUDA build of torch with triton (make test-gpu)",
)

SCRIPT = """
import sys, torch
class Chain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(1024, 1024)
    def forward(self, x):
        x = self.first(x)
        for _ in range(3):
            x = torch.nn.functional.gelu(x).sin()
        return x
model = Chain().cuda()
run = torch.compile(model, mode=sys.argv[1]) if sys.argv[1] != "eager" else model
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    run(torch.randn(2048, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
BATCH_BYTES = 4 * 2048 * 1024


def predict(path: str, mode: str) -> Prediction:
    device = parse_device("cuda:a100-40gb")
    return on_phantom(describe_job(path, {}, (mode,)), device, num_steps=3, most_seconds=250)


def tensors(prediction: Prediction) -> float:
    figure = prediction.level("tensors")
    assert figure is not None
    return figure.value or 0


def peak_of_last_step(prediction: Prediction) -> int:
    """Later than the first step, in which Inductor tries kernels on copies."""
    assert prediction.timeline is not None
    first_event = min(mark.start for mark in prediction.timeline.phases if mark.step == 3)
    alive = [0] * (prediction.timeline.num_events + 1)
    for span in prediction.timeline.spans:
        alive[span.start] += span.num_bytes
        if span.end is not None:
            alive[span.end] -= span.num_bytes
    return max(list(accumulate(alive))[first_event:])


@needs_triton
@pytest.mark.timeout(600)
def test_a_fused_chain_keeps_less_than_the_plain_one_and_both_are_said(
    script: Callable[..., str], monkeypatch: pytest.MonkeyPatch
):
    path = script(SCRIPT)
    plain, compiled = predict(path, "eager"), predict(path, "default")
    kept = [peak_of_last_step(each) for each in (plain, compiled)]
    assert kept[1] <= kept[0] - 3 * BATCH_BYTES, "of six inputs kept for the backward, most are computed again"
    assert [item.kind for item in compiled.assumptions].count("compile") == 1
    assert not [item for item in compiled.assumptions if item.kind == "refused"]
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    without = predict(path, "default")
    assert tensors(without) == tensors(plain)
    assert any("TORCHDYNAMO_DISABLE" in item.text for item in without.assumptions)


def test_compilers_may_start_for_triton_and_no_other_process_may(tmp_path: Path):
    files = CompilingFiles(str(tmp_path))

    def start(program: str, asked_by: str) -> None:
        """As `subprocess` would tell it, from inside a module of this name."""
        here = {"__name__": asked_by, "tell": files.audit}
        exec(f"tell('subprocess.Popen', ({program!r}, [], None, None))", here)

    start("/usr/bin/gcc", "triton.runtime.build")
    start("/somewhere/bin/ptxas", "triton.backends.nvidia.compiler")
    for program, asked_by in (("/usr/bin/gcc", "train"), ("nvidia-smi", "triton.runtime.build"), ("/bin/sh", "train")):
        with pytest.raises(ProcessRefused):
            start(program, asked_by)
    with pytest.raises(ProcessRefused):
        files.audit("os.fork", ())


def test_what_compilers_keep_lies_in_the_scratch_folder_and_nothing_lies_outside(tmp_path: Path):
    inside, outside = tmp_path / "scratch", tmp_path / "outside"
    inside.mkdir()
    files = CompilingFiles(str(inside))
    with files.guarding():
        os.makedirs(str(inside / "triton" / "a"), exist_ok=True)
        with open(inside / "triton" / "a" / "draft", "w") as file:
            file.write("kernel")
        os.replace(str(inside / "triton" / "a" / "draft"), str(inside / "triton" / "a" / "kernel"))
        os.makedirs(str(inside / "triton" / "a" / "empty"))
        os.removedirs(str(inside / "triton" / "a" / "empty"))
        os.makedirs(str(outside))
    assert (inside / "triton" / "a" / "kernel").read_text() == "kernel"
    assert not outside.exists()
