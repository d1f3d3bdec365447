"""How does a traced job become a prediction: levels, who is alive, what was assumed, does it fit?"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from memfit.errors import PredictionFailed, UsageError
from memfit.job.description import JobDescription
from memfit.predict.allocator.settings import AllocatorSettings
from memfit.predict.batch_lengths import with_lengths_of_loader
from memfit.predict.child.instruction_sets import AskProcessor, run_cured
from memfit.predict.child.messages import TraceReply, TraceRequest
from memfit.predict.child.parent import Nursery, reply_or_raise, trace_in_child
from memfit.predict.devices.catalogue import PRODUCTS, properties_of, sources_of
from memfit.predict.devices.parse import DeviceSpec, context_of
from memfit.predict.gpu_rules.cudnn import ReservedWithCudnn
from memfit.predict.levels.cpu import process_level
from memfit.predict.levels.error_band import error_band
from memfit.predict.levels.gpu import (
    CUDA,
    cuda_levels,
    find_failure,
    moved_to_cuda,
    reserved_with_cudnn,
    run_allocator,
)
from memfit.predict.levels.liveness import peak_by_phase, peak_of, who_is_alive
from memfit.predict.levels.savings import savings_of
from memfit.predict.levels.sharding import Sharding, shard
from memfit.predict.levels.step_time import cpu_step_time, gpu_step_time
from memfit.records.allocator import AllocatorRun
from memfit.records.figure import Figure
from memfit.records.prediction import Assumption, Cost, FailedAllocation, Level, Prediction
from memfit.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastOptions:
    """How a prediction is made."""

    num_steps: int = 2
    with_probes: bool = True
    allow_real: tuple[str, ...] = ()
    truth: bool = True
    pinned_malloc: bool = False
    show_output: bool = False
    most_seconds: float | None = None
    allocator: AllocatorSettings = field(default_factory=AllocatorSettings)
    alloc_conf: str = ""
    """The same as the user's text: the phantom GPU hands it to torch's own allocator."""
    on_phantom: bool = False
    with_smallest: bool = True
    choose_batches: bool = False
    """Let a script's data loader give batches of typical and of great lengths."""
    answers: dict[str, float] | None = None
    num_ranks: int = 1
    sharding: Sharding | None = None
    nursery: Nursery | None = None
    """Where to trace, when many predictions are wanted."""
    ask_processor: AskProcessor | None = None
    """Who knows which instruction sets work here; None where nobody is to be asked."""


def _on_phantom(job: JobDescription, device: DeviceSpec, options: ForecastOptions) -> Prediction:
    """The other engine: torch's own CUDA build on a GPU that is only address space."""
    from memfit.predict.phantom.engine import predict_on_phantom

    return predict_on_phantom(
        job,
        device,
        num_steps=options.num_steps,
        choose_batches=options.choose_batches,
        alloc_conf=options.alloc_conf,
        show_output=options.show_output,
        most_seconds=options.most_seconds,
        answers=options.answers,
        num_ranks=options.num_ranks,
        ask_processor=options.ask_processor,
    )


def forecast(
    job: JobDescription,
    device: DeviceSpec,
    options: ForecastOptions | None = None,
    function: Callable[..., Any] | None = None,
) -> Prediction:
    """Trace a job (or a callable of this process) in a process of its own and say what it will take on a device."""
    options = options or ForecastOptions()
    if options.on_phantom:
        return _on_phantom(job, device, options)
    started = time.perf_counter()
    gpu = properties_of(device)
    request = TraceRequest(
        job=job,
        device=device.kind,
        num_steps=options.num_steps,
        choose_batches=options.choose_batches,
        with_probes=options.with_probes,
        allow_real=options.allow_real,
        truth=options.truth,
        answers=options.answers or {},
        gpu_name=device.name,
        gpu_bytes=device.total_bytes or 0,
        capability=device.capability,
        num_processors=gpu.num_processors,
        threads_per_processor=gpu.threads_per_processor,
        num_ranks=options.num_ranks,
        gemm_workspace_bytes=device.cublas_workspace_bytes if device.kind == "cuda" else 0,
    )
    reply = _trace_cured(request, options, function)
    if options.sharding is not None:
        reply = _sharded(reply, options.num_ranks, options.sharding)
    return assemble(job, device, reply, options, started)


