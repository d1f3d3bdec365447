"""Profile of a model whose plain step this machine cannot hold: block by block.

The plain step is run on fake tensors only: they give the stages and what it would take. Everything that is measured
is measured while every block is recomputed alone, at its second run: what it leaves, what it holds in passing, and
its backward, which follows at once. Where even the outputs of all blocks are too much, blocks are recomputed alone
within runs of about sqrt(n) blocks.

What stands for the plain step in the proof is this same step. It computes what the plain one would if every block,
run again, saves the same tensors bit by bit; that is compared for each block, by digests. A block that does not is
kept.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import msgspec
import torch

from memfit.apply.checkpoints import AppliedPlan, LiveStage, apply_nodes, live_stages
from memfit.apply.recompute import CannotBeRepeated, second_runs
from memfit.errors import MemfitError, PredictionFailed
from memfit.model.module_calls import at_backward
from memfit.model.out_of_memory import left_for, ran_out, unless_memory_runs_out
from memfit.model.step import Job, leaving_no_trace, storage_bytes
from memfit.profile.checkpoint_cost import checkpoint_cost, saved_tensors
from memfit.profile.fake_step import PredictedStep, predict_step
from memfit.profile.meter.events import Record
from memfit.profile.meter.meter import put_mark, record_events
from memfit.profile.meter.stage_sizes import Measured, measure_stage, windows_of
from memfit.profile.meter.stage_times import ClockRecord, clock_into, stage_hooks
from memfit.profile.optimizer_update import measure_update
from memfit.profile.plain_step import (
    Profile,
    chain_of,
    fuse,
    stage_of,
    with_checkpoint_seconds,
    with_reserve,
)
from memfit.profile.reference_step import digest_of
from memfit.records.plan import Checkpoint, Keep, Node, Stage, stages_of
from memfit.units import format_bytes

PLENTY = 32
"""With this many times the budget left on the machine, the plain step is not predicted."""
MARGIN = 1.25
"""The plain step must fit this many times: kernels hold more in passing than autograd keeps."""


def too_large(job: Job) -> str:
    """Why the plain step should not be run on this machine; empty when it may, or when that is unknown."""
    left_bytes = left_for(job)
    if job.limit_bytes is None or left_bytes is None or left_bytes > PLENTY * job.limit_bytes:
        return ""
    try:
        plain_bytes = predict_step(job, needs_blocks=False).plain_bytes
    except RuntimeError:  # what fake tensors raise when an operator needs a value: the plain step will tell
        return ""
    needed_bytes = MARGIN * plain_bytes - _fixed_bytes(job)
    if needed_bytes <= left_bytes:
        return ""
    return f"the plain step takes about {format_bytes(plain_bytes)}, and {format_bytes(left_bytes)} are left here"


def _fixed_bytes(job: Job) -> int:
    """What is there already."""
    return storage_bytes([*job.whole.parameters(), *job.whole.buffers()])


def recompute_every_block(job: Job) -> tuple[AppliedPlan | None, str]:
    """Before anything was measured: let a model recompute each block where its plain step would pass the budget.

    With a sentence for the user; no plan and no sentence where the plain step is predicted to fit.
    """
    try:
        predicted = predict_step(job)
    except (RuntimeError, MemfitError) as error:
        return None, f"the first pass runs as it is: it could not be predicted ({str(error).splitlines()[0][:120]})"
    state_bytes = 0 if job.optimizer is None else measure_update(job).state_bytes
    plain_bytes = predicted.plain_bytes + state_bytes + job.around_bytes
    if plain_bytes <= (job.limit_bytes or plain_bytes):
        return None, ""
    draft = tuple(stage for stage, _ in fuse(predicted.draft, predicted.passing.__contains__))
    nodes = block_nodes(draft, _run_length(job, draft))
    said = f"a plain pass is predicted to take about {format_bytes(plain_bytes)}: the first one recomputes every block"
    return apply_nodes(job.model, draft, nodes, is_exact=False, uncalled=predicted.layout.uncalled), said


# ---- the profile -----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _BlockRun:
    """A job with its stages, and the nodes under which its step is run."""

    job: Job
    draft: tuple[Stage, ...]
    live: list[LiveStage]
    runs: int
    """How many blocks are recomputed together, before each of them is recomputed alone; 1 when none are."""
    apart: set[int] = field(default_factory=set)
    """Stages after which a run ends, so that blocks in a run that does not repeat itself are seen one by one."""
    notes: list[str] = field(default_factory=list)
    uncalled: tuple[str, ...] = ()

    def nodes(self) -> tuple[Node, ...]:
        return block_nodes(self.draft, self.runs, self.apart)

    def applied(self, on_stage: Callable[[str], None] | None = None) -> AppliedPlan:
        return apply_nodes(self.job.model, self.draft, self.nodes(), on_stage=on_stage, is_exact=False)


def profile_blocks(job: Job, timed_runs: int, reason: str) -> Profile:
    """Measure the chain of a job without ever running its plain step; `reason` says why."""
    predicted = _predicted(job, reason)
    draft = tuple(stage for stage, _ in fuse(predicted.draft, predicted.passing.__contains__))
    blocks = _BlockRun(job, draft, live_stages(job.model, draft), _run_length(job, draft))
    blocks.notes += predicted.layout.notes
    blocks.uncalled = predicted.layout.uncalled
    profile = unless_memory_runs_out(lambda: _measured(blocks, timed_runs, reason))
    if profile is None:
        needed_bytes = _least_bytes(blocks, predicted.block_bytes)
        raise ran_out(job, "measuring the step block by block", "the step with every block recomputed", needed_bytes)
    return profile


def _least_bytes(blocks: _BlockRun, block_bytes: int) -> int:
    """About what the step with every block recomputed holds: gradients, outputs, and what one block leaves."""
    gradients = storage_bytes([p for p in blocks.job.whole.parameters() if p.requires_grad])
    outputs = [stage.output_bytes for stage in blocks.draft]
    within_run = max(outputs) * blocks.runs if blocks.runs > 1 else 0
    return gradients + sum(outputs) // blocks.runs + within_run + block_bytes + 2 * max(outputs)


def _measured(blocks: _BlockRun, timed_runs: int, reason: str) -> Profile:
    job = blocks.job
    _keep_what_drifts(blocks)
    job.block_by_block = blocks.applied
    sizes = _sizes(blocks)
    seconds, num_saved = _seconds(blocks, timed_runs)
    update = measure_update(job)
    outputs = [stage.output_bytes for stage in blocks.draft]
    stages = tuple(
        stage_of(stage, sizes[i][0], outputs[i], outputs[i - 1] if i else 0, sizes[i][1], seconds[i])
        for i, stage in enumerate(blocks.draft)
    )
    stages = with_checkpoint_seconds(stages, num_saved)
    notes = (*blocks.notes, f"{reason}: measured and proven block by block")
    return Profile(with_reserve(job, chain_of(job, stages, update), blocks.uncalled), notes, None)


def _predicted(job: Job, reason: str) -> PredictedStep:
    try:
        return predict_step(job)
    except RuntimeError as error:
        raise PredictionFailed(
            "the step is too large for this machine, and its stages could not be found without running it",
            kind=type(error).__name__,
            found=f"{reason}; {str(error).splitlines()[0][:120]}",
            hint="fit it on a larger machine and load the plan here, or take .item() out of the step",
        ) from None


def _run_length(job: Job, draft: Sequence[Stage]) -> int:
    """One block at a time, unless the outputs of all blocks would take half of what the budget leaves."""
    left_bytes = (job.limit_bytes or 0) - 2 * _fixed_bytes(job)
    if job.limit_bytes is None or 2 * sum(stage.output_bytes for stage in draft) <= left_bytes:
        return 1
    return math.ceil(math.sqrt(len(draft)))


def block_nodes(draft: Sequence[Stage], run_length: int, apart: Collection[int] = ()) -> tuple[Node, ...]:
    """Every stage recomputed alone, within runs of so many joined stages where that is more than one."""
    nodes: list[Node] = []
    run: list[Checkpoint] = []
    for index, stage in enumerate(draft):
        if stage.recomputable:
            run.append(Checkpoint(inside=(Keep(stage=index),)))
        if not stage.recomputable or not stage.joins_next or index in apart or len(run) >= run_length:
            nodes += [*_as_run(run), *(() if stage.recomputable else (Keep(stage=index),))]
            run = []
    return (*nodes, *_as_run(run))


def _as_run(run: list[Checkpoint]) -> list[Node]:
    return [Checkpoint(inside=tuple(run))] if len(run) > 1 else list(run)


# ---- does a block save the same when it is run again? ------------------------------------------------------------


def _keep_what_drifts(blocks: _BlockRun) -> None:
    """Run the step, comparing all that is saved in two runs of a block; a block that differs is kept."""
    while (drifting := _first_that_drifts(blocks)) is not None:
        first, last = drifting
        if first < last:
            blocks.apart |= set(range(first, last + 1))
            continue
        stages = list(blocks.draft)
        stages[first] = msgspec.structs.replace(stages[first], recomputable=False)
        blocks.draft = tuple(stages)
        blocks.notes.append(f"{stages[first].name} computes something else when it is run again and is kept")


def _first_that_drifts(blocks: _BlockRun) -> tuple[int, int] | None:
    """First and last stage of a checkpoint whose second run saves something else; None when there is none."""
    ready: list[str] = []

    def tell(name: str) -> None:
        if name.startswith("ready "):
            ready.append(name.removeprefix("ready "))

    try:
        with leaving_no_trace(blocks.job), blocks.applied(tell), _comparing_bits(blocks.job):
            blocks.job.run()
    except CannotBeRepeated:
        if not ready:
            raise
        first, _, last = ready[-1].partition("-")  # a checkpoint compares as soon as its second run is over
        return int(first), int(last or first)
    return None


def _comparing_bits(job: Job) -> contextlib.AbstractContextManager[None]:
    """Let every second run compare the bits of what it saves with the first, not a few values alone.

    Parameters and buffers are left out: they are the model's own, and a BatchNorm saves its statistics before it
    changes them. Both runs must go to their ends.
    """
    fixed = {tensor.untyped_storage()._cdata for tensor in (*job.whole.parameters(), *job.whole.buffers())}

    def digest(tensor: torch.Tensor) -> bytes:
        return b"" if tensor.untyped_storage()._cdata in fixed else digest_of(tensor)

    return second_runs(stops_early=False, digest=digest)


# ---- bytes and seconds -----------------------------------------------------------------------------------------


def _run_reporting(
    blocks: _BlockRun, tell: Callable[[str], None], outputs: dict[int, list[tuple[int, int]]]
) -> dict[int, list[int]]:
    """Run the step; of the runs of a block, the first is reported as 'swept 3' to 'over 3', the last ends at 'left 3'.

    Returns how many tensors the calls of each block saved.
    """
    reported: set[str] = set()

    def on_stage(name: str) -> None:
        what, _, number = name.partition(" ")
        if what in ("again", "ready"):
            tell(name)
            return
        first = f"{'swept' if what == 'start' else 'over'} {number}"
        if first not in reported:
            reported.add(first)
            tell(first)
        if what == "end":
            tell(f"left {number}")

    with (
        blocks.applied(on_stage) as applied,
        second_runs(stops_early=False),
        stage_hooks(blocks.live, tell, outputs),
        at_backward(lambda: tell("turn"), lambda: tell("done")),
    ):
        tell("begin")
        blocks.job.run()
        return saved_tensors(applied)


def _ends(blocks: _BlockRun, at: Callable[[str], int | None]) -> dict[int, int]:
    """For each recomputed stage, the moment at which its backward is over: the next thing begins."""
    alone = {i for i, stage in enumerate(blocks.draft) if stage.recomputable}
    names = {f"again {i}" for i in alone} | {f"gradient {i}" for i in range(len(blocks.draft)) if i not in alone}
    names |= {f"again {name}" for name in _run_names(blocks.nodes())} | {"done"}
    moments = {name: moment for name in names if (moment := at(name)) is not None}
    ends = {}
    for index in alone:
        ready = at(f"ready {index}")
        if ready is not None:
            later = [m for name, m in moments.items() if m >= ready and name != f"again {index}"]
            ends[index] = min(later, default=ready)
    return ends


def _run_names(nodes: Sequence[Node]) -> list[str]:
    runs = [list(stages_of((node,))) for node in nodes if isinstance(node, Checkpoint)]
    return [f"{run[0]}-{run[-1]}" for run in runs if len(run) > 1]


def _sizes(blocks: _BlockRun) -> list[tuple[Measured, int]]:
    """Of each stage what it takes, and what it holds in passing when it keeps only its output."""
    outputs: dict[int, list[tuple[int, int]]] = {}
    with leaving_no_trace(blocks.job):
        record = record_events(lambda: _run_reporting(blocks, put_mark, outputs), blocks.job.device)
    windows, ends = windows_of(record, len(blocks.draft)), _ends(blocks, record.at)
    found = []
    for index, stage in enumerate(blocks.draft):
        if index in ends:
            found.append((_recomputed(record, index, ends[index]), _passing(record, index, stage.output_bytes)))
        else:
            found.append((measure_stage(record, windows[index], outputs.get(index, [])), 0))
    return found


def _recomputed(record: Record, index: int, end: int) -> Measured:
    """What a block takes, seen at its second run and the backward that follows."""
    again, left, ready = (record.at(f"{what} {index}") or 0 for what in ("again", "left", "ready"))
    done = record.at("done") or len(record.events)
    saved = record.left_by(again, left, left)
    return Measured(
        saved_bytes=saved,
        forward_transient_bytes=max(0, record.peak_between(again, left) - record.alive[again] - saved),
        backward_extra_bytes=max(0, record.peak_between(ready, end) - record.alive[ready]),
        gradient_bytes=record.left_by(ready, end, done),
    )


def _passing(record: Record, index: int, output_bytes: int) -> int:
    start, end = record.at(f"swept {index}") or 0, record.at(f"over {index}") or 0
    return max(0, record.peak_between(start, end) - record.alive[start] - output_bytes)


def _seconds(blocks: _BlockRun, timed_runs: int) -> tuple[list[tuple[float, float]], dict[int, list[int]]]:
    """The least forward and backward time of each stage over some runs; how many tensors its calls saved.

    Forwards are seen under a checkpoint: what that costs is taken off again.
    """
    num_saved: dict[int, list[int]] = {}
    runs = [_timed(blocks, num_saved) for _ in range(timed_runs + 1)]
    cost = checkpoint_cost().first
    least = [(min(run[i][0] for run in runs), min(run[i][1] for run in runs)) for i in range(len(blocks.draft))]
    return [(max(0.0, f - cost.of(num_saved.get(i, ()))), b) for i, (f, b) in enumerate(least)], num_saved


def _timed(blocks: _BlockRun, num_saved: dict[int, list[int]]) -> list[tuple[float, float]]:
    moments: dict[str, float] = {}
    with leaving_no_trace(blocks.job):
        num_saved.update(_run_reporting(blocks, clock_into(moments, blocks.job.device), {}))
    record = ClockRecord(moments)
    ends, windows = _ends(blocks, record.at), windows_of(record, len(blocks.draft))
    found = []
    for index, window in enumerate(windows):
        forward, backward = window.forward, window.backward
        if index in ends:
            forward = (record.at(f"swept {index}") or 0, record.at(f"over {index}") or 0)
            backward = (record.at(f"ready {index}") or 0, ends[index])
        found.append((record.seconds(forward), record.seconds(backward)))
    return found
