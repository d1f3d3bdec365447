"""Ends of checkpoints before the last module of a stage, and the cost of the shorter second run.

A linear layer and the ReLU after it are one stage, for the boundary between them is not saved. A checkpoint that ends
there need not hold the ReLU: the ReLU leaves nothing but its output, which stays in any case, and the linear layer's
second run stops as soon as its input is there. So the second run is shorter and holds one output less.

The backward of the module that is left outside holds two values of the boundary's size beside the output. Planners do
not count that moment; it is no higher than the backward of the next stage, as long as the next stage's output is as
large.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from memfit.apply.checkpoints import LiveStage, apply_nodes
from memfit.model.step import Job, leaving_no_trace
from memfit.profile.checkpoint_cost import checkpoint_cost, saved_tensors
from memfit.profile.meter.events import Record
from memfit.profile.meter.stage_sizes import Window
from memfit.profile.meter.stage_times import clock_into
from memfit.records.plan import Checkpoint, Ending, Keep, Stage

Heads = dict[int, int]
"""By the number of a stage, what all but its last module leave; only where the last module may be left outside."""


@dataclass(slots=True)
class EndingPart:
    """One of the modules that were put together to a stage."""

    live: LiveStage
    outputs: list[tuple[int, int]]
    """Address and bytes of what it returned."""
    left_bytes: int
    """What it made that is alive when the backward begins."""
    beside_bytes: int
    """How much of that is not what it returned: a dropout's noise, say."""

    @property
    def output_bytes(self) -> int | None:
        """None unless it returned one tensor."""
        return self.outputs[0][1] if len(self.outputs) == 1 else None


def part_of(live: LiveStage, outputs: list[tuple[int, int]], record: Record, window: Window) -> EndingPart:
    """One module with what was made in its forward and is alive when the backward begins."""
    turn, returned = record.at("turn") or 0, {address for address, _ in outputs}
    left = [block for block in record.made_between(*window.forward) if block.alive_at(turn)]
    return EndingPart(
        live=live,
        outputs=outputs,
        left_bytes=sum(block.num_bytes for block in left),
        beside_bytes=sum(block.num_bytes for block in left if block.address not in returned),
    )


def heads_of(groups: Sequence[tuple[Stage, range]], parts: Sequence[EndingPart]) -> Heads:
    """The stages whose last module keeps nothing but its output, has no parameters and changes no size."""
    heads: Heads = {}
    for index, (stage, numbers) in enumerate(groups):
        *head, last = (parts[number] for number in numbers)
        if head and stage.recomputable and _may_be_outside(last) and last.output_bytes == head[-1].output_bytes:
            heads[index] = sum(part.left_bytes for part in head)
    return heads


def _may_be_outside(part: EndingPart) -> bool:
    if len(part.live.modules) != 1 or part.output_bytes is None:
        return False
    return part.beside_bytes == 0 and next(part.live.modules[0].parameters(), None) is None


def with_endings(job: Job, stages: tuple[Stage, ...], heads: Heads, timed_runs: int) -> tuple[Stage, ...]:
    """The stages with how each is run again as the last of a checkpoint, where that is less than all of it."""
    allowed = [i for i in heads if i + 1 < len(stages) and stages[i].output_bytes <= stages[i + 1].output_bytes]
    found = _put(stages, {i: Ending(forward_seconds=0.0, saved_bytes=heads[i]) for i in allowed})
    if not allowed:
        return found
    runs = [_again_seconds(job, found, allowed) for _ in range(timed_runs)]
    least = {i: min([stages[i].forward_seconds, *(run[i] for run in runs)]) for i in allowed}
    return _put(stages, {i: Ending(forward_seconds=least[i], saved_bytes=heads[i]) for i in allowed})


def _put(stages: tuple[Stage, ...], endings: dict[int, Ending]) -> tuple[Stage, ...]:
    return tuple(msgspec.structs.replace(stage, ending=endings.get(i)) for i, stage in enumerate(stages))


def _again_seconds(job: Job, stages: tuple[Stage, ...], wanted: list[int]) -> dict[int, float]:
    """How long each stage takes when it alone is recomputed."""
    moments: dict[str, float] = {}
    tell = clock_into(moments, job.device)
    nodes = tuple(
        Checkpoint(inside=(Keep(stage=i),)) if i in wanted else Keep(stage=i) for i, stage in enumerate(stages)
    )
    with leaving_no_trace(job), apply_nodes(job.model, stages, nodes, on_stage=tell, is_exact=job.is_exact) as applied:
        job.run()
        num_saved = saved_tensors(applied)
    cost = checkpoint_cost().again  # what the checkpoint itself takes is counted with the sweep
    spans = {i: moments.get(f"ready {i}", 0.0) - moments.get(f"again {i}", 0.0) for i in wanted}
    return {i: max(0.0, span - cost.of(num_saved.get(i, ()))) for i, span in spans.items()}
