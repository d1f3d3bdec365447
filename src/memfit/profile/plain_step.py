"""Profile of the stages of a live model by plain steps: bytes kept and in passing, gradients, seconds.

Three kinds of runs of the user's own step, none of which leaves a trace: one plain under the allocator's eyes, one
with every block checkpointed (what a block holds in passing while nothing is kept), and some under a clock alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

import msgspec

from memfit.apply.checkpoints import LiveStage, apply_nodes, live_stages
from memfit.apply.recompute import CannotBeRepeated
from memfit.model.module_calls import CallTree, at_backward, watch_calls
from memfit.model.stages import FUSED, GLUE, StageLayout, find_stages
from memfit.model.step import (
    Job,
    gradient_bytes_in_passing,
    gradient_bytes_there,
    leaving_no_trace,
    storage_bytes,
    tensors_of,
)
from memfit.profile.checkpoint_cost import checkpoint_cost, saved_tensors
from memfit.profile.checkpoint_ends import Heads, heads_of, part_of, with_endings
from memfit.profile.meter.events import Record
from memfit.profile.meter.meter import put_mark, record_events
from memfit.profile.meter.stage_sizes import (
    Measured,
    Window,
    gradients_that_stay,
    measure_stage,
    staying_bytes,
    windows_of,
    with_stages_joined,
)
from memfit.profile.meter.stage_times import ClockRecord, clock_into, stage_hooks
from memfit.profile.optimizer_update import Update, measure_update
from memfit.profile.reference_step import Reference
from memfit.records.plan import Chain, Checkpoint, Fixed, Keep, Node, Stage

TIMED_RUNS = 1
VARYING_SHARE = 50
"""Where sizes depend on values, one part in so many of the step is left free for the next ones."""
"""Beside the run whose events are recorded, which tells seconds as well."""
Start = Callable[[], AbstractContextManager[None]]
"""Where a step begins: random numbers, or what an earlier step left."""
_SIZES = ("output_bytes", "saved_bytes", "forward_transient_bytes", "backward_transient_bytes", "gradient_bytes")
NOTES_BYTES = 1024
"""For each checkpoint, small tensors of its own, rounded up by the allocator; buffers are noted twice besides."""


@dataclass(slots=True)
class Profile:
    """A chain with the notes that were made while it was found."""

    chain: Chain
    notes: tuple[str, ...]
    plain_record_peak_bytes: int | None
    """The most alive in the plain step above what was there before it; None when it was too large to be run."""
    kept_blocks: tuple[str, ...] = ()
    """Blocks that compute something else when they are run again."""
    reference: Reference | None = None
    """What planned steps are compared with; None where the plain step is too large to be run."""


@dataclass(slots=True)
class _Seen:
    """What hooks noted in one run."""

    outputs: dict[int, list[tuple[int, int]]] = field(default_factory=dict)


def profile_plain(
    job: Job,
    timed_runs: int = TIMED_RUNS,
    calls: CallTree | None = None,
    other_starts: Sequence[Start] = (),
) -> Profile:
    """Measure the chain of a job by plain steps and one with every block checkpointed.

    `calls` are those of a step that was watched already. `other_starts` are entered for steps that take other amounts:
    every stage gets the most that it took in any of them.
    """
    layout = find_stages(calls or watch_calls(job), needs_blocks=False)
    draft, heads, plain, seen = _fused(job, tuple(_draft(stage, job.reorders) for stage in layout.stages))
    live = live_stages(job.model, draft)
    swept, draft, kept, num_saved = _record_swept(job, draft, live)
    seconds = _seconds(job, live, timed_runs, plain)
    update = measure_update(job)
    stages = _stages(draft, plain, swept, seen, seconds)
    if other_starts or job.reorders:  # windows of stages in another order are unknown
        stages = _largest(live, stages, [_other_stages(job, live, draft, seconds, start) for start in other_starts])
    stages = with_checkpoint_seconds(stages, num_saved)
    stages = with_endings(job, stages, heads, timed_runs)
    varying_bytes = plain.peak_bytes // VARYING_SHARE if layout.is_sized_by_values else 0
    if job.reorders:  # a block that is kept may come first, and be there while any other is recomputed
        varying_bytes += max(stage.saved_bytes for stage in stages)
    chain = with_reserve(job, chain_of(job, stages, update), layout.uncalled, varying_bytes)
    return Profile(chain, tuple(layout.notes), plain.peak_bytes, tuple(kept))


def _other_stages(
    job: Job,
    live: list[LiveStage],
    draft: Sequence[Stage],
    seconds: list[tuple[float, float]],
    start: Start,
) -> tuple[Stage, ...]:
    """The stages of a step that begins with other random numbers, or after another step."""
    seen = _Seen()
    with start():
        return _stages(draft, _record(job, live, seen), None, seen, seconds)


def _largest(
    live: Sequence[LiveStage], stages: tuple[Stage, ...], others: Sequence[tuple[Stage, ...]]
) -> tuple[Stage, ...]:
    """Every stage with the most that it, or a stage of the same kind of modules, took in any step.

    A module that is called several times is measured as a whole, in the largest of the steps.
    """
    alike: dict[object, list[int]] = {}
    counts = Counter(id(module) for stage in live for module in stage.modules)
    for index, stage in enumerate(live):
        if any(counts[id(module)] > 1 for module in stage.modules):
            continue
        kinds = tuple((type(m), tuple(p.shape for p in m.parameters())) for m in stage.modules)
        alike.setdefault(kinds or index, []).append(index)
    found = list(stages)
    for indices in alike.values():
        seen = [each[index] for each in (stages, *others) for index in indices]
        most = {name: max(getattr(stage, name) for stage in seen) for name in _SIZES}
        for index in indices:
            found[index] = msgspec.structs.replace(stages[index], **most)
    return tuple(found)


def _draft(stage: StageLayout, reorders: bool) -> Stage:
    return Stage(
        name=stage.name, forward_seconds=0.0, backward_seconds=0.0, output_bytes=0, saved_bytes=0,
        kind=stage.kind, recomputable=stage.recomputable, joins_next=stage.joins_next and not reorders,
    )  # fmt: skip


def every_block(stages: Sequence[Stage]) -> tuple[Node, ...]:
    """Each stage that may be recomputed, by itself."""
    return tuple(
        Checkpoint(inside=(Keep(stage=i),)) if stage.recomputable else Keep(stage=i) for i, stage in enumerate(stages)
    )


# ---- stages whose output is not saved --------------------------------------------------------------------------


def _fused(job: Job, draft: tuple[Stage, ...]) -> tuple[tuple[Stage, ...], Heads, Record, _Seen]:
    """Put a stage together with the next one where the plain step does not keep the boundary between them.

    A chain counts every output among the bytes that are kept. A linear layer before a ReLU would be counted with an
    output that is gone as soon as the ReLU has run. Also says of which stages the last part may be left alone, and
    returns the record of the plain step.
    """
    live, seen = live_stages(job.model, draft), _Seen()
    record = _record(job, live, seen)
    windows = windows_of(record, len(draft))
    groups = fuse(draft, lambda index: _passes_away(record, windows[index], seen.outputs.get(index, [])))
    parts = [part_of(live[i], seen.outputs.get(i, []), record, windows[i]) for i in range(len(draft))]
    ranges = [numbers for _, numbers in groups]
    outputs = {g: seen.outputs[each[-1]] for g, each in enumerate(ranges) if each[-1] in seen.outputs}
    joined = with_stages_joined(record, ranges)
    return tuple(stage for stage, _ in groups), heads_of(groups, parts), joined, _Seen(outputs)


def fuse(draft: Sequence[Stage], passes_away: Callable[[int], bool]) -> list[tuple[Stage, range]]:
    """Put stages together with the next where what they return is not saved; each with the numbers of its parts."""
    groups: list[tuple[Stage, range]] = []
    for index, stage in enumerate(draft):
        together = _together(groups[-1][0], stage) if groups and passes_away(index - 1) else None
        if together is None:
            groups.append((stage, range(index, index + 1)))
        else:
            groups[-1] = (together, range(groups[-1][1].start, index + 1))
    return groups


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


def _record_swept(
    job: Job, draft: tuple[Stage, ...], live: list[LiveStage]
) -> tuple[Record, tuple[Stage, ...], list[str], dict[int, list[int]]]:
    """Record a step with every block recomputed; a block that computes something else then is to be kept.

    The last of what is returned says how many tensors the calls of each block saved.
    """
    kept: list[str] = []
    while True:
        try:
            with apply_nodes(job.model, draft, every_block(draft), is_exact=job.is_exact) as applied:
                return _record(job, live, _Seen()), draft, kept, saved_tensors(applied)
        except CannotBeRepeated as error:
            culprit = next(i for i, stage in enumerate(live) if error.name in stage.names)
            kept.append(draft[culprit].name)
            changed = msgspec.structs.replace(draft[culprit], recomputable=False)
            draft = (*draft[:culprit], changed, *draft[culprit + 1 :])


def _stages(
    draft: Sequence[Stage], plain: Record, swept: Record | None, seen: _Seen, seconds: list[tuple[float, float]]
) -> tuple[Stage, ...]:
    """The stages of one plain step; `swept` is the same step with every block recomputed, None where it was not run."""
    outputs = [_output_bytes(seen, index) for index in range(len(draft))]
    windows = windows_of(plain, len(draft))
    sizes = [measure_stage(plain, window, seen.outputs.get(i, [])) for i, window in enumerate(windows)]
    gradients = gradients_that_stay(sizes, staying_bytes(plain, windows, outputs))
    sizes = [replace(size, gradient_bytes=bytes_) for size, bytes_ in zip(sizes, gradients, strict=True)]
    passing = [0] * len(draft) if swept is None else _passing_bytes(swept, len(draft), outputs)
    return tuple(
        stage_of(stage, sizes[i], outputs[i], outputs[i - 1] if i else 0, passing[i], seconds[i])
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


def stage_of(
    stage: Stage, size: Measured, output_bytes: int, input_bytes: int, passing_bytes: int, seconds: tuple[float, float]
) -> Stage:
    """One stage of the chain.

    What it holds in passing is counted with everything kept. While nothing is kept it may hold more beside its output,
    but every stage that is swept is recomputed later, with everything kept and with at least as much around it: that
    moment is the higher one, as long as keeping a stage takes no less than sweeping it.
    """
    backward = size.backward_extra_bytes - input_bytes - size.gradient_bytes
    saved = max(size.saved_bytes, output_bytes)
    most_freed = min(input_bytes + size.gradient_bytes, saved + output_bytes)
    swept = passing_bytes - (saved - output_bytes) if stage.recomputable else 0
    return Stage(
        name=stage.name,
        kind=stage.kind,
        recomputable=stage.recomputable,
        joins_next=stage.joins_next,
        forward_seconds=seconds[0],
        backward_seconds=seconds[1],
        output_bytes=output_bytes,
        saved_bytes=saved,
        forward_transient_bytes=max(size.forward_transient_bytes, swept),
        backward_transient_bytes=max(-most_freed, backward),
        gradient_bytes=size.gradient_bytes,
    )


def with_checkpoint_seconds(stages: tuple[Stage, ...], num_saved: dict[int, list[int]]) -> tuple[Stage, ...]:
    """The stages with what a checkpoint around each of them costs beside its second run."""
    cost = checkpoint_cost()
    return tuple(
        msgspec.structs.replace(stage, checkpoint_seconds=cost.seconds(num_saved.get(index, ())))
        for index, stage in enumerate(stages)
    )


def chain_of(job: Job, stages: tuple[Stage, ...], update: Update) -> Chain:
    """The chain of a measured job."""
    model = job.model
    job.update_transient_bytes = update.transient_bytes
    parameter_bytes = storage_bytes(list(model.parameters()))
    beside_bytes = storage_bytes(list(job.whole.parameters())) - parameter_bytes
    return Chain(
        stages=stages,
        input_bytes=storage_bytes(tensors_of(job.batch)),
        fixed=Fixed(
            parameter_bytes=parameter_bytes,
            gradient_bytes=gradient_bytes_there(job),
            optimizer_state_bytes=update.state_bytes,
            # New gradients of one stage may still be there while the next one's backward, or its second run, begins.
            other_bytes=3 * storage_bytes(list(job.whole.buffers()))
            + NOTES_BYTES * len(stages)
            + job.around_bytes
            + beside_bytes
            + gradient_bytes_in_passing(job),
        ),
        update_transient_bytes=update.transient_bytes,
        update_seconds=update.seconds,
        target=job.name or type(model).__name__,
        device=str(job.device),
        source="measured",
        time_source="measured",
    )


def with_reserve(job: Job, chain: Chain, uncalled: tuple[str, ...], varying_bytes: int = 0) -> Chain:
    """Leave room for what another step may take: for blocks that it may call, and where sizes depend on values.

    Each block that was not called, recomputed alone, holds two boundaries and gradients.
    """
    boundary_bytes = max((stage.output_bytes for stage in chain.stages if stage.kind != GLUE), default=0)
    parameters = [p for name in uncalled for p in job.model.get_submodule(name).parameters() if p.requires_grad]
    job.reserved_bytes = 2 * boundary_bytes * len(uncalled) + storage_bytes(parameters) + varying_bytes + job.left_bytes
    fixed = msgspec.structs.replace(chain.fixed, other_bytes=chain.fixed.other_bytes + job.reserved_bytes)
    return msgspec.structs.replace(chain, fixed=fixed, uncalled=uncalled)


# ---- seconds ---------------------------------------------------------------------------------------------------


def _seconds(job: Job, live: list[LiveStage], timed_runs: int, plain: Record) -> list[tuple[float, float]]:
    """The least forward and backward time of each stage over some runs.

    Recording adds a little to each operator, so that a recorded time counts only where another run was held up.
    """
    runs = [_timed(job, live) for _ in range(timed_runs)]
    if job.device.type == "cpu":  # elsewhere kernels run on after a mark
        runs.append(_spans({mark.name: mark.seconds for mark in plain.marks}, len(live)))
    return [
        (min(run[i][0] for run in runs), min(run[i][1] for run in runs)) for i in range(len(live))
    ]  # the least: whatever else runs on the machine only adds


def _timed(job: Job, live: list[LiveStage]) -> list[tuple[float, float]]:
    moments: dict[str, float] = {}
    tell = clock_into(moments, job.device)
    with leaving_no_trace(job), stage_hooks(live, tell, {}), at_backward(lambda: tell("turn"), lambda: tell("done")):
        tell("begin")
        job.run()
    return _spans(moments, len(live))


def _spans(moments: dict[str, float], num_stages: int) -> list[tuple[float, float]]:
    """Forward and backward seconds of every stage."""
    record = ClockRecord(moments)
    return [(record.seconds(each.forward), record.seconds(each.backward)) for each in windows_of(record, num_stages)]
