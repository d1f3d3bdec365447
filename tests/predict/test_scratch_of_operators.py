"""Is what an operator allocates inside predicted: copies into a common type, sorts, masks, windows?

The oracle is the allocator's own log of the same calls run for real.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from memfit.job.description import describe_job  # noqa: E402
from memfit.job.training import Training  # noqa: E402
from memfit.predict.child.fork_server import ForkServer  # noqa: E402
from memfit.predict.child.messages import UNSEEN  # noqa: E402
from memfit.predict.devices.parse import parse_device  # noqa: E402
from memfit.predict.fake.probe.client import result_of  # noqa: E402
from memfit.predict.fake.probe.process import probe  # noqa: E402
from memfit.predict.fake.probe.real_reference import real_tensor_peak  # noqa: E402
from memfit.predict.fake.probe.signatures import Signatures  # noqa: E402
from memfit.predict.fake.recording import Recording, trace_training  # noqa: E402
from memfit.predict.levels.liveness import peak_of  # noqa: E402
from memfit.predict.observe.storage_log import timeline_of  # noqa: E402
from memfit.records.prediction import Prediction  # noqa: E402
from memfit.testing.engines import on_fake_tensors  # noqa: E402
from memfit.testing.oracles.operators_made_of_others import CALLS as GPU_CALLS  # noqa: E402
from memfit.testing.oracles.operators_made_of_others import JOB, job_of  # noqa: E402

F = torch.nn.functional
MODEL_BYTES = 8
"""The holder's parameters: the real run keeps the step alone, which does not use them."""
FAKE_CUDA = pytest.mark.skipif(
    torch.version.cuda is not None, reason="fake CUDA tensors are those of a CPU build of torch"
)
CALLS: dict[str, Callable[..., Any]] = {
    "float times mask": lambda x, m, i, h: x * m,
    "float plus whole numbers": lambda x, m, i, h: x + i,
    "float times bfloat16": lambda x, m, i, h: x * h,
    "whole numbers divided by a float": lambda x, m, i, h: i / 255.0,
    "comparison of two types": lambda x, m, i, h: x > i,
    "where of two types": lambda x, m, i, h: torch.where(m, x, h),
    "in place by a mask": lambda x, m, i, h: x.mul_(m),
    "sum of a mask": lambda x, m, i, h: m.sum(),
    "selection by a mask": lambda x, m, i, h: x[m],
    "selection by a mask of few": lambda x, m, i, h: x[torch.tensor([row % 10 == 0 for row in range(100)])],
    "selection of what is trained": lambda x, m, i, h: torch.nn.Parameter(x)[m],
    "isinf": lambda x, m, i, h: x.isinf(),
    "logsumexp": lambda x, m, i, h: x.logsumexp(0),
    "roll over two dimensions": lambda x, m, i, h: torch.roll(x, (1, 1), (0, 1)),
    "median": lambda x, m, i, h: x.median(),
    "kthvalue": lambda x, m, i, h: x.kthvalue(3),
    "unique": lambda x, m, i, h: i.unique(),
    "multinomial": lambda x, m, i, h: torch.multinomial(x.abs(), 5),
    "distances": lambda x, m, i, h: torch.cdist(x, x),
    "unfold": lambda x, m, i, h: F.unfold(x.view(1, 1, 100, 100), 3),
    "bicubic": lambda x, m, i, h: F.interpolate(x.view(1, 1, 100, 100), scale_factor=2, mode="bicubic"),
    "real Fourier transform in two dimensions": lambda x, m, i, h: torch.fft.rfft2(x),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_an_operator_allocates_inside_is_predicted_to_the_byte(name: str):
    def build() -> Training:
        x, mask = torch.randn(100, 100), torch.ones(100, 100, dtype=torch.bool)
        whole, half = torch.zeros(100, 100, dtype=torch.int64), torch.randn(100, 100, dtype=torch.bfloat16)
        holder = torch.nn.Linear(1, 1)

        def step() -> None:
            with torch.no_grad():
                CALLS[name](x, mask, whole, half)

        return Training(model=holder, optimizer=torch.optim.SGD(holder.parameters()), batch=None, step=step)

    real_bytes = real_tensor_peak(build)
    signatures = Signatures()
    trace = trace_training(build, recording=Recording(signatures.sign))
    results = {number: result_of(probe(text)) for text, number in signatures.texts.items()}
    predicted_bytes = peak_of(timeline_of(trace.log, trace.root_names, results), "cpu")[0]
    assert predicted_bytes - MODEL_BYTES == real_bytes


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer(300) as running:
        yield running


def on_a_gpu(server: ForkServer, text: str, path: Path) -> Prediction:
    path.write_text(text)
    job = describe_job(f"{path}:make", {}, ())
    return on_fake_tensors(job, parse_device("cuda:a100-40gb"), fork_server=server, with_smallest=False)


@FAKE_CUDA
@pytest.mark.parametrize("name", GPU_CALLS)
def test_operators_take_what_they_take_on_a_gpu(name: str, tmp_path: Path, server: ForkServer):
    text, peak_bytes = job_of(name)
    found = on_a_gpu(server, text, tmp_path / "job.py")
    tensors = next(level for level in found.levels if level.name == "tensors")
    assert tensors.figure.value == peak_bytes


@FAKE_CUDA
@pytest.mark.parametrize(
    ("call", "name"),
    [
        ("torch.linalg.inv(x)", "linalg_inv_ex"),
        ("x.view(256, -1).sort()", ""),
        ("x.view(128, -1).sort()", "sort"),
        ("x.bfloat16().view(-1).sort()", "sort"),
        ("x.view(-1).topk(5000)", "topk"),
        ("x.view(-1).topk(50)", ""),
        ("torch.fft.fft(x)", "cuFFT"),
    ],
)
def test_an_operator_whose_memory_is_not_known_is_listed_and_no_band_is_called_exact(
    call: str, name: str, tmp_path: Path, server: ForkServer
):
    found = on_a_gpu(server, JOB.replace("CALL", call), tmp_path / "job.py")
    listed = [assumption.text for assumption in found.assumptions if assumption.kind == UNSEEN]
    assert any(text.startswith(name) for text in listed) if name else not listed
    assert ("not known for the whole job" in found.error_band) == bool(name)


@pytest.mark.parametrize("call", ["F.ctc_loss(scores, targets, steps, lengths)", "F.one_hot(targets, 50).sum()"])
def test_a_recipe_that_differs_for_subclasses_of_tensors_is_followed_as_for_tensors(call: str):
    """Lengths are numbers, or tensors whose values are known."""

    def build() -> Training:
        holder, scores = torch.nn.Linear(1, 1), torch.randn(60, 8, 50, requires_grad=True)
        steps = torch.full((8,), 60)

        def step() -> None:
            targets, lengths = torch.ones(8, 20, dtype=torch.int64), torch.arange(10, 18)
            names = {"F": F, "scores": scores, "targets": targets, "steps": steps, "lengths": lengths}
            found = eval(call, names)
            if found.requires_grad:
                found.backward()
            scores.grad = None

        return Training(model=holder, optimizer=torch.optim.SGD(holder.parameters()), batch=None, step=step)

    real_bytes = real_tensor_peak(build)
    trace = trace_training(build, recording=Recording())
    assert peak_of(timeline_of(trace.log, trace.root_names, {}), "cpu")[0] - MODEL_BYTES == real_bytes
