"""Is a script that wants several GPUs predicted as one of its ranks, to the byte, or told what to ask for?"""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from memfit.api import predict_peak  # noqa: E402
from memfit.errors import MemfitError  # noqa: E402
from memfit.predict.fake.choose_route import can_fake_cuda  # noqa: E402
from memfit.records.prediction import Prediction  # noqa: E402

pytestmark = pytest.mark.skipif(bool(can_fake_cuda()), reason="fake CUDA tensors do not work with this build of torch")

COUNTING = """
import sys
import torch

if torch.{module}.device_count() < 2:
    print("two GPUs are needed")
    sys.exit({code})
model = torch.nn.Linear(8, 8 * torch.{module}.device_count()).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.randn(4, 8, device="cuda")).sum().backward()
    optimizer.step()
"""
GATHERING = """
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

mesh = init_device_mesh("cuda", (4,))
weight = torch.nn.Parameter(torch.zeros(1000, 64, device="cuda"))
optimizer = torch.optim.SGD([weight], lr=0.1)
with torch.no_grad():
    part = torch.zeros(1000, 64, device="cuda")
    whole = DTensor.from_local(part, mesh, [Shard(1)]).redistribute(placements=[Replicate()]).to_local()
    del part, whole
weight.sum().backward()
optimizer.step()
"""
SHARDED = """
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

with torch.device("meta"):
    model = nn.Sequential(nn.Embedding(100, 64), nn.Linear(64, 64))
mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"))
fully_shard(model, mesh=mesh["dp"])
model.to_empty(device="cuda")
for layer in model:
    layer.reset_parameters()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(3):
    model(torch.zeros(2, 4, dtype=torch.long, device="cuda")).sum().backward()
    optimizer.step()
"""


def predicted(folder: Path, text: str, ranks: int = 1, num_steps: int = 3) -> Prediction:
    script = folder / "train.py"
    script.write_text(text)
    return predict_peak(
        str(script), device="cuda:a100-40gb", engine="fake", probes=False, ranks=ranks, num_steps=num_steps
    )


@pytest.mark.parametrize("module", ["cuda", "accelerator"])
def test_a_script_is_told_of_a_gpu_for_each_rank(tmp_path: Path, module: str):
    found = predicted(tmp_path, COUNTING.format(module=module, code=0), ranks=4)
    shares = {share.name: share.num_bytes for share in found.at_peak.by_category}
    assert shares["parameter"] == (8 * 32 + 32) * 4
    assert any("sees 4 GPUs" in each.text for each in found.assumptions)


@pytest.mark.parametrize("code", [0, 1])
def test_a_script_that_wants_more_gpus_is_told_how_to_ask_for_them(tmp_path: Path, code: int):
    with pytest.raises(MemfitError) as raised:
        predicted(tmp_path, COUNTING.format(module="cuda", code=code))
    assert "--ranks" in str(raised.value)


def test_a_gathered_tensor_is_there_once_beside_its_parts(tmp_path: Path):
    """The rank's own part, all parts one behind the other, and all side by side: what is waited for is no copy."""
    found = predicted(tmp_path, GATHERING, ranks=4, num_steps=1)
    part_bytes = weight_bytes = 1000 * 64 * 4
    tensors = next(level.figure.value for level in found.levels if level.name == "tensors")
    assert tensors == weight_bytes + part_bytes + 4 * part_bytes + 4 * part_bytes


def test_sharded_parameters_are_filled_in_a_mesh_of_two_dimensions(tmp_path: Path):
    found = predicted(tmp_path, SHARDED, ranks=4)
    shares = {share.name: share.num_bytes for share in found.at_peak.by_category}
    assert shares["optimizer state"] >= 2 * shares["parameter"] == 2 * (100 * 64 + 64 * 64 + 64) * 4 // 2
