"""Runs of a pipeline in processes of this machine, predicted and measured rank by rank."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from memfit.api.shared.options import checked_options

if TYPE_CHECKING:
    from memfit.records.figure import Figure, Source
    from memfit.records.pipeline import PipelineOrder, PipelinePlan, PipelineRun, RankOutcome, RankResult
    from memfit.records.prediction import Prediction

STAGE = "StageModule"
"""The class of a stage in the timeline of a prediction (`apply/pipeline/cut.py`)."""
WORKER = Path(__file__).with_name("torch_pipeline_worker.py")
LOOK_SECONDS = 0.1
LEAVE_SECONDS = 3.0
"""How long ranks may take to end by themselves once another one has died."""
DEFAULT_SECONDS = 900.0
TAIL_CHARACTERS = 1500


@checked_options
def run_pipeline(
    target: str,
    *,
    starts: Sequence[str],
    ranks: Sequence[int] | None = None,
    num_ranks: int,
    schedule: str = "1f1b",
    num_micro_batches: int,
    orders: Sequence[Sequence[str]] = (),
    settings: Mapping[str, Any] | Sequence[str] = (),
    num_steps: int = 2,
    device: str = "cpu",
    predicted: bool = True,
    folder: str | Path | None = None,
    keep_gradients: bool = False,
    most_seconds: float = DEFAULT_SECONDS,
) -> PipelineRun:
    """Run a cut of TARGET on torch.distributed.pipelining here, with `num_ranks` processes; predict each rank first.

    `starts` are the first modules of all stages but the first, `ranks` the rank of every stage (by default as the
    schedule has them), `orders` what each rank does one after another for a custom schedule, as in torch's files.

    >>> run = run_pipeline("jobs.py:make", starts=["layers.2"], num_ranks=2)  # doctest: +SKIP
    >>> print([(rank.predicted.value, rank.measured.value) for rank in run.ranks], run.dead)  # doctest: +SKIP
    """
    from memfit.job.description import parse_settings
    from memfit.records.pipeline import PipelineOrder

    refuse_torchrun()
    given = dict(settings) if isinstance(settings, Mapping) else parse_settings(tuple(settings))
    order = PipelineOrder(
        target=target, settings=given, starts=tuple(starts), num_ranks=num_ranks, schedule=schedule,
        ranks=tuple(ranks) if ranks is not None else _usual_ranks(schedule, len(starts) + 1, num_ranks),
        num_micro_batches=num_micro_batches, orders=tuple(tuple(row) for row in orders), num_steps=num_steps,
        device=device, keep_gradients=keep_gradients,
    )  # fmt: skip
    _check_order(order)
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        return _run_in(Path(folder), order, predicted, most_seconds)
    with tempfile.TemporaryDirectory(prefix="memfit-pipeline-") as name:
        return _run_in(Path(name), order, predicted, most_seconds)


@checked_options
def run_plan(
    plan: PipelinePlan,
    *,
    settings: Mapping[str, Any] | Sequence[str] | None = None,
    num_steps: int = 3,
    device: str = "cpu",
    folder: str | Path | None = None,
) -> PipelineRun:
    """Run the cut of a plan here, with its schedule or its own order of every rank, and predict each rank first.

    The settings of the training are those that it was planned with, unless others are given.

    >>> plan = plan_pipeline("jobs.py:make", num_ranks=2, memory_bytes=2**30)  # doctest: +SKIP
    >>> run = run_plan(plan)  # doctest: +SKIP
    """
    from memfit.errors import UsageError

    reason = why_not_run(plan)
    if reason:
        raise UsageError(f"this plan cannot be run: {reason[0]}", hint=reason[1])
    order = order_of(plan, num_steps=num_steps, device=device)
    return run_pipeline(
        order.target, starts=order.starts, ranks=order.ranks, num_ranks=order.num_ranks, schedule=order.schedule,
        num_micro_batches=order.num_micro_batches, orders=order.orders, num_steps=num_steps, device=device,
        settings=order.settings if settings is None else settings, folder=folder,
    )  # fmt: skip


def why_not_run(plan: PipelinePlan) -> tuple[str, str] | None:
    """Why torch.distributed.pipelining cannot run a plan, and what to do instead; None where it can."""
    cut, layers = plan.cut, plan.chain.layers
    if not plan.chain.target or not all(layers[stage.first_layer].modules for stage in cut.stages):
        return "it is not of a workload or FILE:function", "a profile has no model"
    if any(stage.num_replicas > 1 for stage in cut.stages):
        return "stages are replicated", "another --planner"
    if any(stage.choice.name != "keep" for stage in cut.stages):
        return "stages recompute or move", "leave --recompute and --host-link out"
    if len({stage.rank for stage in cut.stages}) < cut.num_ranks:
        return "ranks stay idle", "fewer --ranks"
    return None


def order_of(plan: PipelinePlan, *, num_steps: int = 3, device: str = "cpu") -> PipelineOrder:
    """What each rank of a plan that can be run does: by torch's own schedule of that name, or in the plan's order."""
    from memfit.job.description import parse_settings
    from memfit.records.pipeline import PipelineOrder

    cut, layers = plan.cut, plan.chain.layers
    return PipelineOrder(
        target=plan.chain.target, settings=parse_settings(plan.chain.settings),
        starts=tuple(layers[stage.first_layer].modules[0] for stage in cut.stages[1:]),
        ranks=tuple(stage.rank for stage in cut.stages), num_ranks=cut.num_ranks, schedule=cut.schedule,
        num_micro_batches=cut.num_micro_batches, orders=cut.orders if cut.schedule == "custom" else (),
        num_steps=num_steps, device=device,
    )  # fmt: skip


def refuse_torchrun() -> None:
    """Refuse to start processes in one that torchrun has started: each of its N would start N more."""
    from memfit.errors import UsageError

    if "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1":
        raise UsageError(
            "the ranks of a pipeline are started here, and torchrun has started this process already",
            found=f"rank {os.environ.get('RANK')} of {os.environ['WORLD_SIZE']}",
            hint="memfit pipeline ... --run without torchrun; or memfit pipeline ... -o FOLDER, then "
            "torchrun --nproc-per-node N -m memfit.api.torch_pipeline_worker FOLDER",
        )  # fmt: skip


def _usual_ranks(schedule: str, num_stages: int, num_ranks: int) -> tuple[int, ...]:
    """Stages in a loop over the ranks, or there and back in a schedule that is shaped like a V."""
    if schedule in ("zbv-zero-bubble", "dualpipev"):
        return tuple(min(index, num_stages - 1 - index) for index in range(num_stages))
    return tuple(index % num_ranks for index in range(num_stages))


def _check_order(order: PipelineOrder) -> None:
    from memfit.errors import UsageError

    if len(order.ranks) != order.num_stages:
        found = f"{order.num_stages} stages, {len(order.ranks)} ranks"
        raise UsageError("every stage lies on one rank", found=found, hint="ranks=[0, 1, ...]")
    missing = set(range(order.num_ranks)) - set(order.ranks)
    if missing or max(order.ranks) >= order.num_ranks:
        found = f"{order.num_stages} stages on {order.num_ranks} ranks"
        raise UsageError("every rank holds a stage", found=found, hint="fewer ranks, or more stages")
    if order.orders and len(order.orders) != order.num_ranks:
        raise UsageError("a custom schedule has a row for each rank", found=f"{len(order.orders)} rows", hint="orders")


def _run_in(folder: Path, order: PipelineOrder, predicted: bool, most_seconds: float) -> PipelineRun:
    import msgspec

    from memfit.records.pipeline import PipelineRun

    for rank in range(order.num_ranks):  # of another run in this folder
        for name in (f"rank-{rank}.json", f"rank-{rank}.step", f"gradients-{rank}.pt"):
            (folder / name).unlink(missing_ok=True)
    (folder / "order.json").write_bytes(msgspec.json.encode(order))
    expected = _predicted_bytes(folder, order) if predicted else {}
    started = time.monotonic()
    processes = _start(folder, order)
    try:
        _watch(processes, most_seconds)
    finally:
        _end(processes)
    results = _results(folder, order.num_ranks)
    ranks = tuple(_outcome(order, each, expected, results.get(each.rank), folder) for each in processes)
    losses = next((result.losses for result in results.values() if result.losses), ())
    return PipelineRun(
        order=order, ranks=ranks, losses=losses, total_seconds=time.monotonic() - started,
        command=f"torchrun --nproc-per-node {order.num_ranks} -m memfit.api.torch_pipeline_worker FOLDER",
    )  # fmt: skip


# ---- predicted -------------------------------------------------------------------------------------------------------


def _predicted_bytes(folder: Path, order: PipelineOrder) -> dict[int, int]:
    """The tensor peak of every rank within its steps: the worker itself, predicted as a script."""
    from memfit.api.predict import predict_ranks

    found = predict_ranks(
        str(WORKER), arguments=[str(folder)], ranks=order.num_ranks, num_steps=order.num_steps, device=order.device,
        probes=False,
    )  # fmt: skip
    peaks = {rank: peak_of_steps(found.of_rank(rank)) for rank in range(order.num_ranks)}
    return {rank: peak for rank, peak in peaks.items() if peak is not None}


def peak_of_steps(prediction: Prediction) -> int | None:
    """The tensor peak from the first stage's first call on; None where the timeline does not show that call.

    Before it, the process holds the whole model, which it runs once on the meta device and of which it keeps its part.
    """
    from memfit.predict.levels.liveness import live_bytes

    timeline, device = prediction.timeline, "cuda:0" if prediction.device.startswith("cuda") else "cpu"
    made = () if timeline is None else (s for s in timeline.spans if s.phase == "forward" and s.device == device)
    calls = [span.start for span in made if span.module.split(".")[0] == STAGE]
    if timeline is None or not calls:
        return None
    return int(live_bytes(timeline, device)[min(calls) :].max())


# ---- processes -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _RankProcess:
    """One rank's process, and how it ended."""

    rank: int
    process: subprocess.Popen[bytes]
    log: Path
    started: float
    died_after_seconds: float | None = None
    was_ended: bool = field(default=False)
    """Whether it was we who ended it, since another rank had died."""


