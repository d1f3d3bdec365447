"""Do small integers arrive by collectives as from ranks that are all alike? The oracle is plain arithmetic."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from memfit.errors import MemfitError
from memfit.job.description import describe_job
from memfit.predict.devices.parse import parse_device
from memfit.predict.phantom.library.build import has_cuda_torch
from memfit.records.prediction import Prediction
from memfit.testing.engines import on_phantom

pytestmark = [
    pytest.mark.skipif(not has_cuda_torch(), reason="needs a CUDA build of torch (make test-gpu)"),
    pytest.mark.timeout(300),
]

COLLECTIVES = """
import torch, torch.distributed as dist
import torch.distributed._functional_collectives as functional
dist.init_process_group("nccl")
N, group = dist.get_world_size(), dist.group.WORLD
for d in ("cuda", "cpu"):
    def row(*numbers): return torch.tensor(numbers, device=d)
    sent = row(3, 1, 4, 1)
    total = sent.clone(); dist.all_reduce(total)
    assert total.tolist() == [12, 4, 16, 4], total
    most = sent.clone(); dist.all_reduce(most, op=dist.ReduceOp.MAX)
    assert most.tolist() == sent.tolist()
    parts = [torch.empty_like(sent) for _ in range(N)]; dist.all_gather(parts, sent)
    assert [part.tolist() for part in parts] == [sent.tolist()] * N
    whole = torch.empty(N * 4, dtype=sent.dtype, device=d); dist.all_gather_into_tensor(whole, sent)
    assert whole.tolist() == sent.tolist() * N
    got = torch.empty_like(sent); dist.all_to_all_single(got, sent)
    assert got.tolist() == [3] * N, got
    piece = torch.empty(1, dtype=sent.dtype, device=d); dist.reduce_scatter_tensor(piece, sent)
    assert piece.tolist() == [12]
    shape = row(7, 5); dist.broadcast(shape, src=0)
    assert shape.tolist() == [7, 5]
    assert functional.all_reduce(sent, "sum", group).tolist() == [12, 4, 16, 4]
    assert functional.all_gather_tensor(sent, 0, group).tolist() == sent.tolist() * N
    assert functional.all_to_all_single(sent, None, None, group).tolist() == [3] * N
objects = [None] * N
dist.all_gather_object(objects, {"rows": 5})
assert objects == [{"rows": 5}] * N, objects
told = ["a", 7]; dist.broadcast_object_list(told, src=0)
assert told == ["a", 7]

model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    model(torch.zeros(4, 64, device="cuda")).sum().backward()
    optimizer.step()
"""

EXPERTS = """
import torch, torch.distributed as dist
dist.init_process_group("nccl")
N, width, tokens = dist.get_world_size(), 256, 512
router, expert = torch.nn.Linear(width, N).cuda(), torch.nn.Linear(width, width).cuda()
optimizer = torch.optim.SGD([*router.parameters(), *expert.parameters()], lr=0.1)
class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, out_splits, in_splits):
        ctx.splits = in_splits, out_splits
        out = x.new_empty(sum(out_splits), x.shape[1])
        dist.all_to_all_single(out, x.contiguous(), out_splits, in_splits)
        return out
    @staticmethod
    def backward(ctx, g):
        return Exchange.apply(g, *ctx.splits), None, None
for step in range(3):
    x = torch.randn(tokens, width, device="cuda", requires_grad=True)
    to = router(x).argmax(-1)
    order = to.argsort()
    counts = torch.bincount(to, minlength=N)
    arriving = torch.empty_like(counts)
    dist.all_to_all_single(arriving, counts)
    in_splits, out_splits = counts.tolist(), arriving.tolist()
    assert sum(in_splits) == tokens and sum(out_splits) == tokens, (in_splits, out_splits)
    y = expert(Exchange.apply(x[order], out_splits, in_splits))
    Exchange.apply(y, in_splits, out_splits).sum().backward()
    optimizer.step()
"""


def predict(path: str, ranks: int = 4) -> Prediction:
    return on_phantom(describe_job(path), parse_device("cuda:a100-40gb"), num_steps=3, most_seconds=250, ranks=ranks)


def test_integers_arrive_as_from_ranks_that_are_alike(script: Callable[..., str]):
    said = predict(script(COLLECTIVES))
    assert said.num_steps >= 3
    assert any("every other rank" in item.text for item in said.assumptions)


def test_expert_parallelism_exchanges_its_split_sizes(script: Callable[..., str]):
    said = predict(script(EXPERTS))
    assert said.num_steps >= 3
    assert any("spread evenly" in item.text for item in said.assumptions), said.assumptions


PARALLEL = """
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

if torch.accelerator.device_count() < 4:
    raise SystemExit("four GPUs are needed")
mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"))
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)).cuda()
model = parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
optimizer = torch.optim.Adam(model.parameters(), foreach=True)
for _ in range(3):
    model(torch.randn(8, 64, device="cuda")).sum().backward()
    optimizer.step()
"""


def test_tensor_parallelism_runs_on_one_of_as_many_gpus_as_there_are_ranks(script: Callable[..., str]):
    """Its backward asks for a rank's place in a thread of autograd, which no line of the script has called."""
    found = predict(script(PARALLEL), ranks=4)
    shares = {share.name: share.num_bytes for share in found.at_peak.by_category}
    assert shares["parameter"] == (64 * 128 + 128 + 128 * 64 + 64) * 4


def test_a_script_that_wants_more_gpus_is_shown_how_to_ask_for_them(script: Callable[..., str]):
    with pytest.raises(MemfitError) as raised:
        predict(script(PARALLEL), ranks=1)
    assert "--ranks" in str(raised.value)
