"""Is what is predicted for every rank what real processes over gloo hold?"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from memfit.api import predict_peak, predict_ranks  # noqa: E402

SCRIPT = """
import os, sys
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(5)])
way = sys.argv[1]
if way == "ddp":
    model = nn.parallel.DistributedDataParallel(model)
else:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.device_mesh import init_device_mesh
    mesh = init_device_mesh("cpu", (size,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(2):
    model(torch.randn(32, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
held = [p.to_local() if hasattr(p, "to_local") else p for p in model.parameters()]
states = [s for state in optimizer.state.values() for s in state.values()]
held += [s.to_local() if hasattr(s, "to_local") else s for s in states]
open(sys.argv[2] + f"/held-{rank}", "w").write(str(sum(t.untyped_storage().nbytes() for t in held)))
dist.barrier()
dist.destroy_process_group()  # a rank that ends while another still talks to it can be ended by torch's own threads
"""


def run_for_real(path: Path, way: str, num_ranks: int) -> list[int]:
    """Bytes of parameters and optimizer state of every rank of real processes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    started = []
    for rank in range(num_ranks):
        variables = {"RANK": str(rank), "WORLD_SIZE": str(num_ranks), "MASTER_ADDR": "127.0.0.1"}
        variables = os.environ | variables | {"MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
        started.append(subprocess.Popen([sys.executable, str(path), way, str(path.parent)], env=variables))
    assert [process.wait(120) for process in started] == [0] * num_ranks
    return [int((path.parent / f"held-{rank}").read_text()) for rank in range(num_ranks)]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_every_rank_holds_what_real_processes_hold(tmp_path: Path, way: str):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    real = run_for_real(path, way, 3)
    found = predict_ranks(str(path), ranks=3, arguments=[way, str(tmp_path)], probes=False, num_steps=2)
    for rank in range(3):
        shares = {share.name: share.num_bytes for share in found.of_rank(rank).at_peak.by_category}
        assert shares["parameter"] + shares["optimizer state"] == real[rank]
    assert found.asked_at  # the script asks for its rank


EXPERTS = """
import sys
import torch
import torch.distributed as dist
from torch import nn

TOKENS, WIDTH, NUM, CHOSEN = 64, 16, 8, 2
dist.init_process_group("gloo")
size = dist.get_world_size()
router, experts = nn.Linear(WIDTH, NUM), nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(NUM // size)])
optimizer = torch.optim.SGD([*router.parameters(), *experts.parameters()], lr=0.1)
x = torch.randn(TOKENS, WIDTH)
_, chosen = router(x).topk(CHOSEN, dim=-1)
counts = torch.bincount(chosen.flatten(), minlength=NUM)
arriving = torch.empty_like(counts)
dist.all_to_all_single(arriving, counts)
got = torch.randn(int(arriving.sum()), WIDTH)
sum(e(part).sum() for e, part in zip(experts, got.split(arriving.view(size, -1).sum(0).tolist()))).backward()
optimizer.step()
"""


@pytest.mark.slow
def test_tokens_arrive_as_the_routing_sends_them(tmp_path: Path):
    path = tmp_path / "experts.py"
    path.write_text(EXPERTS)
    line = next(number for number, text in enumerate(EXPERTS.splitlines(), start=1) if text.startswith("got"))
    arrived = {}
    for routing in ("even", "worst"):
        found = predict_peak(str(path), ranks=4, rank=1, routing=routing, probes=False, num_steps=1)
        assert found.timeline is not None
        made = [span.num_bytes for span in found.timeline.spans if span.line == f"experts.py:{line}"]
        arrived[routing] = max(made) // (16 * 4)
        assert "for this routing alone" in found.error_band
    assert arrived == {"even": 64 * 2, "worst": 4 * 64 * 2}


MESH = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (5,), mesh_dim_names=("pp",))
place = mesh.get_local_rank("pp")
model = nn.Linear(64, 512 if place == 3 else 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.randn(4, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.slow
def test_a_place_in_a_mesh_that_the_job_asks_for_is_a_reason_to_look_at_the_middle(tmp_path: Path):
    path = tmp_path / "train.py"
    path.write_text(MESH)
    found = predict_ranks(str(path), ranks=5, probes=False, num_steps=2)
    assert found.asked_at == ("train.py:9",)
    wide = next(each for each in found.classes if 3 in each.ranks)
    assert wide.ranks == (3,)
    assert found.fullest == wide
    others = next(each for each in found.classes if 1 in each.ranks)
    assert len(others.traced) == len(others.ranks) or "would not be seen" in others.why
