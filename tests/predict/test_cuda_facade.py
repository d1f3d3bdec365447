"""Does `torch.cuda` answer a script about its own memory and device as a real one does?"""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import memfit  # noqa: E402
from memfit.predict.fake.choose_route import can_fake_cuda  # noqa: E402
from memfit.predict.fake.cuda_facade import BytesOnGpu  # noqa: E402
from memfit.predict.observe.storage_log import Birth, TraceLog  # noqa: E402

TRAIN = """
import torch
assert int(torch.version.cuda.split(".")[0]) >= 12 and torch.backends.cudnn.version() > 8000
torch.cuda.reset_peak_memory_stats()
with torch.cuda.device(0):
    layer = torch.nn.Linear(40, 30).cuda()
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for step in range(3):
    with torch.cuda.device_of(layer.weight):
        layer(torch.randn(8, 100, 40, device="cuda")).sum().backward()
    optimizer.step()
    before = torch.cuda.max_memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated() < before
    kept = torch.empty(1000, device="cuda")
    assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated() < before
    assert torch.cuda.memory_stats()["allocated_bytes.all.current"] == torch.cuda.memory_allocated()
    assert torch.cuda.memory_stats()["num_ooms"] == len(torch.cuda.memory._snapshot()["segments"]) == 0
    del kept
    assert torch.cuda.max_memory_allocated() > torch.cuda.memory_allocated()
"""


@pytest.mark.skipif(bool(can_fake_cuda()), reason="fake CUDA tensors do not work with this build of torch")
def test_a_script_resets_its_peaks_and_chooses_its_device(tmp_path: Path):
    (tmp_path / "train.py").write_text(TRAIN)
    prediction = memfit.predict_peak(str(tmp_path / "train.py"), device="cuda:a100-40gb", engine="fake")
    assert prediction.num_steps == 3
    if torch.version.cuda is None:
        assert any("asked for and answered" in item.text for item in prediction.assumptions), "the version of CUDA"


def test_the_highest_counts_from_the_last_reset_on():
    log = TraceLog()
    counted = BytesOnGpu(log)

    def make(num_bytes: int, device: str = "cuda:0") -> int:
        return log.alloc(Birth(num_bytes, device, "empty", "forward", 1, (-1, ""), ""))

    assert (counted.now(), counted.highest()) == (0, 0)
    first = make(100)
    make(10)
    make(1000, "cpu")
    log.free(first)
    assert (counted.now(), counted.highest()) == (10, 110)
    counted.reset()
    assert (counted.now(), counted.highest()) == (10, 10)
    log.free(make(5))
    assert (counted.now(), counted.highest()) == (10, 15)
