"""Dynamic-programming table of nested checkpointing: every stretch of a chain, every amount of memory.

The dynamic program for heterogeneous chains of Beaumont, Eyraud-Dubois, Herrmann, Joly and Shilova ("Optimal
checkpointing for heterogeneous chains: how to train deep neural networks with limited memory", known as rotor), with a
menu of ways to keep each stage and with gradients of parameters that appear during the backward.

    T(m, i, j)   least seconds from boundary i (held outside of m) and the gradient of j (inside m) to the gradient of i
    keep         T(m, i, j) = f + b + T(m - saved, i + 1, j)                          if m covers both its runs
    checkpoint   T(m, i, j) = F(i..k) + T(m - output_k, k, j) + T(m, i, k), i < k < j  if m covers the sweep

F(i..k) is the time of the forwards of these stages and of what their checkpoint costs beside (`sweep_seconds`).

Memory is cut into slots and sizes are rounded to the nearest number of slots; with slots of one byte nothing is lost.
An entry is therefore a candidate, whose exact peak must be looked up, and not a promise. But the error has known
limits, for every boundary holds at most one value at a time: a plan whose exact peak is P has a rounded one of at
most P / slot + `most_over`, so the entry there is a lower bound for all plans that fit into P.

Cost: O(L^3 S) additions, O(L^2 S) memory. Stretches of one length are computed together: with rows ordered by length,
what `checkpoint` adds for one distance from i to k is the sum of two contiguous blocks, since the shift by `output_k`
does not depend on i and is done once when the row is stored.

Known limits: best among nested plans. A plan that keeps a later stage but not the output before it, and makes that
again just before its backward, is outside of the family; so is one that drops a value and keeps it on a second run.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from memfit.plan.problem.sizes import Sizes
from memfit.records.plan import Checkpoint, Keep, Node, Option, Stage

NUM_SLOTS = 500
EXACT_TIMES_UP_TO = 160
"""Longer chains use single precision: half the memory, twice as fast; promises come from the replay anyway."""
ROWS_AT_ONCE = 64
"""As many as stay in the processor's cache."""
Forbidden = dict[int, list[tuple[int, int]]]


