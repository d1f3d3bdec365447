"""Do small integers arrive by collectives as from ranks that are all alike? The oracle is plain arithmetic."""

from __future__ import annotations

from collections.abc import Callable

import pytest

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
