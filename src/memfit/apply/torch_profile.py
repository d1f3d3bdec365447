"""What does each stage of a live model take: bytes kept, bytes in passing, gradients, seconds?

Three kinds of runs of the user's own step, none of which leaves a trace: one plain under the allocator's eyes, one
with every block checkpointed (what a block holds in passing while nothing is kept), and some under a clock alone.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch

from memfit.apply.events import Record
from memfit.apply.stage_sizes import Measured, Window, measure_stage, windows_of
from memfit.apply.torch_calls import at_backward, watch_calls
from memfit.apply.torch_job import Job, leaving_no_trace, storage_bytes, tensors_of
from memfit.apply.torch_meter import put_mark, record_events
from memfit.apply.torch_segments import LiveStage, apply_nodes, live_stages
from memfit.apply.torch_stages import FUSED, GLUE, find_stages
from memfit.apply.torch_update import Update, measure_update
from memfit.records.plan import Chain, Checkpoint, Fixed, Keep, Node, Stage

TIMED_RUNS = 3
NOTES_BYTES = 8192
"""For each checkpoint, the state of the random generator; buffers are noted twice besides."""


@dataclass(slots=True)
class Profile:
    """A chain with the notes that were made while it was found."""

    chain: Chain
    notes: tuple[str, ...]
    plain_record_peak_bytes: int
    """The most alive in the plain step above what was there before it."""


@dataclass(slots=True)
class _Seen:
    """What hooks noted in one run."""

    outputs: dict[int, list[tuple[int, int]]] = field(default_factory=dict)


def profile_job(job: Job, timed_runs: int = TIMED_RUNS) -> Profile:
    """Find the chain of a job and measure it."""
    layout = find_stages(watch_calls(job))
    draft = _fused(job, tuple(_draft(stage) for stage in layout.stages))
    live = live_stages(job.model, draft)
    seen = _Seen()
    plain = _record(job, live, seen)
    swept = _record_swept(job, draft, live)
    seconds = _seconds(job, live, timed_runs)
    update = measure_update(job)
    stages = _stages(draft, plain, swept, seen, seconds)
    return Profile(_chain(job, stages, update), tuple(layout.notes), plain.peak_bytes)


def _draft(stage: Any) -> Stage:
    return Stage(
        name=stage.name, forward_seconds=0.0, backward_seconds=0.0, output_bytes=0, saved_bytes=0,
        kind=stage.kind, recomputable=stage.recomputable, joins_next=stage.joins_next,
    )  # fmt: skip


def every_block(stages: Sequence[Stage]) -> tuple[Node, ...]:
    """Each stage that may be recomputed, by itself."""
    return tuple(
        Checkpoint(inside=(Keep(stage=i),)) if stage.recomputable else Keep(stage=i) for i, stage in enumerate(stages)
    )


# ---- stages whose output nobody keeps --------------------------------------------------------------------------


def _fused(job: Job, draft: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """Put a stage together with the next one where the plain step does not keep the boundary between them.

    A chain counts every output among the bytes that are kept. A linear layer before a ReLU would be counted with an
    output that is gone as soon as the ReLU has run.
    """
    live, seen = live_stages(job.model, draft), _Seen()
    record = _record(job, live, seen)
    windows = windows_of(record, len(draft))
    stages: list[Stage] = []
    for index, stage in enumerate(draft):
        before = stages[-1] if stages else None
        if before is not None and _passes_away(record, windows[index - 1], seen.outputs.get(index - 1, [])):
            together = _together(before, stage)
            if together is not None:
                stages[-1] = together
                continue
        stages.append(stage)
    return tuple(stages)


def _passes_away(record: Record, window: Window, outputs: list[tuple[int, int]]) -> bool:
    """Whether a stage's output is gone when the backward begins, and is most of what the stage makes."""
    turn = record.at("turn") or 0
    made = record.made_between(*window.forward)
    addresses = {address for address, _ in outputs}
    outputs_here = [b for b in made if b.address in addresses and b.alive_at(window.forward[1])]
    passing = sum(b.num_bytes for b in outputs_here if not b.alive_at(turn))
    return passing > sum(b.num_bytes for b in made if b.alive_at(turn))


def _together(before: Stage, stage: Stage) -> Stage | None:
    """Two stages as one; None where glue comes first, for glue cannot be run again."""
    if before.kind == GLUE or (before.joins_next != (stage.kind != GLUE)):
        return None
    if stage.kind == GLUE:
        return msgspec.structs.replace(stage, name=f"{before.name} and {stage.name}")
    return msgspec.structs.replace(
        stage, name=before.name + FUSED + stage.name, kind=before.kind or stage.kind,
        recomputable=before.recomputable and stage.recomputable,
    )  # fmt: skip


# ---- bytes -----------------------------------------------------------------------------------------------------


def _record(job: Job, live: list[LiveStage], seen: _Seen) -> Record:
    def run() -> None:
        with stage_hooks(live, put_mark, seen.outputs), at_backward(lambda: put_mark("turn"), lambda: put_mark("done")):
            put_mark("begin")
            job.run()

    with leaving_no_trace(job):
        return record_events(run, job.device)


def _record_swept(job: Job, draft: Sequence[Stage], live: list[LiveStage]) -> Record:
    with apply_nodes(job.model, draft, every_block(draft)):
        return _record(job, live, _Seen())