class NestedTable:
    """The filled table of one chain at one slot size."""

    def __init__(self, sizes: Sizes, slot_bytes: int, num_slots: int) -> None:
        self.sizes, self.slot_bytes, self.num_slots = sizes, slot_bytes, num_slots
        count = sizes.num_stages
        self.dtype = np.float64 if count <= EXACT_TIMES_UP_TO else np.float32
        lengths = np.arange(count, 0, -1)  # how many stretches of length 1, 2, ...
        self.offsets = np.concatenate(([0, 0], np.cumsum(lengths)))
        rows = int(self.offsets[-1])
        self.swept = np.full((rows, num_slots + 1), np.inf, dtype=self.dtype)
        """F(i..k) + T(m, i, k): a run that was swept and is done again."""
        self.behind = np.full((rows, num_slots + 1), np.inf, dtype=self.dtype)
        """T(m - output_k, k, j): what comes after a boundary that is held."""
        self.to_end = np.full((count + 1, num_slots + 1), np.inf, dtype=self.dtype)
        """T(m, i, L)."""
        self.to_end[count] = 0.0
        self._first = np.full(rows, num_slots + 1, dtype=np.int64)
        self._trees: dict[tuple[int, int, int], tuple[Node, ...]] = {}
        self._prepare()
        self._fill()

    def slots(self, num_bytes: int) -> int:
        """How many slots a size takes, to the nearest."""
        return (num_bytes + self.slot_bytes // 2) // self.slot_bytes

    def row(self, i: int, j: int) -> int:
        """Where the stretch between two boundaries is stored."""
        return int(self.offsets[j - i]) + i

    def _prepare(self) -> None:
        sizes, last = self.sizes, self.sizes.num_stages
        self.output_slots = np.array([self.slots(size) for size in sizes.output])
        held = np.array(sizes.held_forward, dtype=np.int64)
        self._held, self._sweep = held, sizes.sweep
        seconds = sizes.sweep_seconds
        self._keeps = [self._priced(sizes.ways(i)) for i in range(last)]
        self._ends = [self._priced(sizes.ways_within(i, i + 1)) for i in range(last)]
        self.run_seconds = seconds

    def _priced(self, ways: Sequence[Stage | Option]) -> list[tuple[float, int, Stage | Option]]:
        return [(way.forward_seconds + way.backward_seconds, self.slots(way.saved_bytes), way) for way in ways]

    def keeps(self, i: int, j: int) -> list[tuple[float, int, Stage | Option]]:
        """Seconds, slots and way of everything that can be kept of a stage at the start of a stretch."""
        return self._ends[i] if i + 1 == j else self._keeps[i]

    # ---- filling ---------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        count = self.sizes.num_stages
        before = np.zeros((count + 1, self.num_slots + 1), dtype=self.dtype)  # T(m, j, j)
        for length in range(1, count + 1):
            best = self._kept(length, before)
            forbidden = self._forbidden(length)
            for first in range(0, len(best), ROWS_AT_ONCE):
                self._checkpointed(length, first, best[first : first + ROWS_AT_ONCE], forbidden)
            self._store(length, best)
            before = best

    def _kept(self, length: int, before: np.ndarray) -> np.ndarray:
        best = np.full((self.sizes.num_stages + 1 - length, self.num_slots + 1), np.inf, dtype=self.dtype)
        for i in range(len(best)):
            for seconds, saved, way in self.keeps(i, i + length):
                need = max(self.slots(self.sizes.keep_need(i, i + length, way)), saved)
                if need <= self.num_slots:
                    found = before[i + 1, need - saved : self.num_slots + 1 - saved] + self.dtype(seconds)
                    np.minimum(best[i, need:], found, out=best[i, need:])
        return best

    def _checkpointed(self, length: int, first: int, best: np.ndarray, forbidden: Forbidden) -> None:
        """Improve rows `first`, `first + 1`, ... of one length by checkpoints at every distance."""
        count = len(best)
        total = np.empty_like(best)
        for distance in range(1, length):
            left = int(self.offsets[distance]) + first
            right = int(self.offsets[length - distance]) + first + distance
            np.add(self.swept[left : left + count], self.behind[right : right + count], out=total)
            for i, need in forbidden.get(distance, ()):
                if first <= i < first + count:
                    total[i - first, :need] = np.inf
            np.minimum(best, total, out=best)

    def _forbidden(self, length: int) -> Forbidden:
        """By distance, rows and slots below which the sweep does not fit although both parts would."""
        starts = np.arange(self.sizes.num_stages + 1 - length)[:, None]
        distances = np.arange(1, length)[None, :]
        need = self._to_slots(self._held[starts + length] + self._sweep[starts, starts + distances])
        enough = np.maximum(
            self._first[self.offsets[distances] + starts],
            self._first[self.offsets[length - distances] + starts + distances] + self.output_slots[starts + distances],
        )
        found: Forbidden = {}
        for row, column in zip(*np.nonzero(need > enough), strict=True):
            found.setdefault(int(column) + 1, []).append((int(row), int(need[row, column])))
        return found

    def _to_slots(self, sizes: np.ndarray) -> np.ndarray:
        return (sizes + self.slot_bytes // 2) // self.slot_bytes

    def _store(self, length: int, best: np.ndarray) -> None:
        count = self.sizes.num_stages
        joined = self.sizes.joined
        for i in range(len(best)):
            row, j = self.row(i, i + length), i + length
            finite = np.flatnonzero(np.isfinite(best[i]))
            if len(finite):
                self._first[row] = finite[0]
            held = int(self.output_slots[i])
            if held <= self.num_slots:
                self.behind[row, held:] = best[i, : self.num_slots + 1 - held]
            if joined[i, j]:
                self.swept[row] = best[i] + self.dtype(self.run_seconds[j] - self.run_seconds[i])
            if j == count:
                self.to_end[i] = best[i]

    # ---- reading ---------------------------------------------------------------------------------------------

    @property
    def num_bytes(self) -> int:
        """What the table itself takes."""
        return self.swept.nbytes + self.behind.nbytes + self.to_end.nbytes

    @cached_property
    def most_over(self) -> int:
        """By how many slots a rounded peak may exceed the exact one, at most."""
        return most_wrong(self.sizes, self.slot_bytes, 1)

    @cached_property
    def most_under(self) -> int:
        """By how many slots a rounded peak may fall below the exact one, at most."""
        return most_wrong(self.sizes, self.slot_bytes, -1)

    @property
    def seconds(self) -> np.ndarray:
        """The least seconds of the whole chain for every number of slots."""
        return self.to_end[0]

    def plan(self, num_slots: int) -> tuple[Node, ...] | None:
        """The fastest nodes within so many slots; None when there are none."""
        if not np.isfinite(self.to_end[0, num_slots]):
            return None
        return self.stretch(num_slots, 0, self.sizes.num_stages)

    def stretch(self, num_slots: int, i: int, j: int) -> tuple[Node, ...]:
        """The fastest nodes between two boundaries; there must be some."""
        key = (num_slots, i, j)
        known = self._trees.get(key)
        if known is None:
            known = self._trees[key] = tuple(self._traced(num_slots, i, j))
        return known

    def _traced(self, m: int, i: int, j: int) -> list[Node]:
        nodes: list[Node] = []
        while i < j:
            kept, seconds = self._best_keep(m, i, j)
            k, again = self._best_checkpoint(m, i, j)
            if kept is not None and seconds <= again:
                nodes.append(
                    Keep(stage=i, option=getattr(kept[2], "name", "") if kept[2] is not self._plain(i) else "")
                )
                m, i = m - kept[1], i + 1
            else:
                assert k is not None, "the table promised a plan here"
                nodes.append(Checkpoint(inside=self.stretch(m, i, k)))
                m, i = m - int(self.output_slots[k]), k
        return nodes

    def _plain(self, stage: int):
        return self.sizes.chain.stages[stage]

    def _best_keep(self, m: int, i: int, j: int):
        best, least = None, np.inf
        for keep in self.keeps(i, j):
            seconds, saved, way = keep
            if m < max(self.slots(self.sizes.keep_need(i, j, way)), saved):
                continue
            total = self._value(m - saved, i + 1, j) + seconds
            if total < least:
                best, least = keep, total
        return best, least

    def _best_checkpoint(self, m: int, i: int, j: int):
        distances = np.arange(1, j - i)
        if not len(distances):
            return None, np.inf
        rest = self.behind[self.offsets[j - i - distances] + i + distances, m]
        total = self.swept[self.offsets[distances] + i, m] + rest
        need = self._to_slots(self._held[j] + self._sweep[i, i + distances])
        total = np.where(need <= m, total, np.inf)
        at = int(np.argmin(total))
        return (i + 1 + at, float(total[at])) if np.isfinite(total[at]) else (None, np.inf)

    def _value(self, m: int, i: int, j: int) -> float:
        """T(m, i, j) as stored."""
        if i == j:
            return 0.0
        if j == self.sizes.num_stages:
            return float(self.to_end[i, m])
        run = self.dtype(self.run_seconds[j] - self.run_seconds[i])
        return float(self.swept[self.row(i, j), m] - run)


def most_wrong(sizes: Sizes, slot_bytes: int, sign: int) -> int:
    """How many slots rounding may add to a peak (sign 1) or take from it (sign -1), at most."""
    if slot_bytes == 1:
        return 0
    total = slot_bytes  # the need itself is rounded, and so is the number of slots asked for
    for i in range(sizes.num_stages):
        held = {sizes.output[i + 1], *(way.saved_bytes for way in (*sizes.ways(i), *sizes.ways_at_end(i)))}
        rounded = [(size + slot_bytes // 2) // slot_bytes * slot_bytes - size for size in held]
        total += max(0, *(sign * wrong for wrong in rounded))
    return -(-total // slot_bytes)
