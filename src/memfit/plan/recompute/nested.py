"""Optimal nested checkpointing: the fastest plan within a budget, with a bound on any faster one.

The dynamic program of `nested_table` on a few fixed grids: one that covers everything kept, one that covers half of
it, a quarter and so on, down to the smallest peak there is. Fixed grids make the answer monotone: a larger budget
sees every plan that a smaller one saw. Sizes in a table are rounded, so entries are tried from the fastest that may
fit on, and the first whose exact peak fits is the answer. The same table gives the lower bound, which also says when
a finer grid cannot improve the answer.

Smallest possible peak of a nested checkpoint plan, whatever it costs; exact, without slots.

The recursion of `nested_table` with "largest need" in place of "sum of seconds":

    P(i, j) = min( max(need of keeping, saved + P(i + 1, j)),
                   min over k of max(need of the sweep to k, output_k + P(k, j), P(i, k)) )

O(L^3) time, O(L^2) memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from memfit.plan.problem.checks import covers
from memfit.plan.problem.sizes import Sizes
from memfit.plan.recompute.nested_table import NUM_SLOTS, NestedTable, most_wrong
from memfit.records.plan import Chain, Checkpoint, Keep, Node

WORK = NUM_SLOTS * 100**3
MOST_SLOTS = 4000
TRIES = 32
SLACK = 1e-12
"""Bounds sum in another order than the replay does."""
FREEDOM = 1.1
"""How much larger than needed a slot may be, where that loses fewer bytes to rounding."""
SLOT_SIZES = 256


@dataclass(frozen=True, slots=True)
class Found:
    """Nodes with their exact peak and seconds."""

    nodes: tuple[Node, ...]
    peak_bytes: int
    seconds: float


@dataclass
class NestedPlanner:
    """Everything about nested plans of one chain; tables are made when they are needed."""

    sizes: Sizes
    num_slots: int | None = None
    _tables: dict[int, NestedTable] = field(default_factory=dict)
    _curves: dict[int, np.ndarray] = field(default_factory=dict)
    _rough: NestedTable | None = None
    _chosen: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, chain: Chain, num_slots: int | None = None) -> NestedPlanner:
        return cls(Sizes(chain), num_slots)

    @cached_property
    def least(self) -> Found:
        """The plan with the smallest peak."""
        return self.found(LeastMemory(self.sizes).nodes())

    @cached_property
    def plain(self) -> Found:
        """Everything kept: the fastest, unless an option is faster still."""
        quickest = []
        for index, stage in enumerate(self.sizes.chain.stages):
            way = min(self.sizes.ways(index), key=lambda w: w.forward_seconds + w.backward_seconds)
            quickest.append(Keep(stage=index, option="" if way is stage else way.name))
        return self.found(tuple(quickest))

    def found(self, nodes: tuple[Node, ...]) -> Found:
        """Nodes with their exact numbers."""
        chain = self.sizes.chain
        return Found(nodes, self.sizes.peak_bytes(nodes), seconds_of(self.sizes, nodes) + chain.update_seconds)

    # ---- the answer ------------------------------------------------------------------------------------------

    def best(self, budget_bytes: int) -> Found | None:
        """The fastest plan found within the budget; None when there is none."""
        if budget_bytes < self.least.peak_bytes:
            return None
        if budget_bytes >= self.plain.peak_bytes:
            return self.plain
        best = self.least
        for grid in range(self._grid_of(budget_bytes), self._num_grids):
            if self._cannot_improve(best, grid, budget_bytes):
                break
            found = self._within(self._table(grid), budget_bytes)
            if found is not None and found.seconds < best.seconds:
                best = found
        return best

    def bound_seconds(self, budget_bytes: int) -> float:
        """No nested plan within the budget is faster; infinite when there is none."""
        if budget_bytes < self.least.peak_bytes:
            return float("inf")
        if budget_bytes >= self.plain.peak_bytes:
            return self.plain.seconds * (1.0 - SLACK)
        self._curve(self._grid_of(budget_bytes))
        bounds = (self._bound_at(grid, budget_bytes) for grid in self._curves)
        return max(self.plain.seconds * (1.0 - SLACK), *bounds)

    def frontier(self, num_points: int = 16) -> list[Found]:
        """Plans from the smallest peak to everything kept, each faster than those below it."""
        low, high = self.least.peak_bytes, self.plain.peak_bytes
        budgets = sorted({low + (high - low) * k // num_points for k in range(num_points + 1)})
        points: list[Found] = []
        for budget_bytes in budgets:
            found = self.best(budget_bytes)
            if found is not None and (not points or found.seconds < points[-1].seconds):
                points.append(found)
        return points

    # ---- grids -----------------------------------------------------------------------------------------------

    @cached_property
    def _span_bytes(self) -> int:
        return max(1, self.plain.peak_bytes - self.sizes.base_bytes)

    @cached_property
    def slots(self) -> int:
        """How many slots a grid has: as many as cost little, for short chains more."""
        if self.num_slots is not None:
            return self.num_slots
        affordable = WORK // self.sizes.num_stages**3
        return max(NUM_SLOTS, min(MOST_SLOTS, affordable))

    @cached_property
    def _num_grids(self) -> int:
        floor = max(1, self.least.peak_bytes - self.sizes.base_bytes)
        count = 1
        while self._slot_bytes(count - 1) > 1 and self._covered_bytes(count) >= floor:
            count += 1
        return count

    def _covered_bytes(self, grid: int) -> int:
        """Each grid covers a half of the one before."""
        return self._span_bytes >> grid

    def _slot_bytes(self, grid: int) -> int:
        """A slot size with which the grid covers its range and what rounding adds, and few bytes are lost."""
        if grid not in self._chosen:
            self._chosen[grid] = self._choose_slot_bytes(grid)
        return self._chosen[grid]

    def _choose_slot_bytes(self, grid: int) -> int:
        smallest = max(1, -(-self._covered_bytes(grid) // (self.slots - self._slots_for_rounding)))
        sizes = np.array([way.saved_bytes for i in range(self.sizes.num_stages) for way in self.sizes.ways(i)])
        sizes = np.concatenate((sizes, self.sizes.output[1:-1]))
        tried = np.unique(np.linspace(smallest, smallest * FREEDOM, SLOT_SIZES).astype(np.int64))
        over = -sizes[None, :] % tried[:, None]
        lost = np.minimum(over, tried[:, None] - over).sum(axis=1)
        return int(tried[np.argmin(lost)])

    @property
    def _slots_for_rounding(self) -> int:
        """Set aside for what rounding adds: about an eighth of a slot for each stage."""
        return min(self.slots // 2, 2 + self.sizes.num_stages // 7)

    def _top_bytes(self, grid: int) -> int:
        """The largest budget a grid is asked for."""
        slot_bytes = self._slot_bytes(grid)
        return self.sizes.base_bytes + slot_bytes * (self.slots - most_wrong(self.sizes, slot_bytes, 1))

    def _grid_of(self, budget_bytes: int) -> int:
        """The finest grid that covers the budget."""
        grid = 0
        while grid + 1 < self._num_grids and budget_bytes <= self._top_bytes(grid + 1):
            grid += 1
        return grid

    def _table(self, grid: int) -> NestedTable:
        if grid not in self._tables:
            self._forget_large_tables()
            table = NestedTable(self.sizes, self._slot_bytes(grid), self.slots)
            self._tables[grid], self._curves[grid] = table, table.seconds.copy()
        return self._tables[grid]

    def _curve(self, grid: int) -> np.ndarray:
        """Seconds by number of slots, which outlives its table."""
        return self._curves[grid] if grid in self._curves else self._table(grid).seconds

    def _forget_large_tables(self) -> None:
        """Keep the planner below a gigabyte."""
        if sum(table.num_bytes for table in self._tables.values()) > 2**28:
            self._tables.clear()

    def rough_table(self, inside_bytes: int) -> NestedTable:
        """A small table up to so many bytes above the base, for guesses."""
        slots = max(64, min(NUM_SLOTS, WORK // (4 * self.sizes.num_stages**3)))
        slot_bytes = max(1, -(-inside_bytes // slots))
        if self._rough is None or self._rough.slot_bytes != slot_bytes:
            self._rough = NestedTable(self.sizes, slot_bytes, slots)
        return self._rough

    # ---- one grid --------------------------------------------------------------------------------------------

    def _within(self, table: NestedTable, budget_bytes: int) -> Found | None:
        """The fastest entry whose exact peak fits."""
        for slots in self._tries(table, budget_bytes):
            nodes = table.plan(slots)
            found = None if nodes is None else self.found(nodes)
            if found is not None and found.peak_bytes <= budget_bytes:
                return found
        return None

    def _tries(self, table: NestedTable, budget_bytes: int) -> list[int]:
        """Numbers of slots that need different times, fastest first, from the most that may fit to one that must.

        Which of them are tried depends on the table alone, so that a larger budget sees all that a smaller one saw.
        """
        seconds = table.seconds
        entries = np.flatnonzero(np.isfinite(seconds) & (seconds < np.concatenate(([np.inf], seconds[:-1]))))
        stride = max(1, (table.most_over + table.most_under) // TRIES)
        tried = entries[(entries % stride == 0) | (entries == entries[-1])] if len(entries) else entries
        most = (budget_bytes - self.sizes.base_bytes) // table.slot_bytes + table.most_over
        return [int(slots) for slots in tried[::-1] if slots <= most]

    def _bound_at(self, grid: int, budget_bytes: int) -> float:
        curve, slot_bytes = self._curve(grid), self._slot_bytes(grid)
        slots = (budget_bytes - self.sizes.base_bytes) // slot_bytes + most_wrong(self.sizes, slot_bytes, 1)
        seconds = float(curve[slots]) if slots < len(curve) else 0.0
        slack = 1e-5 if curve.dtype == np.float32 else SLACK
        return seconds * (1.0 - slack) + self.sizes.chain.update_seconds

    def _cannot_improve(self, best: Found, grid: int, budget_bytes: int) -> bool:
        """Whether plans that fit into this finer grid are known to be slower than the best so far."""
        if grid == self._grid_of(budget_bytes):
            return False
        slot_bytes = self._slot_bytes(grid)
        top = self.sizes.base_bytes + slot_bytes * (self.slots + most_wrong(self.sizes, slot_bytes, -1))
        return any(best.seconds <= self._bound_at(known, min(top, budget_bytes)) for known in self._curves)


def seconds_of(sizes: Sizes, nodes: tuple[Node, ...], *, again: bool = False) -> float:
    """Compute time of nodes that move nothing, without the update; `again` within a checkpoint."""
    total = 0.0
    for node in nodes:
        if isinstance(node, Checkpoint):
            first, last = covers(node)
            total += float(sizes.sweep_seconds[last + 1] - sizes.sweep_seconds[first])
            total += seconds_of(sizes, node.inside, again=True)
        else:
            way = sizes.way_of(node, ends=again and node is nodes[-1])
            total += way.forward_seconds + way.backward_seconds
    return total


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
