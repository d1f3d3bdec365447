"""Simple published checkpointing rules: every block, equal segments, sqrt(n), greedy by size.

- none: keep everything; every block: recompute each stage on its own;
- equal segments: as `torch.utils.checkpoint.checkpoint_sequential`, runs of equally many stages, the last run kept;
- sqrt(n): equal segments with about sqrt(n) runs (Chen, Xu, Zhang, Guestrin, "Training deep nets with sublinear memory
  cost", 2016);
- greedy: the same authors' rule for unequal sizes: close a run when the bytes in it exceed a threshold, and search
  for the best threshold.

Stages that may run only once are kept, and no run reaches across an output that has another reader. O(n) each, times
the number of segment counts or thresholds tried.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from memfit.plan.case import Case, PlanProposal
from memfit.plan.recompute.nested import Found
from memfit.records.plan import Chain, Checkpoint, Keep, Node


def runs_to_nodes(chain: Chain, ends: Iterable[int], *, keep_last: bool = True) -> tuple[Node, ...]:
    """Nodes that recompute the stages between these ends, each run split where it must be."""
    nodes: list[Node] = []
    first = 0
    count = len(chain.stages)
    for end in sorted({*ends, count}):
        last_run = end == count and keep_last
        for run in legal_runs(chain, first, end):
            kept: tuple[Node, ...] = tuple(Keep(stage=index) for index in run)
            alone = last_run or not chain.stages[run[0]].recomputable
            nodes.extend(kept if alone else (Checkpoint(inside=kept),))
        first = end
    return tuple(nodes)


def legal_runs(chain: Chain, first: int, end: int) -> list[list[int]]:
    """The stages from `first` to `end - 1` in runs that one checkpoint may hold; a stage that runs once is alone."""
    runs: list[list[int]] = []
    for index in range(first, end):
        joins = index > first and chain.stages[index - 1].joins_next
        both = index > first and chain.stages[index - 1].recomputable and chain.stages[index].recomputable
        if joins and both:
            runs[-1].append(index)
        else:
            runs.append([index])
    return runs


def keep_all(case: Case) -> PlanProposal:
    """Keep everything."""
    return PlanProposal(case.kept)


def every_block(case: Case) -> PlanProposal:
    """Recompute each stage on its own, the last included."""
    return PlanProposal(runs_to_nodes(case.chain, range(1, len(case.chain.stages) + 1), keep_last=False))


def equal_segments(chain: Chain, num_segments: int) -> tuple[Node, ...]:
    """Runs of equally many stages, the last run kept and at least as long."""
    size = max(1, len(chain.stages) // num_segments)
    return runs_to_nodes(chain, [size * k for k in range(1, num_segments)])


def sqrt_segments(case: Case) -> PlanProposal:
    """About sqrt(n) equal segments, whatever the budget."""
    return PlanProposal(equal_segments(case.chain, max(1, round(math.sqrt(len(case.chain.stages))))))


def best_segments(case: Case) -> PlanProposal | None:
    """The fastest number of equal segments that fits."""
    counts = range(1, len(case.chain.stages) + 1)
    return _fastest(case, (equal_segments(case.chain, count) for count in counts))


def greedy_segments(case: Case) -> PlanProposal | None:
    """The fastest threshold that fits, of those at which the segments change."""
    saved = [stage.saved_bytes for stage in case.chain.stages]
    total = sum(saved)
    thresholds = sorted({total * k // 64 for k in range(65)})
    plans = {tuple(greedy_ends(saved, threshold)) for threshold in thresholds}
    return _fastest(case, (runs_to_nodes(case.chain, ends) for ends in sorted(plans)))


def greedy_ends(saved_bytes: list[int], threshold_bytes: int) -> list[int]:
    """Where runs end when each is closed as soon as its bytes exceed the threshold."""
    ends, held = [], 0
    for index, size in enumerate(saved_bytes):
        held += size
        if held > threshold_bytes:
            ends.append(index + 1)
            held = 0
    return ends


def _fastest(case: Case, plans: Iterable[tuple[Node, ...]]) -> PlanProposal | None:
    found = [case.nested.found(nodes) for nodes in plans]
    fitting = [plan for plan in found if plan.peak_bytes <= case.budget_bytes]
    best = min(fitting, key=_by_time, default=None)
    return None if best is None else PlanProposal(best.nodes)


def _by_time(found: Found) -> tuple[float, int]:
    return found.seconds, found.peak_bytes
