"""Does a ResNet train on a small device? One step, perhaps under a limit, in a process of its own."""

from __future__ import annotations

import hashlib
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from memfit.job.workloads.vision import ResNet
from memfit.model.step import job_of
from memfit.profile.profile import profile_job
from memfit.records.plan import Chain


def edge_job(size: int, batch: int) -> Any:
    """ResNet-50 with SGD, as the edge work trains it."""
    torch.manual_seed(0)
    model = ResNet((3, 4, 6, 3), True, 1000, False)
    data = (torch.randn(batch, 3, size, size), torch.randint(0, 1000, (batch,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return job_of(model, data, nn.functional.cross_entropy, optimizer, f"ResNet-50 at {size}x{size}, batch {batch}")


def profile_edge(size: int, batch: int) -> Chain:
    """The measured chain; this process has no limit."""
    return profile_job(edge_job(size, batch), timed_runs=1).chain


def one_step(size: int, batch: int, plan: str | None, disk: str | None) -> dict[str, Any]:
    """Run one step and say what came out of it."""
    import memfit

    job = edge_job(size, batch)
    if plan is not None:
        memfit.apply_plan(job.model, plan, disk=disk)
    start = time.perf_counter()
    job.run()
    seconds, resident_bytes = time.perf_counter() - start, _most_resident()
    digest = hashlib.sha256()
    for tensor in [job.seen["loss"], *(p.grad for p in job.model.parameters()), *job.model.buffers()]:
        assert tensor is not None
        digest.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return {"seconds": seconds, "digest": digest.hexdigest(), "resident_bytes": resident_bytes}


def _most_resident() -> int:
    """The most resident memory of this process in bytes, mapped files included; the limit is on anonymous memory."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))


def child() -> None:
    """`python -m benchmarks.plans.execution_edge_torch JSON`: one step in a process with a limit."""
    request = json.loads(sys.argv[1])
    torch.set_num_threads(request["threads"])
    if request["limit_bytes"]:
        resource.setrlimit(resource.RLIMIT_DATA, (request["limit_bytes"], request["limit_bytes"]))
    try:
        answer = one_step(request["size"], request["batch"], request["plan"], request["disk"])
    except (RuntimeError, MemoryError) as error:
        answer = {"failed": str(error).splitlines()[0][:120]}
    print(json.dumps(answer))


if __name__ == "__main__":
    child()
