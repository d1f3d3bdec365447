"""Is a cuDNN that takes no description of a device asked rightly, by a handle of our making? Needs CUDA in torch.

From 9.8 to 9.10 cuDNN takes both: the documented description, and, when the library is built as for an older one, the
handle. What the real library answers must be the same. (Later ones keep the properties at other places, which is
found out and refused.)
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from memfit.job.description import describe_job
from memfit.predict.devices.parse import parse_device
from memfit.predict.phantom.engine import predict_on_phantom
from memfit.predict.phantom.library.installed import find_torch, has_cuda_torch
from memfit.records.prediction import Prediction

pytestmark = [
    pytest.mark.skipif(not has_cuda_torch(), reason="needs a CUDA build of torch (make test-gpu)"),
    pytest.mark.timeout(300),
]
TAKES_BOTH = range(8, 11)


def minor_version_of_cudnn() -> int:
    """Of the installed cuDNN 9."""
    found = re.search(r"CUDNN_MINOR\s+(\d+)", find_torch().header("cudnn_version.h").read_text(encoding="utf-8"))
    assert found is not None
    return int(found.group(1))


CONVOLUTIONS = """
import torch
layers = [torch.nn.Conv2d(3, 64, 3, padding=1), torch.nn.BatchNorm2d(64), torch.nn.Conv2d(64, 128, 3, stride=2)]
layers += [torch.nn.ReLU(), torch.nn.Conv2d(128, 32, 1), torch.nn.Conv2d(32, 32, 5, groups=4), torch.nn.Flatten()]
model = torch.nn.Sequential(*layers).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    optimizer.zero_grad()
    model(torch.randn(48, 3, 40, 40, device="cuda")).sum().backward()
    optimizer.step()
"""
BY_HANDLE = '#!/bin/sh\nexec {compiler} -DCAN_DO_WITHOUT_DEVICE=0 "$@"\n'


def sizes_of(prediction: Prediction) -> list[int]:
    """Every allocation in its order."""
    assert prediction.timeline is not None
    return [span.num_bytes for span in prediction.timeline.spans]


@pytest.mark.parametrize("gpu", ["cuda:rtx3060-12gb", "cuda:a100-40gb"])
def test_cudnn_plans_are_the_same_by_description_and_by_handle(
    gpu: str, script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if minor_version_of_cudnn() not in TAKES_BOTH:
        pytest.skip(f"cuDNN 9.{minor_version_of_cudnn()} does not take both; torch 2.8 to 2.10 bring one that does")
    job = describe_job(script(CONVOLUTIONS))
    described = predict_on_phantom(job, parse_device(gpu))
    wrapper = tmp_path / "cc-by-handle"
    wrapper.write_text(BY_HANDLE.format(compiler=shutil.which("cc") or "gcc"))
    wrapper.chmod(0o755)
    monkeypatch.setenv("CC", str(wrapper))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    by_handle = predict_on_phantom(job, parse_device(gpu))
    assert any("handle of memfit's making" in found.text for found in by_handle.assumptions)
    assert not any("handle of memfit's making" in found.text for found in described.assumptions)
    assert sizes_of(by_handle) == sizes_of(described)
    assert by_handle.levels == described.levels