def _start(folder: Path, order: PipelineOrder) -> list[_RankProcess]:
    from memfit.predict.child.die_with_parent import ending_with_this_process

    port, found = _free_port(), []
    for rank in range(order.num_ranks):
        variables = {
            "OMP_NUM_THREADS": "1", **os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(order.num_ranks), "LOCAL_WORLD_SIZE": str(order.num_ranks), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }  # fmt: skip
        log = folder / f"rank-{rank}.log"
        with open(log, "wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "memfit.api.torch_pipeline_worker", str(folder)], env=variables, stdout=output,
                stderr=output, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=ending_with_this_process(),
            )  # fmt: skip
        found.append(_RankProcess(rank=rank, process=process, log=log, started=time.monotonic()))
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _watch(processes: list[_RankProcess], most_seconds: float) -> None:
    """Wait for all; when one dies, note when, give the others a moment, and end them."""
    from memfit.errors import MemfitError

    until = time.monotonic() + most_seconds
    leave_at: float | None = None
    while any(each.process.poll() is None for each in processes):
        now = time.monotonic()
        for each in processes:
            if each.died_after_seconds is None and each.process.poll() not in (None, 0):
                each.died_after_seconds = now - each.started
                leave_at = leave_at or now + LEAVE_SECONDS
        if leave_at is not None and now > leave_at:
            return
        if now > until:
            left = ", ".join(str(each.rank) for each in processes if each.process.poll() is None)
            found = f"after {most_seconds:.0f} s these ranks still run: {left}"
            raise MemfitError("the pipeline did not come to its end in time", found=found, hint="most_seconds")
        time.sleep(LOOK_SECONDS)
    for each in processes:
        if each.died_after_seconds is None and each.process.poll() != 0:
            each.died_after_seconds = time.monotonic() - each.started


