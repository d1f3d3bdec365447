"""How does a job run on the phantom GPU become a prediction? The second engine behind the same record."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

import msgspec

from memfit.errors import UsageError
from memfit.job.description import JobDescription
from memfit.predict.batch_lengths import with_lengths_of_loader
from memfit.predict.child.instruction_sets import AskProcessor, run_cured
from memfit.predict.devices.catalogue import PRODUCTS, UNLIMITED_BYTES, described_gpu, sources_of
from memfit.predict.devices.parse import Context, DeviceSpec, context_of
from memfit.predict.levels.error_band import earned
from memfit.predict.levels.gpu import context_figure
from memfit.predict.levels.liveness import peak_by_phase, peak_of, who_is_alive
from memfit.predict.levels.savings import savings_of
from memfit.predict.phantom.library.build import built_library
from memfit.predict.phantom.library.installed import find_torch
from memfit.predict.phantom.messages import PhantomReply, PhantomRequest
from memfit.predict.phantom.parent import run_in_child
from memfit.predict.phantom.snapshot_timeline import CUDA
from memfit.predict.phantom.value_reads import answers_of_environment
from memfit.records.figure import Figure
from memfit.records.prediction import Assumption, Cost, Level, Prediction

BAND = (
    "torch's own allocator: events equal to real GPU snapshots of transformer steps, reserved within 0.5 % "
    "(docs/phantom.md); the context is not in it"
)


def predict_on_phantom(
    job: JobDescription,
    device: DeviceSpec,
    *,
    num_steps: int = 2,
    choose_batches: bool = False,
    alloc_conf: str = "",
    show_output: bool = False,
    most_seconds: float | None = None,
    snapshot_path: str = "",
    answers: Mapping[str, float] | None = None,
    num_ranks: int = 1,
    ask_processor: AskProcessor | None = None,
    tell: Callable[[str], None] | None = None,
) -> Prediction:
    """Run a job on a phantom of the device and say what it took; where it does not fit, also what it would take.

    `answers` says, by place ('train.py:33'), what a read of an unknown value gives; without it MEMFIT_ANSWERS does.
    """
    started = time.perf_counter()
    device, request = request_for(job, device, num_steps=num_steps)
    request = msgspec.structs.replace(
        request,
        num_ranks=num_ranks,
        choose_batches=choose_batches,
        alloc_conf=alloc_conf,
        snapshot_path=os.path.abspath(snapshot_path) if snapshot_path else "",
        answers=answers_of_environment() if answers is None else dict(answers),
    )

    def run(environment: Mapping[str, str]) -> tuple[PhantomReply, PhantomReply]:
        """The run on the device itself, and the one that came to its end."""
        reply = run_in_child(
            request, show_output=show_output, most_seconds=most_seconds, environment=environment, tell=tell
        )
        if reply.failed is None:
            return reply, reply
        roomy = msgspec.structs.replace(request, total_bytes=UNLIMITED_BYTES, snapshot_path="")
        return reply, run_in_child(roomy, most_seconds=most_seconds, environment=environment, tell=tell)

    (reply, whole), said = run_cured(run, lambda _: "", ask_processor)
    prediction = _assemble(job, device, reply, whole, started, num_ranks)
    return msgspec.structs.replace(prediction, assumptions=(*said, *prediction.assumptions))


def request_for(job: JobDescription, device: DeviceSpec, *, num_steps: int) -> tuple[DeviceSpec, PhantomRequest]:
    """The device with all that is known of it, and what its child is asked; builds the library where it is missing."""
    if device.kind != "cuda":
        raise UsageError("the phantom GPU predicts for GPUs", found=device.name, hint="--device cuda:NAME")
    torch = find_torch()
    device, gpu = described_gpu(device)
    return device, PhantomRequest(
        job=job,
        gpu=gpu,
        total_bytes=device.total_bytes or UNLIMITED_BYTES,
        context_bytes=context_of(device).usual_bytes,
        library_folder=str(built_library(torch)),
        cudnn_folder=str(torch.cudnn_folder or ""),
        num_steps=num_steps,
    )


def _assemble(
    job: JobDescription,
    device: DeviceSpec,
    reply: PhantomReply,
    whole: PhantomReply,
    started: float,
    num_ranks: int,
) -> Prediction:
    """`reply` is the run on the device itself, `whole` the one that came to its end."""
    peak_bytes, event = peak_of(whole.timeline, CUDA)
    if not peak_bytes:
        raise UsageError(
            "the job put nothing on the GPU", found=f"{whole.num_steps} steps",
            hint="move model and batch there in the job; a function with an argument `device` is given its name",
        )  # fmt: skip
    prediction = Prediction(
        target=job.target,
        settings={name: str(value) for name, value in job.settings.items()},
        device=device.name,
        route=_route(reply, num_ranks),
        torch_version=reply.torch_version,
        num_steps=whole.num_steps,
        levels=_levels(whole, context_of(device)),
        at_peak=who_is_alive(whole.timeline, CUDA, event),
        phases=peak_by_phase(whole.timeline, CUDA),
        assumptions=whole.assumptions + _own_assumptions(device, reply),
        error_band=earned(BAND, whole.assumptions),
        failed=reply.failed,
        savings=savings_of(whole.timeline, CUDA),
        step_time=Figure(value=None, unit="seconds", reason="kernels do not run on the phantom GPU"),
        memory_limit_bytes=device.total_bytes,
        cost=Cost(
            trace_seconds=reply.run_seconds,
            probe_seconds=0.0,
            total_seconds=time.perf_counter() - started,
            host_peak_bytes=max(reply.host_peak_bytes, whole.host_peak_bytes),
            num_operators=whole.num_launches,
        ),
        timeline=whole.timeline,
    )
    return with_lengths_of_loader(prediction, whole.survey, device, CUDA) if whole.survey else prediction


def _route(reply: PhantomReply, num_ranks: int) -> str:
    of = f", rank 0 of {num_ranks}" if num_ranks > 1 else ""
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
