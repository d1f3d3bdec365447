"""Engine 1: the job is traced on fake tensors in a child process; bytes follow from the timeline and from rules."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from operator import attrgetter

import msgspec

from memfit.errors import PredictionFailed, UsageError
from memfit.predict.allocator.settings import parse_allocator_settings
from memfit.predict.child.instruction_sets import run_with_working_sets
from memfit.predict.child.messages import TraceReply, TraceRequest
from memfit.predict.child.parent import reply_or_raise, trace_in_child
from memfit.predict.devices.catalogue import PRODUCTS, properties_of, sources_of
from memfit.predict.devices.parse import DeviceSpec, context_of
from memfit.predict.engine import Question, Traced
from memfit.predict.gpu_rules.cublas import CUBLAS_WORKSPACE, said_of_workspaces, workspace_bytes, workspace_stays
from memfit.predict.gpu_rules.cudnn import GENERATION_SHARES, MEASURED_CAPABILITIES, WITHOUT_RULE, is_measured
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
from memfit.predict.levels.liveness import peak_of, who_is_alive
from memfit.predict.levels.step_time import cpu_step_time, gpu_step_time
from memfit.predict.phantom.value_reads import parse_answers
from memfit.predict.ranks.environment import Ranks
from memfit.predict.real_operators import operator_names
from memfit.records.figure import Figure
from memfit.records.prediction import Assumption, FailedAllocation, Level
from memfit.units import format_bytes


class FakeEngine:
    """Traces on fake tensors; honours every option."""

    name = "fake"
    cannot: Mapping[str, str] = {}

    def run(self, question: Question) -> Traced:
        """Trace a job (or a callable of this process) in a process of its own and size it on the device."""
        return self.size(question, self.trace(question))

    def trace(self, question: Question) -> TraceReply:
        """The timeline of the job, before anything is known of the device's allocator.

        Where one of its processes died by an instruction, it is traced once more under lower instruction sets.
        """
        run = partial(trace_by_some_route, question)
        reply, said = run_with_working_sets(run, attrgetter("probe_signal"), question.ask_processor)
        return msgspec.structs.replace(reply, assumptions=(*said, *reply.assumptions))

    def size(self, question: Question, reply: TraceReply) -> Traced:
        """What a timeline takes on the device."""
        return _traced(question, _as_rank(reply, question.options.this_rank))


def request_for(question: Question, environment: Mapping[str, str]) -> TraceRequest:
    """What the child is asked."""
    device, options = question.device, question.options
    gpu = properties_of(device)
    return TraceRequest(
        job=question.job,
        environment=dict(environment),
        device=device.kind,
        options=msgspec.structs.replace(options, allow_real=operator_names(options.allow_real)),
        answers=parse_answers(",".join(options.answer)),
        gpu_name=device.name,
        gpu_bytes=device.total_bytes or 0,
        capability=device.capability,
        num_processors=gpu.num_processors,
        threads_per_processor=gpu.threads_per_processor,
        gemm_workspace_bytes=device.cublas_workspace_bytes if device.kind == "cuda" else 0,
        known_probes=question.known_probes,
        looks_here=question.looks_here and question.known_probes is None,
        mail=dict(question.mail),
    )


def trace_by_some_route(question: Question, environment: Mapping[str, str]) -> TraceReply:
    """Trace; when fake CUDA tensors do not work in this build, trace on fake CPU tensors and move the timeline."""
    request, trace = request_for(question, environment), _child_for(question)
    try:
        return trace(request)
    except PredictionFailed as error:
        if request.device != "cuda" or error.kind not in ("crash", "route") or request.job.kind == "script":
            raise
    request = msgspec.structs.replace(request, translate=True)
    reply = trace(request)
    num_bytes = workspace_bytes(request.gemm_workspace_bytes, os.environ)
    stays = workspace_stays(reply.torch_version, os.environ)
    return msgspec.structs.replace(reply, timeline=moved_to_cuda(reply.timeline, num_bytes, 2 if stays else 1))


def _child_for(question: Question) -> Callable[[TraceRequest], TraceReply]:
    """The process that traces: a copy of this one for a callable, a copy of the fork server, or a new one."""
    function = question.function
    if function is not None:
        from memfit.predict.fake.callable import trace_forked

        return lambda request: reply_or_raise(trace_forked(function, request))
    if question.fork_server is not None:
        return question.fork_server.trace
    return partial(trace_in_child, tell=question.tell)


def _as_rank(reply: TraceReply, ranks: Ranks) -> TraceReply:
    """A reply of one rank: its GPU is the only one it uses, whatever number the job gives it."""
    if ranks.count == 1:
        return reply
    used = {span.device for span in reply.timeline.spans if span.device.startswith("cuda")}
    spans = reply.timeline.spans
    if len(used) == 1 and used != {CUDA}:
        spans = tuple(msgspec.structs.replace(span, device=CUDA) if span.device in used else span for span in spans)
    return msgspec.structs.replace(
        reply,
        timeline=msgspec.structs.replace(reply.timeline, spans=spans),
        route=f"{reply.route}, rank {ranks.rank} of {ranks.count}",
    )


def _traced(question: Question, reply: TraceReply) -> Traced:
    """Size what was traced on the device."""
    device, options = question.device, question.options
    where = CUDA if device.kind == "cuda" else "cpu"
    peak_bytes, event = peak_of(reply.timeline, where)
    if not peak_bytes:
        raise UsageError(
            f"the job put nothing on {where}", found=f"{reply.num_operators} operators elsewhere",
            hint="move model and batch there in the job; a function with an argument `device` is given its name",
        )  # fmt: skip
    if device.kind == "cuda":
        levels, failed = _gpu_levels(question, reply, peak_bytes)
    else:
        levels = _cpu_levels(peak_bytes, reply, pinned=options.malloc == "pinned")
        failed = _too_large_for_cpu(peak_bytes, device, reply, event)
    return Traced(
        timeline=reply.timeline,
        where=where,
        num_threads=reply.num_threads,
        route=reply.route,
        torch_version=reply.torch_version,
        num_steps=reply.num_steps,
        levels=levels,
        step_time=_step_time(device, reply),
        assumptions=reply.assumptions + _own_assumptions(device, reply),
        error_band=error_band(device, reply, with_probes=options.probes, num_ranks=options.ranks),
        device=device,
        failed=failed,
        survey=reply.survey,
        trace_seconds=reply.trace_seconds,
        probe_seconds=reply.probe_seconds,
        host_peak_bytes=reply.host_peak_bytes,
        num_operators=reply.num_operators,
        evidence=reply.evidence,
    )


def _gpu_levels(
    question: Question, reply: TraceReply, peak_bytes: int
) -> tuple[tuple[Level, ...], FailedAllocation | None]:
    """Levels of a GPU by the simulated allocator, and the first allocation that its memory refuses."""
    allocator = parse_allocator_settings(question.options.alloc_conf)
    free_run = run_allocator(reply.timeline, allocator, smallest=question.with_smallest)
    with_cudnn = None
    if reply.scratches:
        with_cudnn = reserved_with_cudnn(reply.timeline, allocator, free_run, reply.scratches, question.device)
    levels = cuda_levels(peak_bytes, free_run, context_of(question.device), with_cudnn)
    return levels, find_failure(reply.timeline, allocator, question.device)


def _cpu_levels(peak_bytes: int, reply: TraceReply, *, pinned: bool) -> tuple[Level, ...]:
    method = "traced on fake tensors" + (f", {reply.num_probed} calls probed" if reply.num_probed else "")
    here_bytes = peak_bytes if reply.here_bytes is None else reply.here_bytes
    low, high = (None, None) if here_bytes == peak_bytes else sorted((peak_bytes, here_bytes))
    tensors = Figure(value=peak_bytes, unit="bytes", source="predicted", method=method, low=low, high=high)
    meaning = "bytes handed out by torch's CPU allocator: tensors and what kernels allocate inside"
    process = process_level(
        peak_bytes,
        reply.baseline_bytes,
        pinned=pinned,
        num_operators=reply.num_operators,
        data_bytes=reply.data_bytes,
        untouched_bytes=reply.untouched_bytes,
        more_bytes=max(0, here_bytes - peak_bytes),
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
    workspace = next((span for span in reply.timeline.spans if span.operator == CUBLAS_WORKSPACE), None)
    if workspace is not None:
        text = said_of_workspaces(workspace.num_bytes, reply.torch_version, os.environ)
        found.append(Assumption(kind="cublas", text=text))
    if reply.scratches:
        largest = max(scratch.num_bytes for scratch in reply.scratches)
        text = (
            "cuDNN's workspaces: reserved and device are the mean of runs with and without copies for tensor cores and "
            f"grouped convolutions (up to {format_bytes(largest)} in one call){_share_of(device)}; "
            f"{_range_of(device, reply)}"
        )
        found.append(Assumption(kind="cudnn", text=text))
    if any(scratch.taker == "none" for scratch in reply.scratches):
        found.append(
            Assumption(kind="cudnn", text=f"cuDNN's workspaces are taken as none where they are {WITHOUT_RULE}")
        )
    if any(scratch.taker == "batch norm" for scratch in reply.scratches):
        text = "buffers of batch normalisation in channels-last order are in reserved, not in allocated"
        found.append(Assumption(kind="cudnn", text=text))
    return tuple(found)


def _share_of(device: DeviceSpec) -> str:
    """The calibrated factor in the figure, where there is one."""
    share = GENERATION_SHARES.get(device.capability)
    return "" if share is None else f", times {share:g} as measured on cards of this generation"


def _range_of(device: DeviceSpec, reply: TraceReply) -> str:
    if is_measured(device.capability, peak_of(reply.timeline, CUDA)[0]):
        return "their range held 90 % of measured jobs"
    which = "such small jobs" if device.capability in MEASURED_CAPABILITIES else "jobs on this card"
    return f"their range is a wide one, since {which} were not measured"


def said_of(device: DeviceSpec) -> str:
    """Where the figures of a GPU are from, in one line."""
    if device.name in PRODUCTS:
        return sources_of(device)
    return "no GPU was named: it answers as an A100 of the size asked for"
