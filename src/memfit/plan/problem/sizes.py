"""A chain as numpy arrays: what its boundaries, sweeps and backwards need.

Boundaries are counted from 0, the batch, to `num_stages`; the stage between boundaries `i` and `i + 1` has index `i`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from memfit.records.plan import Chain, Keep, Node, Option, Stage


@dataclass(frozen=True)
class Sizes:
    """Derived quantities of one chain, computed once."""

    chain: Chain

    @property
    def num_stages(self) -> int:
        return len(self.chain.stages)

    @property
    def base_bytes(self) -> int:
        """Alive whatever happens: fixed bytes and the batch."""
        return self.chain.fixed.total_bytes + self.chain.input_bytes

    @cached_property
    def output(self) -> list[int]:
        """Bytes of each boundary; none for the batch, which is in the base."""
        return [0, *(stage.output_bytes for stage in self.chain.stages)]

    @cached_property
    def gradient(self) -> list[int]:
        """Bytes of the gradient of each boundary."""
        return [self.chain.input_gradient_bytes, *(stage.output_bytes for stage in self.chain.stages)]

    @cached_property
    def after(self) -> list[int]:
        """Bytes of parameter gradients that exist once the backward has come down to each boundary."""
        sums = [0]
        for stage in reversed(self.chain.stages):
            sums.append(sums[-1] + stage.gradient_bytes)
        return sums[::-1]

    @cached_property
    def held_forward(self) -> list[int]:
        """Beside activations, alive while a forward runs up to boundary `j` for its backward."""
        last = self.num_stages
        return [(self.gradient[j] if j < last else 0) + self.after[j] for j in range(last + 1)]

    @cached_property
    def sweep_seconds(self) -> np.ndarray:
        """Cumulated time of sweeping up to each boundary."""
        return np.concatenate(([0.0], np.cumsum([stage.sweep_seconds for stage in self.chain.stages])))

    @cached_property
    def sweep(self) -> np.ndarray:
        """`[i, k]`: the most alive while stages between the two boundaries run and only the last output is kept."""
        count = self.num_stages
        need = np.zeros((count + 1, count + 1), dtype=np.int64)
        for i in range(count):
            worst = 0
            for k in range(i + 1, count + 1):
                source = self.output[k - 1] if k - 1 > i else 0
                worst = max(worst, source + self.output[k] + self.chain.stages[k - 1].forward_transient_bytes)
                need[i, k] = worst
        return need

    @cached_property
    def joined(self) -> np.ndarray:
        """`[i, k]`: whether the stages between the two boundaries may be one checkpoint."""
        count = self.num_stages
        allowed = np.zeros((count + 1, count + 1), dtype=bool)
        for i in range(count):
            for k in range(i + 1, count + 1):
                stage = self.chain.stages[k - 1]
                before = k - 1 == i or (allowed[i, k - 1] and self.chain.stages[k - 2].joins_next)
                allowed[i, k] = before and stage.recomputable
        return allowed

    def ways(self, stage: int) -> tuple[Stage | Option, ...]:
        """The plain way to keep a stage, then its options."""
        return (self.chain.stages[stage], *self.chain.stages[stage].options)

    def ways_within(self, i: int, j: int) -> tuple[Stage | Option, ...]:
        """The ways to keep the stage after boundary `i` in a stretch up to boundary `j`."""
        return self.ways_at_end(i) if i + 1 == j < self.num_stages else self.ways(i)

    def ways_at_end(self, stage: int) -> tuple[Stage | Option, ...]:
        """The ways to run a stage again as the last of a checkpoint."""
        return (at_end(self.chain.stages[stage]), *self.chain.stages[stage].options)

    def keep_need(self, i: int, j: int, way: Stage | Option) -> int:
        """Bytes that keeping the stage after boundary `i` takes in a problem that ends at boundary `j`."""
        forward = self.held_forward[j] + way.saved_bytes + way.forward_transient_bytes
        backward = (
            self.gradient[i + 1] + way.saved_bytes + self.gradient[i] + way.backward_transient_bytes + self.after[i]
        )
        return max(forward, backward)

    def sweep_need(self, i: int, k: int, j: int) -> int:
        """Bytes that sweeping from boundary `i` to `k` takes in a problem that ends at boundary `j`."""
        return self.held_forward[j] + int(self.sweep[i, k])

    @property
    def update_bytes(self) -> int:
        """The peak of the optimizer's step."""
        return self.base_bytes + self.after[0] + self.chain.update_transient_bytes

    # ---- the peak of nodes, without a replay -----------------------------------------------------------------

    def peak_bytes(self, nodes: tuple[Node, ...]) -> int:
        """The peak of a plan that moves nothing; equal to the simulator's."""
        inside = self._peak_within(nodes, 0, self.held_forward[-1], again=False)
        return max(self.base_bytes + inside, self.update_bytes)

    def _peak_within(self, nodes: tuple[Node, ...], i: int, beside: int, *, again: bool) -> int:
        """The peak above what is held outside; `beside` are gradients alive while these nodes run forward."""
        held, worst = 0, 0
        marks: list[tuple[Node, int, int, int]] = []
        for node in nodes:
            if isinstance(node, Keep):
                way = self.way_of(node, ends=again and node is nodes[-1])
                worst = max(worst, held + beside + way.saved_bytes + way.forward_transient_bytes)
                end, left = node.stage + 1, way.saved_bytes
            else:
                end = _end_of(node)
                worst = max(worst, held + beside + int(self.sweep[i, end]))
                left = self.output[end]
            marks.append((node, i, end, left))
            held += left
            i = end
        for position in range(len(marks) - 1, -1, -1):
            node, start, end, left = marks[position]
            if isinstance(node, Keep):
                way = self.way_of(node, ends=again and node is nodes[-1])
                own = self.gradient[end] + self.gradient[start] + way.backward_transient_bytes + self.after[start]
                worst = max(worst, held + own)
                held -= left
            else:
                free = 0 if position == len(marks) - 1 else left
                gradients = self.gradient[end] + self.after[end]
                worst = max(worst, held - free + self._peak_within(node.inside, start, gradients, again=True))
                held -= left
        return worst

    def way_of(self, node: Keep, *, ends: bool = False) -> Stage | Option:
        """The way a node keeps its stage; `ends` when it is the last of a checkpoint that is run again."""
        ways = self.ways_at_end(node.stage) if ends else self.ways(node.stage)
        return next((way for way in ways[1:] if node.option and way.name == node.option), ways[0])

    def floor_bytes(self) -> int:
        """No plan of this chain, nested or moved, has a peak below this."""
        needs = [self.update_bytes]
        for i in range(self.num_stages):
            stage = self.chain.stages[i]
            forward = min(self.output[i + 1] + stage.forward_transient_bytes, *self._forward_needs(i))
            backward = min(
                way.saved_bytes + way.backward_transient_bytes + self.gradient[i] + self.gradient[i + 1] + self.after[i]
                for way in (*self.ways(i), at_end(stage))
            )
            needs.append(self.base_bytes + self.output[i] + max(forward, backward))
        return max(needs)

    def _forward_needs(self, stage: int) -> list[int]:
        return [way.saved_bytes + way.forward_transient_bytes for way in self.ways(stage)]


def at_end(stage: Stage) -> Stage | Option:
    """The plain way to run a stage again as the last of a checkpoint."""
    if stage.ending is None:
        return stage
    return Option(
        name="",
        forward_seconds=stage.ending.forward_seconds,
        backward_seconds=stage.backward_seconds,
        saved_bytes=stage.ending.saved_bytes,
        forward_transient_bytes=stage.forward_transient_bytes,
        backward_transient_bytes=max(0, stage.backward_transient_bytes),  # what it frees was measured as a whole
    )


def _end_of(node: Node) -> int:
    while not isinstance(node, Keep):
        node = node.inside[-1]
    return node.stage + 1
