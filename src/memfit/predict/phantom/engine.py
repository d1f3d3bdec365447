"""Engine 2: the job runs on torch's own CUDA build, on a phantom GPU that is only address space, in a child process."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from memfit.errors import UsageError
from memfit.predict.child.instruction_sets import run_with_working_sets
from memfit.predict.devices.catalogue import PRODUCTS, UNLIMITED_BYTES, described_gpu, sources_of
from memfit.predict.devices.parse import Context, DeviceSpec, context_of
from memfit.predict.engine import Question, Traced
from memfit.predict.levels.error_band import earned
from memfit.predict.levels.gpu import context_figure
from memfit.predict.levels.liveness import peak_of
from memfit.predict.phantom.library.build import built_library
from memfit.predict.phantom.library.installed import find_torch
from memfit.predict.phantom.messages import PhantomReply, PhantomRequest
from memfit.predict.phantom.parent import run_in_child
from memfit.predict.phantom.snapshot_timeline import CUDA
from memfit.predict.phantom.value_reads import answers_of_environment, parse_answers
from memfit.predict.ranks.environment import Ranks
from memfit.records.figure import Figure
from memfit.records.prediction import Assumption, Level

BAND = (
    "torch's own allocator: events equal to real GPU snapshots of transformer steps, reserved within 0.5 % "
    "(docs/phantom.md); the context is not in it"
)


class PhantomEngine:
    """Runs torch's own CUDA build on a GPU that is only address space."""

    name = "phantom"
    cannot: Mapping[str, str] = {
        "allow_real": "torch's own CUDA kernels are launched, none is fake",
        "unknown_is": "values that are not known are answered by place: --answer FILE:LINE=VALUE",
        "probes": "no operator is run on the CPU",
        "malloc": "it is a setting of the C heap",
    }

    def __init__(self, snapshot_path: str = "") -> None:
        self._snapshot_path = snapshot_path
        """Where to leave the snapshot in torch's own layout; empty for nowhere."""

    def run(self, question: Question) -> Traced:
        """Run a job on a phantom of the device and say what it took; where it does not fit, what it would take."""
        if question.function is not None:
            raise UsageError("the phantom GPU runs scripts, functions and workloads", hint="--engine fake")
        device, request = request_for(question)
        if self._snapshot_path:
            request = msgspec.structs.replace(request, snapshot_path=os.path.abspath(self._snapshot_path))
        run = partial(_run_whole, request, question.tell)
        (reply, whole), said = run_with_working_sets(run, lambda _: "", question.ask_processor)
        return _traced(question, device, reply, whole, said)


def can_run_on_phantom(question: Question) -> bool:
    """Whether the job is of a kind that runs there: anything but a callable of this process, on a GPU."""
    return question.device.kind == "cuda" and question.function is None


def _run_whole(
    request: PhantomRequest, tell: Callable[[str], None] | None, environment: Mapping[str, str]
) -> tuple[PhantomReply, PhantomReply]:
    """The run on the device itself, and the one that came to its end."""
    reply = run_in_child(request, environment=environment, tell=tell)
    if reply.failed is None:
        return reply, reply
    roomy = msgspec.structs.replace(
        request,
        total_bytes=UNLIMITED_BYTES,
        snapshot_path="",
        options=msgspec.structs.replace(request.options, show_output=False),
    )
    return reply, run_in_child(roomy, environment=environment, tell=tell)


def request_for(question: Question) -> tuple[DeviceSpec, PhantomRequest]:
    """The device with all that is known of it, and what its child is asked; builds the library where it is missing."""
    if question.device.kind != "cuda":
        raise UsageError("the phantom GPU predicts for GPUs", found=question.device.name, hint="--device cuda:NAME")
    torch = find_torch()
    device, gpu = described_gpu(question.device)
    answer = question.options.answer
    return device, PhantomRequest(
        job=question.job,
        options=question.options,
        gpu=gpu,
        total_bytes=device.total_bytes or UNLIMITED_BYTES,
        context_bytes=context_of(device).usual_bytes,
        library_folder=str(built_library(torch)),
        cudnn_folder=str(torch.cudnn_folder or ""),
        answers=parse_answers(",".join(answer)) if answer else answers_of_environment(),
        mail=dict(question.mail),
    )


