"""Many small predictions for a GPU in one process: the same parts as `memfit predict`, without a child for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memfit.job.description import JobDescription
from memfit.predict.allocator_settings import AllocatorSettings
from memfit.predict.cuda_memory import run_allocator
from memfit.predict.devices import DeviceSpec, parse_device, usable_bytes
from memfit.predict.messages import TraceRequest
from memfit.predict.torch_device import on_device
from memfit.predict.torch_fake import Recording, trace_training
from memfit.predict.trace import timeline_of
from memfit.records.allocator import AllocatorRun


def predict_on_gpu(
    build: Callable[[], Any], gpu: str = "cuda", num_steps: int = 2, *, bounded: bool = False
) -> AllocatorRun:
    """Trace on fake CUDA tensors, then simulate the allocator; `bounded` by what the card has beside its context."""
    device: DeviceSpec = parse_device(gpu)
    request = TraceRequest(
        job=JobDescription(kind="function", target="benchmark"), device="cuda", capability=device.capability,
        gemm_workspace_bytes=device.cublas_workspace_bytes,
    )  # fmt: skip
    recording = Recording(gemm_workspace_bytes=device.cublas_workspace_bytes)
    with on_device(request, recording):
        trace = trace_training(build, recording=recording, num_steps=num_steps)
    limit = usable_bytes(device) if bounded else None
    return run_allocator(timeline_of(trace.log, trace.root_names), AllocatorSettings(), limit)