def _trace_cured(request: TraceRequest, options: ForecastOptions, function: Callable[..., Any] | None) -> TraceReply:
    """Trace, and once more under lower instruction sets where one of its processes died by an instruction."""

    def trace(environment: Mapping[str, str]) -> TraceReply:
        asked = msgspec.structs.replace(request, environment=dict(environment))
        return trace_by_some_route(asked, options, function)

    reply, said = run_cured(trace, lambda reply: reply.probe_signal, options.ask_processor)
    return msgspec.structs.replace(reply, assumptions=(*said, *reply.assumptions))


def _sharded(reply: TraceReply, num_ranks: int, sharding: Sharding) -> TraceReply:
    text = (
        f"{sharding} over {num_ranks} ranks is arithmetic on the trace of one rank with its own batch; "
        "buffers of the network library are not counted"
    )
    return msgspec.structs.replace(
        reply,
        timeline=shard(reply.timeline, num_ranks, sharding),
        route=f"{reply.route}, rank 0 of {num_ranks} ({sharding})",
        assumptions=(*reply.assumptions, Assumption(kind="sharding", text=text)),
    )


def trace_by_some_route(
    request: TraceRequest, options: ForecastOptions, function: Callable[..., Any] | None = None
) -> TraceReply:
    """Trace; when fake CUDA tensors do not work in this build, trace on fake CPU tensors and move the timeline."""

    def trace(asked: TraceRequest) -> TraceReply:
        if function is not None:
            from memfit.predict.fake.callable import trace_forked

            return reply_or_raise(trace_forked(function, asked))
        if options.nursery is not None:
            return options.nursery.trace(asked)
        return trace_in_child(asked, show_output=options.show_output, most_seconds=options.most_seconds)

    try:
        return trace(request)
    except PredictionFailed as error:
        if request.device != "cuda" or error.kind not in ("crash", "route") or request.job.kind == "script":
            raise
    request = msgspec.structs.replace(request, translate=True)
    reply = trace(request)
    return msgspec.structs.replace(reply, timeline=moved_to_cuda(reply.timeline, request.gemm_workspace_bytes))


def assemble(
    job: JobDescription, device: DeviceSpec, reply: TraceReply, options: ForecastOptions, started: float
) -> Prediction:
    """Put the record together."""
    where = CUDA if device.kind == "cuda" else "cpu"
    peak_bytes, event = peak_of(reply.timeline, where)
    if not peak_bytes:
        raise UsageError(
            f"the job put nothing on {where}", found=f"{reply.num_operators} operators elsewhere",
            hint="move model and batch there in the job; a function with an argument `device` is given its name",
        )  # fmt: skip
    if device.kind == "cuda":
        free_run = run_allocator(reply.timeline, options.allocator, smallest=options.with_smallest)
        with_cudnn = _reserved_with_cudnn(reply, options, free_run, device)
        levels = cuda_levels(peak_bytes, free_run, context_of(device), with_cudnn)
        failed = find_failure(reply.timeline, options.allocator, device)
    else:
        levels = _cpu_levels(peak_bytes, reply, options)
        failed = _too_large_for_cpu(peak_bytes, device, reply, event)
    prediction = Prediction(
        target=job.target,
        settings={name: str(value) for name, value in job.settings.items()},
        device=device.name,
        route=reply.route,
        torch_version=reply.torch_version,
        num_steps=reply.num_steps,
        levels=levels,
        at_peak=who_is_alive(reply.timeline, where, event),
        phases=peak_by_phase(reply.timeline, where),
        assumptions=reply.assumptions + _own_assumptions(device, reply),
        error_band=error_band(
            device, reply, with_probes=options.with_probes, num_ranks=options.num_ranks, sharding=options.sharding
        ),
        failed=failed,
        savings=savings_of(reply.timeline, where),
        step_time=_step_time(device, reply),
        memory_limit_bytes=device.total_bytes,
        cost=Cost(
            trace_seconds=reply.trace_seconds,
            probe_seconds=reply.probe_seconds,
            total_seconds=time.perf_counter() - started,
            host_peak_bytes=reply.host_peak_bytes,
            num_operators=reply.num_operators,
        ),
        timeline=reply.timeline,
    )
    return with_lengths_of_loader(prediction, reply.survey, device, where) if reply.survey else prediction