def _traced(
    question: Question, device: DeviceSpec, reply: PhantomReply, whole: PhantomReply, said: tuple[Assumption, ...]
) -> Traced:
    """`reply` is the run on the device itself, `whole` the one that came to its end."""
    peak_bytes, _ = peak_of(whole.timeline, CUDA)
    if not peak_bytes:
        raise UsageError(
            "the job put nothing on the GPU", found=f"{whole.num_steps} steps",
            hint="move model and batch there in the job; a function with an argument `device` is given its name",
        )  # fmt: skip
    return Traced(
        timeline=whole.timeline,
        where=CUDA,
        route=_route(reply, question.options.this_rank),
        torch_version=reply.torch_version,
        num_steps=whole.num_steps,
        levels=_levels(whole, context_of(device)),
        step_time=Figure(value=None, unit="seconds", reason="kernels do not run on the phantom GPU"),
        assumptions=(*said, *whole.assumptions, *_own_assumptions(device, reply)),
        error_band=earned(BAND, whole.assumptions),
        device=device,
        failed=reply.failed,
        survey=whole.survey,
        trace_seconds=reply.run_seconds,
        probe_seconds=0.0,
        host_peak_bytes=max(reply.host_peak_bytes, whole.host_peak_bytes),
        num_operators=whole.num_launches,
        evidence=whole.evidence,
    )


def _route(reply: PhantomReply, ranks: Ranks) -> str:
    of = f", rank {ranks.rank} of {ranks.count}" if ranks.count > 1 else ""
    return f"phantom GPU (torch {reply.torch_version}, CUDA {reply.cuda_version}){of}"


def _levels(reply: PhantomReply, beside: Context) -> tuple[Level, ...]:
    low, usual, high = beside.low_bytes, beside.usual_bytes, beside.high_bytes
    reserved = reply.reserved_bytes
    context = context_figure(beside)
    device = Figure(
        value=reserved + usual, unit="bytes", source="predicted", low=reserved + low, high=reserved + high,
        method="reserved + assumed context",
    )  # fmt: skip
    return (
        Level(name="tensors", figure=_counted(reply.requested_bytes), meaning="bytes asked for"),
        Level(
            name="allocated",
            figure=_counted(reply.allocated_bytes),
            meaning="as torch.cuda.max_memory_allocated() counts",
        ),
        Level(name="reserved", figure=_counted(reserved), meaning="as torch.cuda.max_memory_reserved() counts"),
        Level(name="context", figure=context, meaning="taken by the driver beside the allocator"),
        Level(name="device", figure=device, meaning="the whole card, as nvidia-smi shows it"),
    )


def _counted(value: int) -> Figure:
    return Figure(value=value, unit="bytes", source="predicted", method="torch's own allocator on the phantom GPU")


def _own_assumptions(device: DeviceSpec, reply: PhantomReply) -> tuple[Assumption, ...]:
    found = [
        Assumption(kind="context", text="the CUDA context is an assumed range, different for each card and driver")
    ]
    if device.name == "cuda":
        found.append(Assumption(kind="device", text="no GPU was named: it answers as an A100 of the size asked for"))
    elif device.name in PRODUCTS:
        found.append(Assumption(kind="device", text=sources_of(device)))
    if reply.num_plans:
        found.append(
            Assumption(
                kind="cudnn", text=f"{reply.num_plans} convolution plans by cuDNN's own heuristics, without a device"
            )
        )
    if reply.num_retries:
        found.append(
            Assumption(kind="allocator", text=f"the cache was given back {reply.num_retries} times to find room")
        )
    return tuple(found)
