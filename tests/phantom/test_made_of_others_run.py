"""What do operators that are made of others allocate inside on the phantom GPU?"""

from __future__ import annotations

from pathlib import Path

import pytest

from memfit.job.description import describe_job
from memfit.predict.devices.parse import parse_device
from memfit.predict.phantom.library.build import has_cuda_torch
from memfit.testing.engines import on_phantom
from memfit.testing.oracles.operators_made_of_others import CALLS, job_of

pytestmark = [
    pytest.mark.skipif(not has_cuda_torch(), reason="needs a CUDA build of torch (make test-gpu)"),
    pytest.mark.timeout(300),
]


@pytest.mark.parametrize("name", CALLS)
def test_the_figures_for_fake_tensors_are_those_of_torch(name: str, tmp_path: Path):
    path = tmp_path / "job.py"
    text, peak_bytes = job_of(name)
    path.write_text(text)
    found = on_phantom(describe_job(f"{path}:make", {}, ()), parse_device("cuda:a100-40gb"))
    tensors = next(level for level in found.levels if level.name == "tensors")
    assert tensors.figure.value == peak_bytes