@contextlib.contextmanager
def stage_hooks(
    live: Sequence[LiveStage], tell: Callable[[str], None], outputs: dict[int, list[tuple[int, int]]]
) -> Iterator[None]:
    """Tell when a stage starts and ends and when the gradient of its output is there; only in the first forward."""
    handles = []
    told: set[str] = set()

    def once(name: str) -> None:
        if name not in told:
            told.add(name)
            tell(name)

    def ended(index: int, output: Any) -> None:
        if index in outputs:
            return
        tensors = tensors_of(output)
        outputs[index] = [(t.untyped_storage().data_ptr(), t.untyped_storage().nbytes()) for t in tensors]
        once(f"end {index}")
        for tensor in tensors:
            if tensor.requires_grad:
                tensor.register_hook(lambda _: tell(f"gradient {index}"))

    def started(index: int, given: Any) -> None:
        once(f"start {index}")
        if index and live[index - 1].is_glue:  # what glue makes is what the next stage is given
            ended(index - 1, tensors_of(given)[:1])

    for index, stage in enumerate(live):
        if stage.modules:
            first, last = stage.modules[0], stage.modules[-1]
            handles.append(
                first.register_forward_pre_hook(
                    lambda _m, args, kwargs, i=index: started(i, (args, kwargs)), with_kwargs=True, prepend=True
                )
            )
            handles.append(last.register_forward_hook(lambda _m, _i, out, i=index: ended(i, out)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _stages(
    draft: Sequence[Stage], plain: Record, swept: Record, seen: _Seen, seconds: list[tuple[float, float]]
) -> tuple[Stage, ...]:
    outputs = [_output_bytes(seen, index) for index in range(len(draft))]
    windows = windows_of(plain, len(draft))
    sizes = [measure_stage(plain, window, seen.outputs.get(i, [])) for i, window in enumerate(windows)]
    passing = _passing_bytes(swept, len(draft), outputs)
    return tuple(
        _stage(stage, sizes[i], outputs[i], outputs[i - 1] if i else 0, passing[i], seconds[i])
        for i, stage in enumerate(draft)
    )


def _output_bytes(seen: _Seen, index: int) -> int:
    return sum(dict(seen.outputs.get(index, [])).values())


def _passing_bytes(swept: Record, num_stages: int, outputs: list[int]) -> list[int]:
    """What each stage holds in passing when it keeps only its output."""
    windows = windows_of(swept, num_stages)
    return [
        max(0, swept.peak_between(*window.forward) - swept.alive[window.forward[0]] - outputs[index])
        for index, window in enumerate(windows)
    ]


def _stage(
    stage: Stage, size: Measured, output_bytes: int, input_bytes: int, passing_bytes: int, seconds: tuple[float, float]
) -> Stage:
    """One stage of the chain; a transient is the larger of that with everything kept and that with nothing kept."""
    backward = size.backward_extra_bytes - input_bytes - size.gradient_bytes
    return Stage(
        name=stage.name,
        kind=stage.kind,
        recomputable=stage.recomputable,
        joins_next=stage.joins_next,
        forward_seconds=seconds[0],
        backward_seconds=seconds[1],
        output_bytes=output_bytes,
        saved_bytes=max(size.saved_bytes, output_bytes),
        forward_transient_bytes=max(size.forward_transient_bytes, passing_bytes if stage.recomputable else 0),
        backward_transient_bytes=max(0, backward),
        gradient_bytes=size.gradient_bytes,
    )


def _chain(job: Job, stages: tuple[Stage, ...], update: Update) -> Chain:
    model = job.model
    return Chain(
        stages=stages,
        input_bytes=storage_bytes(tensors_of(job.batch)),
        fixed=Fixed(
            parameter_bytes=storage_bytes(list(model.parameters())),
            optimizer_state_bytes=update.state_bytes,
            other_bytes=3 * storage_bytes(list(model.buffers())) + NOTES_BYTES * len(stages),
        ),
        update_transient_bytes=update.transient_bytes,
        update_seconds=update.seconds,
        target=job.name or type(model).__name__,
        device=str(job.device),
        source="measured",
        time_source="measured",
    )


# ---- seconds ---------------------------------------------------------------------------------------------------


def _seconds(job: Job, live: list[LiveStage], timed_runs: int) -> list[tuple[float, float]]:
    """The least forward and backward time of each stage over some runs."""
    runs = [_timed(job, live) for _ in range(timed_runs)]
    return [
        (min(run[i][0] for run in runs), min(run[i][1] for run in runs)) for i in range(len(live))
    ]  # the least: whatever else runs on the machine only adds


def _timed(job: Job, live: list[LiveStage]) -> list[tuple[float, float]]:
    moments: dict[str, float] = {}

    def tell(name: str) -> None:
        _wait_for(job.device)
        moments[name] = time.perf_counter()

    with leaving_no_trace(job), stage_hooks(live, tell, {}), at_backward(lambda: tell("turn"), lambda: tell("done")):
        tell("begin")
        job.run()
    ticks = sorted(moments.values())
    record = _ClockRecord(moments, ticks)
    windows = windows_of(record, len(live))
    return [(ticks_between(ticks, window.forward), ticks_between(ticks, window.backward)) for window in windows]


def ticks_between(ticks: list[float], window: tuple[int, int]) -> float:
    """Seconds between two numbered moments."""
    return max(0.0, ticks[window[1]] - ticks[window[0]])


class _ClockRecord:
    """Moments of a clock in the form of a record: each moment is one event."""

    def __init__(self, moments: dict[str, float], ticks: list[float]) -> None:
        self._at = {name: ticks.index(moment) for name, moment in moments.items()}
        self.events = ticks

    def at(self, name: str) -> int | None:
        """The number of a moment."""
        return self._at.get(name)


def _wait_for(device: torch.device) -> None:
    """Let an accelerator finish what it was given (never run on the machine this was written on)."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
