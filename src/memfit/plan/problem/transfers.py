"""Schedule of transfers: when the compute stream waits for a send, and when a fetch may start.

Sends leave in the order in which values are made, one at a time; fetches come back in the opposite order, also one at a
time. The value fetched first is the one sent last, so no fetch can start before all sends are over.

Let `excess` be the bytes above the budget at an operation if nothing had been moved, and let a value be *away* when
it has left completely and is not being fetched. Memory holds at an operation exactly when the bytes away are at least
the excess there. From this follow, without any clock:

- an operation waits until the shortest run of first sends that is large enough has left;
- a value may be fetched after the last operation that still needs it to be away, given that all values sent before it
  are away and all sent after it are not.

Waits and starts are counted in operations, not in seconds: a link that is slower than predicted costs time, never
memory. For a chosen set and these orders, waiting as little and fetching as early as this is the fastest there is:
sending or fetching earlier never hurts a later operation.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from memfit.plan.problem.program import Movable, Program


@dataclass(slots=True)
class Transfers:
    """What is moved, and the order between moves and operations."""

    moved: list[Movable]
    """In the order of sending."""
    wait_sent: list[int]
    """For each operation, how many sends must be over."""
    fetch_after: list[int]
    """For each moved value, the operation that must be over."""


@dataclass(slots=True)
class Room:
    """A program against one budget: where it is over, and by how much."""

    program: Program
    excess: list[int]

    @classmethod
    def of(cls, program: Program, budget_bytes: int) -> Room:
        return cls(program, [memory - budget_bytes for memory in program.memory_bytes()])

    def transfers(self, chosen: Sequence[int]) -> Transfers | None:
        """Waits and fetches for moving what these nodes leave; None when the budget cannot hold so."""
        moved = [self.program.movables[node] for node in sorted(chosen)]
        sums = list(accumulate((unit.num_bytes for unit in moved), initial=0))
        waits = self._waits(moved, sums)
        if waits is None:
            return None
        return Transfers(moved, waits, self._fetches(moved, sums))

    def _waits(self, moved: list[Movable], sums: list[int]) -> list[int] | None:
        turn = self.program.turn
        waits = []
        gone = 0
        back = len(moved)
        for index, excess in enumerate(self.excess):
            if index < turn:
                while gone < len(moved) and moved[gone].last_read_forward < index:
                    gone += 1
            else:
                gone = len(moved)
            while back and moved[back - 1].needed_by <= index:
                back -= 1
            count = bisect_left(sums, excess) if excess > 0 else 0
            if count > min(gone, back):
                return None
            waits.append(count)
        return waits

    def _fetches(self, moved: list[Movable], sums: list[int]) -> list[int]:
        """For each value the last operation before it is needed that those sent earlier cannot make room for alone.

        Walking through the backward, only operations that exceed all later ones matter: they stand on a stack, largest
        first, and the last of them above a size is found by halving.
        """
        turn = self.program.turn
        after = [turn - 1] * len(moved)
        places: list[int] = []
        falling: list[int] = []  # excess, negated so that it rises
        index = turn
        for position in range(len(moved) - 1, -1, -1):
            while index < moved[position].needed_by:
                while falling and -falling[-1] <= self.excess[index]:
                    falling.pop()
                    places.pop()
                falling.append(-self.excess[index])
                places.append(index)
                index += 1
            above = bisect_left(falling, -sums[position])
            if above:
                after[position] = places[above - 1]
        return after


def fetch_ahead(program: Program, moved: Sequence[Movable], num_ahead: int) -> list[int]:
    """The published rule: fetch while the operation `num_ahead` places before the reader runs."""
    return [max(program.turn - 1, unit.needed_by - 1 - num_ahead) for unit in moved]


def wait_for_each(program: Program, moved: Sequence[Movable]) -> list[int]:
    """The published rule: no operation of the forward starts before what was read by the one before it has left."""
    waits = []
    for index in range(len(program.operations)):
        waits.append(sum(unit.last_read_forward < index for unit in moved))
    return waits
