"""GPU levels of a prediction: allocated, reserved by the caching allocator, and the whole card; pure."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import msgspec

from memfit.predict.allocator.caching import CachingAllocator, OutOfDeviceMemory
from memfit.predict.allocator.play import events_of, make_allocator, placed_events_of, simulate, streams_of
from memfit.predict.allocator.settings import AllocatorSettings
from memfit.predict.devices.parse import Context, DeviceSpec, usable_bytes
from memfit.predict.gpu_rules.cublas import CUBLAS_WORKSPACE
from memfit.predict.gpu_rules.cudnn import (
    ReservedWithCudnn,
    Scratch,
    copying_all,
    decisions_of,
    reserved_of,
    taken_by,
)
from memfit.predict.levels.liveness import mark_at
from memfit.records.cuda.allocator import AllocatorRun
from memfit.records.figure import Figure
from memfit.records.prediction import FailedAllocation, Level
from memfit.records.timeline import LiveSpan, Timeline

CUDA = "cuda:0"


def run_allocator(
    timeline: Timeline, settings: AllocatorSettings, device_bytes: int | None = None, *, smallest: bool = False
) -> AllocatorRun:
    """Replay the timeline's requests."""
    events, streams = events_of(timeline, CUDA), streams_of(timeline, CUDA)
    return simulate(events, settings, device_bytes, streams=streams, smallest=smallest, max_points=1)


def reserved_with_cudnn(
    timeline: Timeline,
    settings: AllocatorSettings,
    free_run: AllocatorRun,
    scratches: Sequence[Scratch],
    device: DeviceSpec,
) -> ReservedWithCudnn:
    """Reserved bytes over all decisions of what cuDNN takes; one that does not run on the card does not count."""
    events, streams = placed_events_of(timeline, CUDA), streams_of(timeline, CUDA)
    device_bytes = usable_bytes(device) if device.total_bytes else None
    peaks: list[int] = []
    for decided in decisions_of(scratches):
        peak = _peak_with(events, streams, taken_by(scratches, decided), make_allocator(settings, device_bytes))
        peaks += [] if peak is None else [peak]
    allocated = free_run.peak_allocated_bytes
    if not peaks:
        return reserved_of([free_run.peak_reserved_bytes], allocated, device.capability)
    copying = _peak_with(events, streams, copying_all(scratches), make_allocator(settings, device_bytes)) or 0
    return reserved_of(peaks, allocated, device.capability, device_bytes, copying_bytes=copying)


def _peak_with(
    events: Sequence[tuple[int, int]],
    streams: Sequence[int] | None,
    taken: Sequence[tuple[int, int]],
    allocator: CachingAllocator,
) -> int | None:
    """The peak of reserved bytes with workspaces that come and go; None where the job itself does not fit."""
    handles: list[int] = []
    coming = 0
    try:
        for place, request in events:
            while coming < len(taken) and taken[coming][0] <= place:
                _try_workspace(allocator, taken[coming][1])
                coming += 1
            if request > 0:
                handles.append(allocator.allocate(request, streams[len(handles)] if streams else 0))
            else:
                allocator.free(handles[-1 - request])
    except OutOfDeviceMemory:
        return None
    return allocator.stats["reserved_bytes.all.peak"]


def _try_workspace(allocator: CachingAllocator, num_bytes: int) -> None:
    """Taken for one call; where it does not fit, torch tries cuDNN's next plan, here one without."""
    with suppress(OutOfDeviceMemory):
        allocator.free(allocator.allocate(num_bytes))


def context_figure(context: Context) -> Figure:
    """What the driver takes beside the allocator: assumed, with its range."""
    method = f"CUDA context and loaded kernels, not predicted: {context.source}"
    low, high = context.low_bytes, context.high_bytes
    return Figure(value=context.usual_bytes, unit="bytes", source="assumed", low=low, high=high, method=method)


def cudnn_level(found: ReservedWithCudnn) -> Level:
    """What workspaces may add to reserved beyond what is expected: the most is the upper end of the range."""
    end = "what 90 % of measured jobs stayed below" if found.is_measured else "assumed, wider than for measured jobs"
    method = f"what is expected of cuDNN is in reserved; the most is {end}"
    most_bytes = found.high_bytes - found.point_bytes
    figure = Figure(value=0, unit="bytes", source="assumed", low=0, high=most_bytes, method=method)
    return Level(name="cudnn", figure=figure, meaning="what workspaces of cuDNN may add to reserved")


