"""Ways to run a stage with less held for each micro-batch: recomputing runs of its layers, or moving them to the host.

Runs come from two sources: the published checkpointing rules (`plan/recompute/rules.py`), equally many layers in
each, with the last run recomputed or kept, and the curve of nested checkpointing (`stage_checkpoints.py`), where runs
differ, single layers are kept, and a run is brought back in pieces. A run that is recomputed keeps its last output
alone; its other bytes come back for its backward, one run at a time. What is moved to the host leaves after the
forward and returns before the backward; a stage cannot take less than both ways take. Each way is one more choice of
the exact planner, which is then optimal among these ways; a way that is slower and holds no less than another is left
out, and of many that remain those that lie closest to another.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memfit.plan.pipeline.case import Curve
from memfit.plan.pipeline.stage_checkpoints import NestedRuns
from memfit.records.pipeline import Layer, PipelineChain, StageChoice

MOST_RUNS = 6
MOST_WAYS = 16
MOVED_SHARES = (0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True, slots=True)
class _StageSums:
    """A stage as the ways see it."""

    layers: Sequence[Layer]
    input_bytes: int

    @property
    def forward_seconds(self) -> float:
        return sum(layer.forward_seconds for layer in self.layers)

    @property
    def backward_seconds(self) -> float:
        return sum(layer.backward_seconds for layer in self.layers)

    @property
    def held_bytes(self) -> int:
        return self.input_bytes + sum(layer.saved_bytes for layer in self.layers)

    @property
    def transient_bytes(self) -> int:
        return max(layer.transient_bytes for layer in self.layers)


def curve_of(chain: PipelineChain, host_bytes_per_second: float | None = None, *, recompute: bool = True) -> Curve:
    """The further ways of every stage of a chain; moving only where the speed of the host's link is known."""

    nested = NestedRuns(chain.layers)

    def ways(first: int, last: int) -> tuple[StageChoice, ...]:
        received = chain.layers[first - 1].output_bytes if first else chain.input_bytes
        stage = _StageSums(chain.layers[first : last + 1], received)
        found = [*_recomputing(stage), *nested.choices(first, last, received)] if recompute else []
        if host_bytes_per_second is not None:
            found += _moving(stage, host_bytes_per_second)
        return _worth_it(found, stage)

    return ways


def _recomputing(stage: _StageSums) -> Iterator[StageChoice]:
    """Runs of equally many layers, all recomputed, or all but the last one."""
    number = len(stage.layers)
    for num_runs in sorted({*range(1, min(MOST_RUNS, number) + 1), max(1, round(math.sqrt(number))), number}):
        ends = [round((index + 1) * number / num_runs) for index in range(num_runs)]
        runs = [stage.layers[a:b] for a, b in zip([0, *ends[:-1]], ends, strict=True) if b > a]
        for num_kept in (0, 1) if len(runs) > 1 else (0,):
            yield _with_runs(stage, runs, num_kept)


def _with_runs(stage: _StageSums, runs: Sequence[Sequence[Layer]], num_kept: int) -> StageChoice:
    again = runs[: len(runs) - num_kept]
    kept = sum(layer.saved_bytes for run in runs[len(again) :] for layer in run)
    held = stage.input_bytes + kept + sum(min(_saved(run), run[-1].output_bytes) for run in again)
    returning = max(_saved(run) - min(_saved(run), run[-1].output_bytes) for run in again)
    return StageChoice(
        name=f"recompute {sum(len(run) for run in again)} of {len(stage.layers)} layers in {len(again)}",
        forward_seconds=stage.forward_seconds,
        backward_seconds=stage.backward_seconds + sum(layer.forward_seconds for run in again for layer in run),
        held_bytes=held,
        working_bytes=stage.transient_bytes + returning,
    )


def _saved(run: Sequence[Layer]) -> int:
    return sum(layer.saved_bytes for layer in run)


def _moving(stage: _StageSums, bytes_per_second: float) -> Iterator[StageChoice]:
    """A share of what is kept goes to the host; the stage waits where both ways take longer than computing."""
    kept = stage.held_bytes - stage.input_bytes
    largest = max(layer.saved_bytes for layer in stage.layers)
    for share in MOVED_SHARES:
        moved = int(kept * share)
        waits = max(0.0, 2 * moved / bytes_per_second - stage.forward_seconds - stage.backward_seconds)
        yield StageChoice(
            name=f"move {share:.0%} to the host",
            forward_seconds=stage.forward_seconds,
            backward_seconds=stage.backward_seconds + waits,
            held_bytes=stage.held_bytes - moved,
            working_bytes=stage.transient_bytes + min(moved, 2 * largest),
            moved_bytes=moved,
        )


def _worth_it(found: Sequence[StageChoice], stage: _StageSums) -> tuple[StageChoice, ...]:
    """Ways that hold less than everything kept and than every way that is no slower and needs no more to work."""
    kept: list[StageChoice] = []
    for way in sorted(found, key=lambda each: (each.backward_seconds, each.held_bytes, each.working_bytes)):
        if way.held_bytes >= stage.held_bytes:
            continue
        if not any(b.held_bytes <= way.held_bytes and b.working_bytes <= way.working_bytes for b in kept):
            kept.append(way)
    return _spread(kept)


def _spread(ways: Sequence[StageChoice]) -> tuple[StageChoice, ...]:
    """At most so many ways: of two that hold nearly the same in nearly the same memory, the slower one goes.

    The ways with the least bytes held, and with the least bytes for one micro-batch, stay.
    """
    left = list(ways)
    if len(left) <= MOST_WAYS:
        return tuple(left)
    smallest = [
        min(left, key=lambda way: way.held_bytes),
        min(left, key=lambda way: way.held_bytes + way.working_bytes),
    ]
    while len(left) > MOST_WAYS:
        pairs = [
            (
                abs(math.log((a.held_bytes + 1) / (b.held_bytes + 1)))
                + abs(math.log((a.working_bytes + 1) / (b.working_bytes + 1))),
                n + 1,
            )
            for n, (a, b) in enumerate(itertools.pairwise(left))
            if b not in smallest
        ]
        left.pop(min(pairs)[1])
    return tuple(left)
