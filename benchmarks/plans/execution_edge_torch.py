"""What does a ResNet take on a small device, and does it train there? Chains from shapes, one step under a limit."""

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
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from memfit.apply.torch_job import job_of
from memfit.apply.torch_profile import profile_job
from memfit.job.torch_resnet import ResNet
from memfit.records.plan import Chain, Fixed, Stage

DEPTHS = {
    "ResNet-18": ((2, 2, 2, 2), False), "ResNet-34": ((3, 4, 6, 3), False), "ResNet-50": ((3, 4, 6, 3), True),
    "ResNet-101": ((3, 4, 23, 3), True), "ResNet-152": ((3, 8, 36, 3), True),
}  # fmt: skip
BACKWARD_PER_FORWARD = 2.0


class SavedByStage:
    """Bytes that autograd keeps, each storage once, by the module that was running."""

    def __init__(self, fixed: set[int]) -> None:
        self.seen, self.stage = fixed, ""
        self.saved: dict[str, int] = {}
        self.outputs: dict[str, int] = {}

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in self.seen:
            self.seen.add(storage._cdata)
            self.saved[self.stage] = self.saved.get(self.stage, 0) + storage.nbytes()
        return tensor

    def watch(self, name: str, module: nn.Module) -> None:
        def enter(*_: Any) -> None:
            self.stage = name

        def leave(_m: Any, _i: Any, out: torch.Tensor) -> None:
            self.outputs[name] = out.untyped_storage().nbytes()

        module.register_forward_pre_hook(enter)
        module.register_forward_hook(leave)


def analytic_chain(name: str, size: int, batch: int) -> Chain:
    """The chain of a ResNet from shapes alone: bytes kept by storage, seconds as one per 10^12 operations."""
    depths, bottleneck = DEPTHS[name]
    with FakeTensorMode():
        model = ResNet(depths, bottleneck, 1000, False)
        parameter_bytes = sum(p.nbytes for p in model.parameters())
        images = torch.empty(batch, 3, size, size)
        fixed = {t.untyped_storage()._cdata for t in [*model.parameters(), *model.buffers(), images]}
        watch = SavedByStage(fixed)
        stages = [("stem", model.stem), *((f"blocks.{i}", b) for i, b in enumerate(model.blocks)), ("head", model.head)]
        for stage, module in stages:
            watch.watch(stage, module)
        with FlopCounterMode(display=False) as flops, torch.autograd.graph.saved_tensors_hooks(watch.pack, lambda t: t):
            kept = model(images)
        counts = {n.removeprefix("ResNet."): sum(v.values()) for n, v in flops.get_flop_counts().items()}
        del kept
    gradients = {stage: sum(p.nbytes for p in module.parameters()) for stage, module in stages}
    return Chain(
        stages=tuple(_stage(s, watch, counts, gradients[s]) for s, _ in stages),
        input_bytes=images.nbytes,
        fixed=Fixed(parameter_bytes=parameter_bytes),
        target=f"{name} at {size}x{size}, batch {batch}",
        source="predicted",
        time_source="assumed",
    )


def _stage(name: str, watch: SavedByStage, flops: dict[str, int], gradient_bytes: int) -> Stage:
    seconds = flops.get(name, 0) / 1e12
    output = watch.outputs[name]
    return Stage(
        name=name, forward_seconds=seconds, backward_seconds=BACKWARD_PER_FORWARD * seconds, output_bytes=output,
        saved_bytes=max(output, watch.saved.get(name, 0)), gradient_bytes=gradient_bytes,
    )  # fmt: skip


# ---- one real step, perhaps under a limit ------------------------------------------------------------------------


def edge_job(size: int, batch: int) -> Any:
    """ResNet-50 with SGD, as the edge work trains it."""
    torch.manual_seed(0)
    depths, bottleneck = DEPTHS["ResNet-50"]
    model = ResNet(depths, bottleneck, 1000, False)
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