def _reserved_with_cudnn(
    reply: TraceReply, options: ForecastOptions, free_run: AllocatorRun, device: DeviceSpec
) -> ReservedWithCudnn | None:
    """Reserved bytes of a job that calls cuDNN, with their range; None for one that does not."""
    if not reply.scratches:
        return None
    return reserved_with_cudnn(reply.timeline, options.allocator, free_run, reply.scratches, device)


def _cpu_levels(peak_bytes: int, reply: TraceReply, options: ForecastOptions) -> tuple[Level, ...]:
    method = "traced on fake tensors" + (f", {reply.num_probed} calls probed" if reply.num_probed else "")
    tensors = Figure(value=peak_bytes, unit="bytes", source="predicted", method=method)
    meaning = "bytes handed out by torch's CPU allocator: tensors and what kernels allocate inside"
    process = process_level(
        peak_bytes,
        reply.baseline_bytes,
        pinned=options.pinned_malloc,
        num_operators=reply.num_operators,
        data_bytes=reply.data_bytes,
        untouched_bytes=reply.untouched_bytes,
        unmeasured_because=reply.probe_end,
    )
    return Level(name="tensors", figure=tensors, meaning=meaning), process


def _step_time(device: DeviceSpec, reply: TraceReply) -> Figure:
    if device.kind == "cuda":
        return gpu_step_time(device, reply.half_flops, reply.single_flops, reply.moved_bytes, reply.num_calls)
    if reply.flops_per_second is None or reply.bytes_per_second is None:
        return Figure(value=None, unit="seconds", reason="this machine could not be timed")
    flops = reply.half_flops + reply.single_flops
    return cpu_step_time(flops, reply.moved_bytes, reply.flops_per_second, reply.bytes_per_second, reply.num_calls)


def _too_large_for_cpu(peak_bytes: int, device: DeviceSpec, reply: TraceReply, event: int) -> FailedAllocation | None:
    """On a CPU there is no allocator that refuses; it does not fit when tensors and the bare process pass the limit."""
    needed = peak_bytes + reply.data_bytes + (reply.baseline_bytes or 0)
    if device.total_bytes is None or needed <= device.total_bytes:
        return None
    alive = who_is_alive(reply.timeline, "cpu", event)
    return FailedAllocation(
        requested_bytes=needed,
        limit_bytes=device.total_bytes,
        allocated_bytes=peak_bytes,
        reserved_bytes=needed,
        step=alive.step,
        phase=alive.phase,
        module="",
        operator="",
        line="",
        message="the bare process and the tensors alone need more than the limit",
    )


def _own_assumptions(device: DeviceSpec, reply: TraceReply) -> tuple[Assumption, ...]:
    if device.kind == "cpu":
        return ()
    found = [
        Assumption(kind="context", text=f"the CUDA context is an assumed range: {context_of(device).source}"),
        Assumption(kind="device", text=said_of(device)),
    ]
    if reply.scratches:
        largest = max(scratch.num_bytes for scratch in reply.scratches)
        text = (
            "cuDNN's workspaces: reserved and device are the mean of runs with and without copies for tensor cores and "
            f"grouped convolutions (up to {format_bytes(largest)} in one call), their range held 90 % of measured jobs"
        )
        found.append(Assumption(kind="cudnn", text=text))
    if any(scratch.taker == "batch norm" for scratch in reply.scratches):
        text = "buffers of batch normalisation in channels-last order are in reserved, not in allocated"
        found.append(Assumption(kind="cudnn", text=text))
    return tuple(found)


def said_of(device: DeviceSpec) -> str:
    """Where the figures of a GPU are from, in one line."""
    if device.name in PRODUCTS:
        return sources_of(device)
    return "no GPU was named: it answers as an A100 of the size asked for"
