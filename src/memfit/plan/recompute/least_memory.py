"""Smallest possible peak of a nested checkpoint plan, whatever it costs; exact, without slots.

The recursion of `nested_table` with "largest need" in place of "sum of seconds":

    P(i, j) = min( max(need of keeping, saved + P(i + 1, j)),
                   min over k of max(need of the sweep to k, output_k + P(k, j), P(i, k)) )

O(L^3) time, O(L^2) memory.
"""

from __future__ import annotations

import numpy as np

from memfit.plan.problem.sizes import Sizes
from memfit.records.plan import Checkpoint, Keep, Node

NEVER = np.iinfo(np.int64).max // 4


class LeastMemory:
    """The table of smallest peaks of one chain, above the base bytes."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        count = sizes.num_stages
        self._output = np.array(sizes.output)
        self.peak = np.zeros((count + 1, count + 1), dtype=np.int64)
        for length in range(1, count + 1):
            for i in range(count + 1 - length):
                self.peak[i, i + length] = min(self._keep(i, i + length)[0], self._checkpoint(i, i + length)[0])

    @property
    def peak_bytes(self) -> int:
        """The smallest peak of the whole chain, base and update included."""
        return max(self.sizes.base_bytes + int(self.peak[0, -1]), self.sizes.update_bytes)

    def _keep(self, i: int, j: int) -> tuple[int, str]:
        plain = self.sizes.chain.stages[i]
        rest = int(self.peak[i + 1, j])
        return min(
            (max(self.sizes.keep_need(i, j, way), way.saved_bytes + rest), "" if way is plain else way.name)
            for way in self.sizes.ways_within(i, j)
        )

    def _checkpoint(self, i: int, j: int) -> tuple[int, int]:
        if j - i < 2:
            return NEVER, i
        peak = self._output[i + 1 : j] + self.peak[i + 1 : j, j]
        np.maximum(peak, self.sizes.held_forward[j] + self.sizes.sweep[i, i + 1 : j], out=peak)
        np.maximum(peak, self.peak[i, i + 1 : j], out=peak)
        peak[~self.sizes.joined[i, i + 1 : j]] = NEVER
        at = int(np.argmin(peak))
        return int(peak[at]), i + 1 + at

    def nodes(self, i: int = 0, j: int | None = None) -> tuple[Node, ...]:
        """Nodes that reach the smallest peak between two boundaries."""
        j = self.sizes.num_stages if j is None else j
        nodes: list[Node] = []
        while i < j:
            (kept, option), (swept, k) = self._keep(i, j), self._checkpoint(i, j)
            if kept <= swept:
                nodes.append(Keep(stage=i, option=option))
                i += 1
            else:
                nodes.append(Checkpoint(inside=self.nodes(i, k)))
                i = k
        return tuple(nodes)
