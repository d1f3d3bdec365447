"""Nested checkpointing inside of a pipeline stage: which runs of layers to drop, and how to bring them back.

A stage keeps the outputs of some layers from the forward of a micro-batch to its backward, with everything that layers
between them save (kept) or without (dropped). A dropped run is run again for its backward, and where its own bytes are
too many for that, by halves, again and again: least[i, j](w) is the least time of forwards to bring back the run i..j
within w bytes beside what is held,

    F(i..j)                                               where all that the run saves fits
    min over k of F(i..k) + least[k+1, j](w - o_k) + least[i, k](w - o_k)      with the output of k kept meanwhile

(the recurrence of Griewank's revolve and of rotor, on a grid of w, sizes rounded up). For a price of bytes and a bound
w, the best division of every stage into kept layers and dropped runs is a shortest path, found for all stages at once:
O(L^2 R) with runs of up to R layers. Prices give the convex part of the curve of held bytes against time; every answer
is exact for its w and price up to the grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from memfit.records.pipeline import Layer, StageChoice

NUM_SLOTS = 48
"""Steps of the grid of working bytes."""
MOST_RUN = 20
"""Layers of the longest run that is dropped."""
WORKING_SHARES = (0.08, 0.17, 0.34, 0.67, 1.0)
"""Of the largest working memory that a run can need: the bounds that are tried."""
PRICES = (0.02, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)
"""Of a byte held, in units of all forward time over all saved bytes."""


@dataclass(frozen=True)
class NestedRuns:
    """Tables of one chain, made when they are asked for."""

    layers: Sequence[Layer]

    @cached_property
    def forward(self) -> np.ndarray:
        """Cumulated forward seconds."""
        return np.concatenate(([0.0], np.cumsum([layer.forward_seconds for layer in self.layers])))

    @cached_property
    def saved(self) -> np.ndarray:
        """Cumulated saved bytes."""
        return np.concatenate(([0], np.cumsum([layer.saved_bytes for layer in self.layers])))

    def stays(self, i: int, j: int) -> int:
        """What a dropped run leaves: its last output."""
        return min(int(self.saved[j + 1] - self.saved[i]), self.layers[j].output_bytes)

    def returns(self, i: int, j: int) -> int:
        """Bytes beside what is held when a whole run is back, and one of its layers works."""
        back = int(self.saved[j + 1] - self.saved[i]) - self.stays(i, j)
        return back + max(layer.transient_bytes for layer in self.layers[i : j + 1])

    def passes(self, i: int, k: int) -> int:
        """Bytes while the layers from i to k run again and only the last output is to stay."""
        outputs = [0, *(layer.output_bytes for layer in self.layers[i : k + 1])]
        works = [layer.transient_bytes for layer in self.layers[i : k + 1]]
        return max(a + b + c for a, b, c in zip(outputs, outputs[1:], works, strict=False))

    @cached_property
    def slot_bytes(self) -> int:
        """One step of the grid; the last one holds every run."""
        number = len(self.layers)
        largest = max(self.returns(i, min(i + MOST_RUN, number) - 1) for i in range(number))
        return max(1, -(-largest // NUM_SLOTS))

    def slots(self, num_bytes: int) -> int:
        """Steps of the grid that hold these bytes."""
        return -(-num_bytes // self.slot_bytes)

    @cached_property
    def least(self) -> dict[tuple[int, int], np.ndarray]:
        """For every run: the least seconds of forwards that bring it back, by the steps of working memory."""
        found: dict[tuple[int, int], np.ndarray] = {}
        number = len(self.layers)
        for length in range(1, min(MOST_RUN, number) + 1):
            for i in range(number - length + 1):
                found[i, i + length - 1] = self._least_of(i, i + length - 1, found)
        return found

    def _least_of(self, i: int, j: int, shorter: dict[tuple[int, int], np.ndarray]) -> np.ndarray:
        best = np.full(NUM_SLOTS + 1, np.inf)
        best[self.slots(self.returns(i, j)) :] = self.forward[j + 1] - self.forward[i]
        for k in range(i, j):
            kept = self.slots(self.layers[k].output_bytes)
            if kept > NUM_SLOTS:
                continue
            both = shorter[k + 1, j] + shorter[i, k] + (self.forward[k + 1] - self.forward[i])
            first = max(kept, self.slots(self.passes(i, k)))
            if first <= NUM_SLOTS:
                best[first:] = np.minimum(best[first:], both[first - kept : NUM_SLOTS + 1 - kept])
        return best

    # ---- divisions of all stages at once -----------------------------------------------------------------------

    @cached_property
    def divisions(self) -> list[_Divisions]:
        """The best division of every stage for each bound of working memory and price."""
        unit = float(self.forward[-1]) / max(1.0, float(self.saved[-1]))
        bounds = sorted({max(1, round(share * NUM_SLOTS)) for share in WORKING_SHARES})
        return [self._divided(bound, price * unit) for bound in bounds for price in PRICES]

    def _divided(self, bound: int, price: float) -> _Divisions:
        number = len(self.layers)
        shape = (number + 1, number + 1)
        cost, held = np.full(shape, np.inf), np.zeros(shape, dtype=np.int64)
        again, dropped = np.zeros(shape), np.zeros(shape, dtype=np.int64)
        np.fill_diagonal(cost, 0.0)  # [first, end]: the layers from `first` on, up to before `end`
        for end in range(1, number + 1):
            for start in range(max(0, end - MOST_RUN), end):
                for size, seconds, layers in self._ways(start, end - 1, bound):
                    longer = cost[: start + 1, start] + seconds + price * size
                    better = np.flatnonzero(longer < cost[: start + 1, end])
                    cost[better, end] = longer[better]
                    held[better, end] = held[better, start] + size
                    again[better, end] = again[better, start] + seconds
                    dropped[better, end] = dropped[better, start] + layers
        return _Divisions(bound * self.slot_bytes, cost, held, again, dropped)

    def _ways(self, i: int, j: int, bound: int) -> list[tuple[int, float, int]]:
        """A run dropped, and a single layer also kept: bytes held, seconds more, layers dropped."""
        found = []
        if i == j and self.slots(self.layers[i].transient_bytes) <= bound:
            found.append((self.layers[i].saved_bytes, 0.0, 0))
        seconds = float(self.least[i, j][bound])
        if seconds < np.inf and (i == j or self.slots(self.passes(i, j)) <= bound):
            found.append((self.stays(i, j), seconds, j + 1 - i))
        return found

    def choices(self, first: int, last: int, input_bytes: int) -> list[StageChoice]:
        """The ways of one stage."""
        layers = self.layers[first : last + 1]
        forward = sum(layer.forward_seconds for layer in layers)
        backward = sum(layer.backward_seconds for layer in layers)
        found = {}
        for made in self.divisions:
            if made.cost[first, last + 1] < np.inf and made.dropped[first, last + 1]:
                held, again = int(made.held[first, last + 1]), float(made.again[first, last + 1])
                number = int(made.dropped[first, last + 1])
                found[held, again, made.bound_bytes] = StageChoice(
                    name=f"recompute {number} of {len(layers)} layers, nested",
                    forward_seconds=forward, backward_seconds=backward + again, held_bytes=input_bytes + held,
                    working_bytes=made.bound_bytes,
                )  # fmt: skip
        return list(found.values())


@dataclass(frozen=True)
class _Divisions:
    """Of all stages, for one bound and price, by first layer and the one behind the last."""

    bound_bytes: int
    cost: np.ndarray
    held: np.ndarray
    again: np.ndarray
    dropped: np.ndarray
