"""Chooses, for given nodes, which of their saved tensors are moved over the link.

Each set is judged by the waits and fetches of `transfers` and the clock of the simulator. Found by

- `exact`: all sets, for up to `EXACT_UP_TO` movable values;
- `prefixes`: what the relaxation to fractions suggests. If values could be moved in parts, one would move the earliest,
  which live longest: a prefix of the chain. Every prefix is tried, the last value whole;
- `improve`: flips, exchanges of near neighbours and shifts of the whole set, as long as one of them helps.

Choosing the set is strongly NP-hard (Beaumont, Eyraud-Dubois, Shilova, "Optimal GPU-CPU offloading strategies for deep
neural network training", 2020). One judgement costs O(number of operations).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations
from math import inf

from memfit.plan.case import link_holds
from memfit.plan.problem.program import Program
from memfit.plan.problem.simulator import clock_seconds
from memfit.plan.problem.transfers import Room
from memfit.records.plan import Link

EXACT_UP_TO = 12
REACH = 4
"""How far apart two values may be to be exchanged."""

Chosen = tuple[int, ...]


class MoveSearch:
    """Judges sets of one program, link and budget, each once."""

    def __init__(self, program: Program, link: Link, budget_bytes: int) -> None:
        self.program, self.link = program, link
        self.room = Room.of(program, budget_bytes)
        self._known: dict[Chosen, float] = {}

    @property
    def candidates(self) -> list[int]:
        """Nodes that leave something."""
        return [unit.node for unit in self.program.movables if unit.num_bytes > 0]

    def seconds(self, chosen: Chosen) -> float:
        """Seconds of a set; infinite when it does not fit."""
        if chosen not in self._known:
            self._known[chosen] = self._judge(chosen)
        return self._known[chosen]

    def _judge(self, chosen: Chosen) -> float:
        if not link_holds(self.link, self.program, list(chosen)):
            return inf
        transfers = self.room.transfers(chosen)
        return inf if transfers is None else clock_seconds(self.program, transfers, self.link)

    def best(self, sets: Iterable[Chosen]) -> Chosen | None:
        """The fastest of some sets, smaller ones first among equals; None when none fits."""
        least: tuple[float, int, Chosen] | None = None
        for chosen in sets:
            mark = (self.seconds(chosen), len(chosen), chosen)
            if mark[0] < inf and (least is None or mark < least):
                least = mark
        return None if least is None else least[2]

    def exact(self) -> Chosen | None:
        """The best of all sets."""
        nodes = self.candidates
        return self.best(chosen for count in range(len(nodes) + 1) for chosen in combinations(nodes, count))

    def prefixes(self) -> Chosen | None:
        """The best prefix of the chain."""
        nodes = self.candidates
        return self.best(tuple(nodes[:count]) for count in range(len(nodes) + 1))

    def repair(self, chosen: Chosen) -> Chosen | None:
        """The set with the earliest others added until it fits; None when even all do not."""
        whole = set(chosen)
        for extra in (None, *self.candidates):
            whole |= set() if extra is None else {extra}
            if self.seconds(tuple(sorted(whole))) < inf:
                return tuple(sorted(whole))
        return None

    def improve(self, chosen: Chosen, most_rounds: int = 50) -> Chosen:
        """Walk downhill until no neighbour is faster."""
        for _ in range(most_rounds):
            better = self.best((chosen, *self._neighbours(chosen)))
            if better is None or self.seconds(better) >= self.seconds(chosen):
                return chosen
            chosen = better
        return chosen

    def _neighbours(self, chosen: Chosen) -> Iterator[Chosen]:
        inside = set(chosen)
        nodes = self.candidates
        outside = [node for node in nodes if node not in inside]
        for node in nodes:
            yield tuple(sorted(inside ^ {node}))
        for gone in chosen:
            for new in outside:
                if abs(gone - new) <= REACH:
                    yield tuple(sorted(inside - {gone} | {new}))
        for step in (-1, 1):
            shifted = {node + step for node in inside} & set(nodes)
            yield tuple(sorted(shifted))

    def search(self, seeds: Iterable[Chosen]) -> Chosen | None:
        """All sets when there are few; otherwise from the best prefix and the given seeds downhill."""
        if len(self.candidates) <= EXACT_UP_TO:
            return self.exact()
        starts = [start for start in (self.prefixes(), tuple(self.candidates), *seeds) if start is not None]
        fitting = {start for start in starts if self.seconds(start) < inf}
        return self.best(self.improve(start) for start in sorted(fitting))