def _end(processes: list[_RankProcess]) -> None:
    """Nothing of a run survives it."""
    for each in processes:
        each.was_ended = each.process.poll() is None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(each.process.pid, signal.SIGKILL)
        each.process.wait()


# ---- what came of it -------------------------------------------------------------------------------------------------


def _results(folder: Path, num_ranks: int) -> dict[int, RankResult]:
    import msgspec

    from memfit.records.pipeline import RankResult

    paths = {rank: folder / f"rank-{rank}.json" for rank in range(num_ranks)}
    return {r: msgspec.json.decode(p.read_bytes(), type=RankResult) for r, p in paths.items() if p.exists()}


def _outcome(
    order: PipelineOrder, each: _RankProcess, expected: dict[int, int], result: RankResult | None, folder: Path
) -> RankOutcome:
    from memfit.records.pipeline import RankOutcome

    step_file = folder / f"rank-{each.rank}.step"
    died = each.died_after_seconds is not None
    return RankOutcome(
        rank=each.rank,
        stages=order.stages_of(each.rank),
        predicted=_figure(
            expected.get(each.rank), "bytes", "predicted", "it was not asked for, or the steps were not seen"
        ),
        measured=_figure(result.peak_bytes if result else None, "bytes", "measured", "the rank did not end"),
        step_seconds=_median(result),
        ended=_ending(each, result),
        died_after_seconds=each.died_after_seconds,
        died_in_step=int(step_file.read_text()) if died and step_file.exists() else 0 if died else None,
        output=each.log.read_text(errors="replace")[-TAIL_CHARACTERS:] if died else "",
    )


def _figure(value: float | None, unit: Literal["bytes", "seconds"], source: Source, reason: str) -> Figure:
    from memfit.records.figure import Figure

    if value is None:
        return Figure(value=None, unit=unit, reason=reason)
    return Figure(value=value, unit=unit, source=source)


def _median(result: RankResult | None) -> Figure:
    seconds = () if result is None else result.step_seconds[1:] or result.step_seconds
    return _figure(statistics.median(seconds) if seconds else None, "seconds", "measured", "the rank did not end")


def _ending(each: _RankProcess, result: RankResult | None) -> str:
    if result is not None and each.process.returncode == 0:
        return "done"
    if each.was_ended:
        return "ended, since another rank had died"
    code = each.process.returncode
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
