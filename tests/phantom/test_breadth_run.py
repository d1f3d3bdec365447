"""Does what trainings are made of work on the phantom GPU, and is the rest refused by name? Needs CUDA in torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from memfit.errors import PredictionFailed
from memfit.job.description import describe_job
from memfit.predict.devices.parse import parse_device
from memfit.predict.phantom.engine import predict_on_phantom
from memfit.predict.phantom.library.installed import has_cuda_torch
from memfit.records.prediction import Prediction

pytestmark = [
    pytest.mark.skipif(not has_cuda_torch(), reason="needs a CUDA build of torch (make test-gpu)"),
    pytest.mark.timeout(300),
]

LAYERS, WIDTH = 4, 1024
PARAMETER_BYTES = 4 * LAYERS * (WIDTH * WIDTH + WIDTH)

SHARDED = f"""
import os, sys, torch, torch.distributed as dist
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = torch.nn.Sequential(*[torch.nn.Linear({WIDTH}, {WIDTH}) for _ in range({LAYERS})]).cuda()
if sys.argv[1] == "ddp":
    model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[0])
else:
    from torch.distributed.fsdp import fully_shard
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
for step in range(3):
    model(torch.randn(32, {WIDTH}, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
assert dist.get_world_size() > 1
"""

ORDINARY = """
import torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(256, 10).cuda()
optimizer, scaler, side = torch.optim.Adam(model.parameters()), torch.amp.GradScaler("cuda"), torch.cuda.Stream()
speech = torch.nn.Linear(256, 20).cuda()
steps = torch.full((4,), 50, device="cuda"), torch.tensor([10, 9, 8, 7], device="cuda")
scores = speech(torch.randn(50, 4, 256, device="cuda")).log_softmax(-1)
torch.nn.functional.ctc_loss(scores, torch.randint(1, 20, (4, 10), device="cuda"), *steps).backward()
graph, still = torch.cuda.CUDAGraph(), torch.zeros(64, 256, device="cuda")
with torch.cuda.graph(graph):
    model(still)
graph.replay()
data = TensorDataset(torch.randn(64, 256), torch.randint(0, 10, (64,)))
for x, y in DataLoader(data, batch_size=16, pin_memory=True, num_workers=2):
    assert x.is_pinned()
    with torch.cuda.stream(side):
        x, y = x.to("cuda", non_blocking=True), y.cuda(non_blocking=True)
    torch.cuda.current_stream().wait_stream(side)
    x.record_stream(torch.cuda.current_stream())
    with torch.autocast("cuda", torch.float16):
        loss = torch.nn.functional.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""

REFUSED = {
    "fork": ("import os, torch\nos.fork()", "processes", "os.fork"),
    "nvidia-smi": ("import subprocess\nsubprocess.check_output(['nvidia-smi'])", "script", "nvidia-smi"),
    "second GPU": ("import torch\ntorch.zeros(4, device='cuda:1')", "script", "one GPU"),
    "unknown library": ("import ctypes\nctypes.CDLL('libthat-is-not-there.so')", "script", "libthat-is-not-there"),
    "read of device memory": (
        "import ctypes, torch\nctypes.string_at(torch.zeros(4, device='cuda').data_ptr(), 4)", "crash", "SIGSEGV",
    ),
}  # fmt: skip


def predict(target: str, *arguments: str, num_ranks: int = 1, most_seconds: float = 200) -> Prediction:
    job, device = describe_job(target, {}, arguments), parse_device("cuda:a100-40gb")
    return predict_on_phantom(job, device, num_steps=3, num_ranks=num_ranks, most_seconds=most_seconds)


def category(prediction: Prediction, name: str) -> int:
    return next((share.num_bytes for share in prediction.at_peak.by_category if share.name == name), 0)


def test_a_rank_of_fully_sharded_training_holds_its_share(script: Callable[..., str]):
    path = script(SHARDED)
    for num_ranks in (2, 8):
        prediction = predict(path, "fsdp", num_ranks=num_ranks)
        assert prediction.route.endswith(f"rank 0 of {num_ranks}")
        assert category(prediction, "parameter") == pytest.approx(PARAMETER_BYTES / num_ranks, rel=0.02)
        assert category(prediction, "optimizer state") == pytest.approx(2 * PARAMETER_BYTES / num_ranks, rel=0.02)


def test_a_rank_of_data_parallel_training_holds_everything_and_its_buckets(script: Callable[..., str]):
    prediction = predict(script(SHARDED), "ddp", num_ranks=4)
    assert category(prediction, "parameter") == PARAMETER_BYTES
    tensors = prediction.level("tensors")
    assert tensors is not None
    assert (tensors.value or 0) >= 5 * PARAMETER_BYTES, "parameters, gradients, two states, and the reducer's buckets"


def test_pinned_memory_streams_scaling_ctc_and_graphs_run(script: Callable[..., str]):
    prediction = predict(script(ORDINARY))
    assert prediction.num_steps == 3


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_cannot_be_right_is_refused_with_a_clear_line(name: str, script: Callable[..., str]):
    text, kind, words = REFUSED[name]
    with pytest.raises(PredictionFailed) as error:
        predict(script(text))
    assert error.value.kind == kind
    assert words in str(error.value).lower() or words in str(error.value)


def test_a_script_that_hangs_is_stopped_and_said_so(script: Callable[..., str]):
    with pytest.raises(PredictionFailed, match="in time"):
        predict(script("import time\nwhile True:\n    time.sleep(0.1)"), most_seconds=8)
