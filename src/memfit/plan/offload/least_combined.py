"""Smallest possible peak when all saved tensors may be moved; exact for a link without limit.

Along the chain only the input of the node at hand, the node itself and, for a checkpoint, the smallest peak of
redoing it count. O(L^2) states and choices.
"""

from __future__ import annotations

from functools import cache

from memfit.plan.problem.sizes import Sizes
from memfit.plan.recompute.least_memory import LeastMemory
from memfit.records.plan import Checkpoint, Keep, Node

Choice = tuple[int, int, int | None]
"""(peak from here on, next boundary, number of the way to keep the stage or None for a checkpoint)."""


class LeastCombined:
    """The smallest peaks of one chain."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self._least = LeastMemory(sizes)
        self._best = cache(self._search)
        self._forward_and_back()

    def _forward_and_back(self) -> None:
        for i in range(self.sizes.num_stages, -1, -1):  # filled from the end, so that no call goes deep
            for way in range(-1, len(self.sizes.ways(i - 1)) if i else 0):
                self._best(i, way)

    @property
    def peak_bytes(self) -> int:
        """The smallest peak, base and update included."""
        return max(self.sizes.base_bytes + self._best(0, -1)[0], self.sizes.update_bytes)

    def _input_bytes(self, i: int, way: int) -> int:
        """What stands at a boundary: its bare value, or all that the stage before saved one way."""
        return self.sizes.output[i] if way < 0 else self.sizes.ways(i - 1)[way].saved_bytes

    def _search(self, i: int, way: int) -> Choice:
        if i == self.sizes.num_stages:
            return 0, i, None
        held = self._input_bytes(i, way)
        last = self.sizes.num_stages
        choices: list[Choice] = []
        for number, kept in enumerate(self.sizes.ways(i)):
            need = held + self.sizes.keep_need(i, last, kept)
            choices.append((max(need, self._best(i + 1, number)[0]), i + 1, number))
        for k in range(i + 1, last):
            if self.sizes.joined[i, k]:
                need = held + max(self.sizes.sweep_need(i, k, last), int(self._least.peak[i, k]))
                choices.append((max(need, self._best(k, -1)[0]), k, None))
        return min(choices, key=lambda choice: (choice[0], choice[2] is None))

    def nodes(self) -> tuple[Node, ...]:
        """Nodes, all but the last moved, that reach the smallest peak."""
        nodes: list[Node] = []
        i, way = 0, -1
        while i < self.sizes.num_stages:
            _, end, number = self._best(i, way)
            more = end < self.sizes.num_stages
            if number is None:
                nodes.append(Checkpoint(inside=self._least.nodes(i, end), offload=more))
            else:
                name = "" if number == 0 else self.sizes.chain.stages[i].options[number - 1].name
                nodes.append(Keep(stage=i, option=name, offload=more))
            i, way = end, -1 if number is None else number
        return tuple(nodes)
