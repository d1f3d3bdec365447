"""Many small predictions for a GPU in one process: the same parts as `memfit predict`, without a child for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memfit.job.description import JobDescription
from memfit.predict.allocator.settings import AllocatorSettings
from memfit.predict.child.messages import TraceRequest
from memfit.predict.devices.parse import DeviceSpec, parse_device, usable_bytes
from memfit.predict.fake.choose_route import on_device
from memfit.predict.fake.recording import Recording, trace_training
from memfit.predict.levels.gpu import reserved_with_cudnn, run_allocator
from memfit.predict.observe.storage_log import TraceLog, scratches_of, timeline_of
from memfit.records.cuda.allocator import AllocatorRun
from memfit.records.timeline import Timeline


def predict_on_gpu(
    build: Callable[[], Any], gpu: str = "cuda", num_steps: int = 2, *, bounded: bool = False
) -> AllocatorRun:
    """Trace on fake CUDA tensors, then simulate the allocator; `bounded` by what the card has beside its context."""
    device = parse_device(gpu)
    timeline, _ = _trace(build, device, num_steps)
    return run_allocator(timeline, AllocatorSettings(), usable_bytes(device) if bounded else None)


def predict_range_on_gpu(
    build: Callable[[], Any], gpu: str, num_steps: int, *, gemm_workspace_bytes: int | None = None
) -> tuple[int, tuple[int, int], bool]:
    """Reserved bytes of a job that calls cuDNN, their range, and whether it runs out of memory on this card.

    `gemm_workspace_bytes` is what cuBLAS was told to take, None for its usual workspace.
    """
    device, settings = parse_device(gpu), AllocatorSettings()
    timeline, log = _trace(build, device, num_steps, gemm_workspace_bytes)
    free_run = run_allocator(timeline, settings)
    found = reserved_with_cudnn(timeline, settings, free_run, scratches_of(log), device)
    fails = run_allocator(timeline, settings, usable_bytes(device)).failed is not None
    return found.point_bytes, (found.low_bytes, found.high_bytes), fails


def _trace(
    build: Callable[[], Any], device: DeviceSpec, num_steps: int, gemm_workspace_bytes: int | None = None
) -> tuple[Timeline, TraceLog]:
    gemm_bytes = device.cublas_workspace_bytes if gemm_workspace_bytes is None else gemm_workspace_bytes
    request = TraceRequest(
        job=JobDescription(kind="function", target="benchmark"), device="cuda", capability=device.capability,
        gemm_workspace_bytes=gemm_bytes,
    )  # fmt: skip
    recording = Recording(gemm_workspace_bytes=gemm_bytes)
    with on_device(request, recording):
        trace = trace_training(build, recording=recording, num_steps=num_steps)
    return timeline_of(trace.log, trace.root_names), trace.log
