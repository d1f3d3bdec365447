"""Fluid model of offloading, in which memory is freed as bytes leave: a dynamic program and two bounds.

The relaxation: bytes queued outward leave the memory continuously, bytes owed inward arrive continuously. Walking
along the chain, the state is (bytes kept for good, bytes still queued outward when the forward is here, bytes that
must already have come back when the backward is here); the backward is walked in reversed time, where fetching looks
like sending. At each stage one decides whether what the stage before left is moved, and, in the combined problem, how
far to sweep before keeping an output again (after Beaumont, Eyraud-Dubois, Shilova, "Efficient combination of
rematerialization and offloading for training DNNs", 2021, called POFO). The redone part costs what the nested table
says for the memory that remains.

    stall before a stage    max(0, need + kept + queued + input - budget) / bandwidth
    queued'                 max(0, queued + moved input - bandwidth (f + stall))
    owed'                   max(0, owed - bandwidth (b + stall)) + moved input

Rounding states down makes the value without checkpoints a lower bound for moving (`offload_bound`); rounding to the
nearest makes a good first guess. Cost: O(L n^3) without checkpoints, O(L R n^3) with runs of up to R stages, n levels
per state. Known limits: one way to keep each stage; no latency; guesses must be judged by the simulator.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from memfit.plan.problem.sizes import Sizes
from memfit.plan.recompute.nested_table import NestedTable
from memfit.records.plan import Checkpoint, Keep, Link, Node

MOST_RUN = 32
GOLDEN = 0.6180339887498949


@dataclass(frozen=True, slots=True)
class _Move:
    """One way to go on from a boundary."""

    end: int
    swept: bool
    moved: bool


class FluidProgram:
    """The filled program of one chain, link and budget."""

    def __init__(
        self, sizes: Sizes, link: Link, budget_bytes: int, *, levels: int, table: NestedTable | None, round_down: bool
    ) -> None:
        self.sizes, self.link, self.table = sizes, link, table
        self.inside_bytes = budget_bytes - sizes.base_bytes
        self.levels, self.round_down = levels, round_down
        self.level_bytes = max(self.inside_bytes, 1) / (levels - 1)
        self._amounts = np.arange(levels) * self.level_bytes
        count = sizes.num_stages
        shape = (levels, levels, levels)
        self.value: dict[tuple[int, bool], np.ndarray] = {}
        self.chosen: dict[tuple[int, bool], np.ndarray] = {}
        self.moves: dict[tuple[int, bool], list[_Move]] = {}
        self._terms: dict[tuple[int, int, bool], tuple[float, int, int, float]] = {}
        self.value[count, False] = self._turn(shape)
        for i in range(count - 1, -1, -1):
            for bare in (False, True) if i > 0 and table is not None else (False,):
                self._fill(i, bare, shape)

    def _turn(self, shape: tuple[int, int, int]) -> np.ndarray:
        """What is still owed must come in; a guess also waits for what is queued to leave."""
        owed = self._amounts / self.link.in_bytes_per_second
        queued = 0.0 if self.round_down else self._amounts / self.link.out_bytes_per_second
        return np.broadcast_to(owed[None, None, :] + np.reshape(queued, (1, -1, 1)), shape).copy()

    def _fill(self, i: int, bare: bool, shape: tuple[int, int, int]) -> None:
        best, chosen = np.full(shape, inf), np.zeros(shape, dtype=np.int32)
        moves = list(self._moves(i, bare))
        for number, move in enumerate(moves):
            total = self._after(i, bare, move)
            better = total < best
            best[better], chosen[better] = total[better], number
        self.value[i, bare], self.chosen[i, bare], self.moves[i, bare] = best, chosen, moves

    def _moves(self, i: int, bare: bool):
        for moved in (False, True) if self._input_bytes(i, bare) else (False,):
            yield _Move(i + 1, False, moved)
            if self.table is not None:
                for end in range(i + 1, min(self.sizes.num_stages, i + 1 + MOST_RUN)):
                    if self.sizes.joined[i, end]:
                        yield _Move(end, True, moved)

    def _input_bytes(self, i: int, bare: bool) -> int:
        if i == 0:
            return 0
        return self.sizes.output[i] if bare else self.sizes.chain.stages[i - 1].saved_bytes

    def _level(self, amounts: np.ndarray) -> np.ndarray:
        levels = amounts / self.level_bytes
        return (np.floor(levels + 1e-9) if self.round_down else np.rint(levels)).astype(np.int64)

    def _kept_levels(self, i: int, size: int) -> int:
        """Levels that a kept value takes; a guess rounds so that errors along the chain cancel."""
        return int(size / self.level_bytes + (0.0 if self.round_down else (i * GOLDEN) % 1.0))

    # ---- one move for all states at once ----------------------------------------------------------------------

    def _after(self, i: int, bare: bool, move: _Move) -> np.ndarray:
        size = self._input_bytes(i, bare)
        kept, queued, owed = self._amounts[:, None], self._amounts[None, :], self._amounts[None, :]
        go_seconds, go_stall, go_ok = self._forward(i, move, size, kept, queued)
        back_seconds, back_ok = self._backward(i, move, size, kept, owed)
        sent = size if move.moved else 0
        left = np.maximum(0.0, queued + sent - self.link.out_bytes_per_second * (go_seconds + go_stall))
        come = np.maximum(0.0, owed - self.link.in_bytes_per_second * back_seconds) + sent
        more = 0 if move.moved else self._kept_levels(i, size)
        last = self.levels - 1
        kept_at = np.arange(self.levels) + more
        left_at, come_at = self._level(left), self._level(come)
        bad_go, bad_back = ~go_ok | (left_at > last), ~back_ok | (come_at > last)
        following = self.value[move.end, move.swept]
        total = following[
            np.minimum(kept_at, last)[:, None, None],
            np.minimum(left_at, last)[:, :, None],
            np.minimum(come_at, last)[:, None, :],
        ]
        total = total + (go_seconds + np.where(bad_go, inf, go_stall))[:, :, None]
        total = total + np.where(bad_back, inf, back_seconds)[:, None, :]
        total[kept_at > last] = inf
        return total

    def _forward(self, i: int, move: _Move, size: int, kept: np.ndarray, queued: np.ndarray):
        """(seconds, stall, whether it can be at all) of the forward part."""
        seconds, first, later, worst = self._forward_terms(i, move)
        out = self.link.out_bytes_per_second
        stall = np.maximum(0.0, (kept + queued + size - self.inside_bytes) / out + worst)
        need = max(first + size, later + (0 if move.moved else size))
        ok = np.broadcast_to(need + kept <= self.inside_bytes + 1e-6, (self.levels, self.levels))
        return seconds, stall, ok

    def _forward_terms(self, i: int, move: _Move) -> tuple[float, int, int, float]:
        """(seconds, need of the first stage, largest need of the others, largest of need / bandwidth - time before)."""
        key = (i, move.end, move.swept)
        if key not in self._terms:
            stages, out = self.sizes.chain.stages, self.link.out_bytes_per_second
            if not move.swept:
                first = stages[i].saved_bytes + stages[i].forward_transient_bytes
                self._terms[key] = (stages[i].forward_seconds, first, 0, first / out)
            else:
                stage, index = stages[move.end - 1], move.end - 1
                need = stage.output_bytes + stage.forward_transient_bytes
                if index == i:
                    self._terms[key] = (stage.sweep_seconds, need, 0, need / out)
                else:
                    seconds, first, later, worst = self._forward_terms(i, _Move(index, True, False))
                    need += self.sizes.output[index]
                    worst = max(worst, need / out - seconds)
                    self._terms[key] = (seconds + stage.sweep_seconds, first, max(later, need), worst)
        return self._terms[key]

    def _backward(self, i: int, move: _Move, size: int, kept: np.ndarray, owed: np.ndarray):
        """(seconds with stalls, whether it can be at all) of the backward part, in reversed time."""
        if move.swept:
            return self._redone(i, move, size)
        stage, sizes = self.sizes.chain.stages[i], self.sizes
        need = stage.saved_bytes + stage.backward_transient_bytes + sizes.gradient[i] + sizes.gradient[i + 1]
        need += sizes.after[i]
        over = need + kept + owed + size - self.inside_bytes
        stall = np.maximum(0.0, over / self.link.in_bytes_per_second)
        ok = np.broadcast_to(need + kept + size <= self.inside_bytes + 1e-6, (self.levels, self.levels))
        return stage.backward_seconds + stall, ok

    def _redone(self, i: int, move: _Move, size: int):
        assert self.table is not None
        slots = ((self.inside_bytes - self._amounts - size) // self.table.slot_bytes).astype(np.int64)
        row = self.table.swept[self.table.row(i, move.end)]
        run = float(self.sizes.sweep_seconds[move.end] - self.sizes.sweep_seconds[i])
        seconds = np.where(slots >= 0, row[np.clip(slots, 0, self.table.num_slots)] - run, inf)
        ok = np.isfinite(seconds)
        wide = (self.levels, self.levels)
        return np.broadcast_to(np.where(ok, seconds, 0.0)[:, None], wide), np.broadcast_to(ok[:, None], wide)

    # ---- reading ---------------------------------------------------------------------------------------------

    @property
    def seconds(self) -> float:
        """The value at the start."""
        return float(self.value[0, False][0, 0, 0])

    def nodes(self) -> tuple[Node, ...] | None:
        """The guess: nodes with their moves; None when the relaxation finds nothing."""
        if not np.isfinite(self.seconds):
            return None
        parts: list[tuple[int, _Move, int]] = []
        i, bare, state = 0, False, (0, 0, 0)
        while i < self.sizes.num_stages:
            move = self.moves[i, bare][int(self.chosen[i, bare][state])]
            size = self._input_bytes(i, bare)
            parts.append((i, move, self._free_slots(state[0], size)))
            state = self._next_state(i, bare, move, state)
            i, bare = move.end, move.swept
        moved = [move.moved for _, move, _ in parts[1:]] + [False]
        return tuple(self._node(*part, offload) for part, offload in zip(parts, moved, strict=True))

    def _free_slots(self, kept_level: int, size: int) -> int:
        if self.table is None:
            return 0
        return int((self.inside_bytes - self._amounts[kept_level] - size) // self.table.slot_bytes)

    def _node(self, i: int, move: _Move, slots: int, offload: bool) -> Node:
        if not move.swept:
            return Keep(stage=i, offload=offload)
        assert self.table is not None
        inside = self.table.stretch(min(slots, self.table.num_slots), i, move.end)
        return Checkpoint(inside=inside, offload=offload)

    def _next_state(self, i: int, bare: bool, move: _Move, state: tuple[int, int, int]) -> tuple[int, int, int]:
        size = self._input_bytes(i, bare)
        sent = size if move.moved else 0
        amounts = self._amounts[list(state)]
        kept, queued, owed = (np.full((self.levels, self.levels), amount) for amount in amounts)
        seconds, stall, _ = self._forward(i, move, size, kept, queued)
        back, _ = self._backward(i, move, size, kept, owed)
        at = state[0], 0
        left = max(0.0, amounts[1] + sent - self.link.out_bytes_per_second * (seconds + float(stall[at])))
        come = max(0.0, amounts[2] - self.link.in_bytes_per_second * float(back[at])) + sent
        more = 0 if move.moved else self._kept_levels(i, size)
        left_at, come_at = self._level(np.array([left, come]))
        return min(self.levels - 1, state[0] + more), int(left_at), int(come_at)


# ---- bounds ----------------------------------------------------------------------------------------------------


def offload_bound(sizes: Sizes, link: Link, budget_bytes: int, levels: int = 32) -> float:
    """No plan that keeps every stage and moves some of what they leave is faster."""
    plain = sum(stage.forward_seconds + stage.backward_seconds for stage in sizes.chain.stages)
    fluid = FluidProgram(sizes, link, budget_bytes, levels=levels, table=None, round_down=True).seconds
    bound = max(plain, fluid, fraction_bound(sizes, link, budget_bytes)) + sizes.chain.update_seconds
    return bound * (1.0 - 1e-12)  # sums in another order than the replay's


def fraction_bound(sizes: Sizes, link: Link, budget_bytes: int) -> float:
    """The same for values that may be moved in parts, without the update.

    Bytes above the budget at some stage must have left before it, one byte after the other from the end of the first
    stage on, and must come back after it, before the backward of the second stage. The forward's stalls and the
    backward's are different seconds, so they add up. A round trip of all these bytes is a bound as well.
    """
    stages = sizes.chain.stages
    inside = budget_bytes - sizes.base_bytes
    plain = sum(stage.forward_seconds + stage.backward_seconds for stage in stages)
    held = 0
    before, after = 0.0, 0.0
    forward_stall = backward_stall = trip = 0.0
    both_ways = 1 / link.out_bytes_per_second + 1 / link.in_bytes_per_second
    ends = stages[0].forward_seconds + sum(stage.backward_seconds for stage in stages[:2])
    for i, stage in enumerate(stages):
        over = held + stage.saved_bytes + stage.forward_transient_bytes - inside
        forward_stall = max(forward_stall, over / link.out_bytes_per_second - before)
        trip = max(trip, ends + over * both_ways + stage.forward_seconds) if i and over > 0 else trip
        need = stage.saved_bytes + stage.backward_transient_bytes + sizes.gradient[i] + sizes.gradient[i + 1]
        over = held + need + sizes.after[i] - inside
        trip = max(trip, ends + over * both_ways) if i and over > 0 else trip
        backward_stall = max(backward_stall, over / link.in_bytes_per_second - after)
        held += stage.saved_bytes
        before += stage.forward_seconds if i else 0.0
        after += stage.backward_seconds if i else 0.0
    return max(plain + forward_stall + backward_stall, trip)