def cuda_levels(
    tensor_peak_bytes: int, free_run: AllocatorRun, beside: Context, with_cudnn: ReservedWithCudnn | None = None
) -> tuple[Level, ...]:
    """Requested, allocated, reserved, context, whole device and smallest device, each with its meaning.

    `with_cudnn` is given for a job that calls cuDNN, whose workspaces become a level of their own.
    """
    low, usual, high = beside.low_bytes, beside.usual_bytes, beside.high_bytes
    reserved = least = most = free_run.peak_reserved_bytes
    if with_cudnn is not None:
        reserved, least, most = with_cudnn.point_bytes, with_cudnn.low_bytes, with_cudnn.high_bytes
    context = context_figure(beside)
    device = Figure(
        value=reserved + usual, unit="bytes", source="predicted", low=least + low, high=most + high,
        method="reserved + assumed context" + (" and cuDNN workspaces" if least < most else ""),
    )  # fmt: skip
    levels = [
        Level(
            name="tensors",
            figure=_predicted(tensor_peak_bytes, "live tensors and workspaces"),
            meaning="bytes asked for",
        ),
        Level(
            name="allocated",
            figure=_predicted(free_run.peak_allocated_bytes, "allocator simulated"),
            meaning="as torch.cuda.max_memory_allocated() counts",
        ),
        Level(
            name="reserved",
            figure=_reserved(with_cudnn, reserved),
            meaning="as torch.cuda.max_memory_reserved() counts",
        ),
        *((cudnn_level(with_cudnn),) if with_cudnn is not None else ()),
        Level(name="context", figure=context, meaning="taken by the driver beside the allocator"),
        Level(name="device", figure=device, meaning="the whole card, as nvidia-smi shows it"),
    ]
    if free_run.smallest_device_bytes is not None:
        least = free_run.smallest_device_bytes
        figure = Figure(
            value=least + usual,
            unit="bytes",
            source="predicted",
            low=least + low,
            high=least + high,
            method="least memory for the simulated allocator, which releases its cache, + assumed context",
        )
        levels.append(Level(name="smallest", figure=figure, meaning="the least card it still runs on"))
    return tuple(levels)


def _reserved(found: ReservedWithCudnn | None, reserved_bytes: int) -> Figure:
    if found is None or found.low_bytes == found.high_bytes:
        return _predicted(reserved_bytes, "allocator simulated, enough memory")
    said = "held 90 % of measured jobs" if found.is_measured else "were not measured for such a job or card"
    method = f"allocator simulated with and without cuDNN's workspaces, mean; low and high {said}"
    return Figure(
        value=reserved_bytes, unit="bytes", source="predicted", method=method, low=found.low_bytes,
        high=found.high_bytes,
    )  # fmt: skip


def _predicted(value: int, method: str) -> Figure:
    return Figure(value=value, unit="bytes", source="predicted", method=method)


def find_failure(timeline: Timeline, settings: AllocatorSettings, device: DeviceSpec) -> FailedAllocation | None:
    """The first allocation that does not fit on the device beside the usual context."""
    if device.total_bytes is None:
        return None
    run = run_allocator(timeline, settings, usable_bytes(device))
    if run.failed is None:
        return None
    return _failed_allocation(timeline, run, device.total_bytes)


def _failed_allocation(timeline: Timeline, run: AllocatorRun, total_bytes: int) -> FailedAllocation:
    """Find the span behind the event at which the allocator gave up."""
    report = run.failed
    assert report is not None
    events = events_of(timeline, CUDA)
    number = sum(1 for event in events[: report.event or 0] if event > 0)
    spans = sorted((s for s in timeline.spans if s.device == CUDA and s.num_bytes > 0), key=lambda s: s.start)
    span = spans[number]
    mark = mark_at(timeline.phases, span.start)
    return FailedAllocation(
        requested_bytes=report.requested_bytes,
        limit_bytes=total_bytes,
        allocated_bytes=report.allocated_bytes,
        reserved_bytes=report.reserved_bytes,
        step=mark.step,
        phase=mark.phase,
        module=span.module,
        operator=span.operator,
        line=span.line,
        message=msgspec.structs.replace(report, total_bytes=total_bytes).message,
    )


def moved_to_cuda(timeline: Timeline, gemm_workspace_bytes: int, num_workspaces: int = 2) -> Timeline:
    """A timeline traced on the CPU, as if on a GPU: no CPU workspaces, two of cuBLAS at the start.

    Where torch gives each workspace back after its product, one stands for the one that is in use.
    """
    shift = num_workspaces
    workspaces = [
        LiveSpan(
            start=index, end=None, num_bytes=gemm_workspace_bytes, category="workspace", phase="setup",
            operator=CUBLAS_WORKSPACE, device=CUDA,
        )
        for index in range(shift)
    ]  # fmt: skip
    spans = [
        msgspec.structs.replace(
            span, device=CUDA, start=span.start + shift, end=None if span.end is None else span.end + shift
        )
        for span in timeline.spans
        if span.category != "workspace"
    ]
    marks = tuple(msgspec.structs.replace(mark, start=mark.start + shift) for mark in timeline.phases)
    return msgspec.structs.replace(
        timeline, spans=(*workspaces, *spans), num_events=timeline.num_events + shift, phases=marks
    )
