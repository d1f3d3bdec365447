"""Fake tensors on a CPU build ask for the same bytes in the same order as a CUDA build does on the phantom GPU.

`phantom_events.json.gz` holds one training step of each job as torch 2.14.1 made it on the phantom GPU (allocations
rounded to 512 bytes, releases in a row sorted by size, cuDNN's workspaces left out). It is written by
`python -m benchmarks.accuracy.phantom_grid --write`.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.accuracy.grid_events import differs_from, events_of
from benchmarks.accuracy.grid_jobs import RECORDED, grid

from memfit.job.description import describe_job
from memfit.predict.child.fork_server import ForkServer
from memfit.predict.devices.parse import parse_device
from memfit.predict.fake.patches.cpu_build import why_not
from memfit.testing.engines import on_fake_tensors

RECORDS = json.loads(gzip.decompress(Path(__file__).with_name("phantom_events.json.gz").read_bytes()))
JOBS = {job.name: job for job in grid()}

pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"no fake CUDA tensors here: {why_not()}")


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    """One process that has torch loaded."""
    with ForkServer(300) as process:
        yield process


def test_every_job_that_should_be_recorded_is() -> None:
    assert set(RECORDS) == set(RECORDED)


@pytest.mark.parametrize("name", RECORDED)
def test_fake_tensors_allocate_as_the_phantom_gpu_does(server: ForkServer, name: str) -> None:
    job = JOBS[name]
    described, device = describe_job(job.model, dict(job.settings)), parse_device(job.device)
    prediction = on_fake_tensors(described, device, fork_server=server, with_smallest=False)
    assert prediction.timeline is not None
    assert not differs_from(events_of(prediction.timeline, 2), RECORDS[name])


def test_the_mask_of_a_dropout_is_born_before_its_result(server: ForkServer, tmp_path: Path) -> None:
    """The order decides which free block each of them gets; a mask has a quarter of the bytes."""
    path = tmp_path / "dropping.py"
    path.write_text(DROPPING)
    prediction = on_fake_tensors(describe_job(f"{path}:make"), parse_device("cuda:a100-40gb"), fork_server=server)
    assert prediction.timeline is not None
    born = [span for span in prediction.timeline.spans if "native_dropout.default" in span.operator]
    assert [span.num_bytes for span in sorted(born, key=lambda span: span.start)] == 2 * [64 * 64, 4 * 64 * 64]


DROPPING = """
import torch


def make(device="cpu"):
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout(0.5)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.randn(64, 64, device=device)
    return model, optimizer, (lambda out, target: out.sum()), (batch, batch)
"""
