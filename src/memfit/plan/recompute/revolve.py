"""Revolve: reverses l equal steps with c snapshots and the fewest repeated steps; also with a disk.

Griewank and Walther, "Algorithm 799: revolve" (ACM TOMS 2000). A snapshot is the state before a step; the first state
is one of the c. Besides the advances counted here every step is run once more with everything kept, and then
reversed.

    t(l, c) = min over k of k + t(l - k, c - 1) + t(k, c),   t(1, c) = 0,   t(l, 1) = l (l - 1) / 2
    closed form: t(l, c) = r l - C(c + r, c + 1), with r the least number such that C(c + r, c) >= l

With a disk (after Aupy, Herrmann, Hovland, Robert, "Optimal multistage algorithm for adjoint computation", 2016, here
in the nested form): snapshots on disk do not count among the c, but writing and reading each take time during which
nothing else runs. Whatever is stored stays until its part has been reversed.

Closed form: O(r). Schedules: O(l) with the closed form; O(l^2 c) with a disk. Known limits: equal steps, equal
snapshots.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import comb, inf
from typing import Literal

from memfit.plan.case import Case, PlanProposal, judge
from memfit.plan.recompute.rules import legal_runs, runs_to_nodes
from memfit.records.plan import Checkpoint, Keep, Node


def advances(num_steps: int, num_snapshots: int) -> int:
    """The fewest repeated steps, by the closed form."""
    repeats = 0
    while comb(num_snapshots + repeats, num_snapshots) < num_steps:
        repeats += 1
    return repeats * num_steps - comb(num_snapshots + repeats, num_snapshots + 1)


def first_stretch(num_steps: int, num_snapshots: int) -> int:
    """How far to advance before the next snapshot."""
    if num_snapshots == 1:
        return num_steps - 1
    goal = advances(num_steps, num_snapshots)
    low, high = _around(num_steps, num_snapshots)
    for k in range(low, high + 1):
        if k + advances(num_steps - k, num_snapshots - 1) + advances(k, num_snapshots) == goal:
            return k
    raise AssertionError("a best first stretch lies between the binomials")


def _around(num_steps: int, num_snapshots: int) -> tuple[int, int]:
    """Best first stretches lie between two neighbouring binomials; the end steps are cut off."""
    repeats = 0
    while comb(num_snapshots + repeats, num_snapshots) < num_steps:
        repeats += 1
    low = comb(num_snapshots + repeats - 2, num_snapshots) if repeats >= 2 else 1
    return max(1, low), max(1, min(num_steps - 1, comb(num_snapshots + repeats - 1, num_snapshots)))


def revolve_nodes(first: int, end: int, num_snapshots: int) -> tuple[Node, ...]:
    """The schedule for stages `first` to `end - 1` as nested checkpoints."""
    nodes: list[Node] = []
    while end - first > 1:
        k = first_stretch(end - first, num_snapshots)
        nodes.append(Checkpoint(inside=revolve_nodes(first, first + k, num_snapshots)))
        first, num_snapshots = first + k, max(1, num_snapshots - 1)
    return (*nodes, Keep(stage=first))


def revolve(case: Case) -> PlanProposal:
    """The schedule with the most snapshots that fits, or else the smallest there is.

    Stages that may run only once are kept, and each run of stages between them is reversed on its own. A run that still
    does not fit is reversed from its first state, so that nothing within it is held while later runs are computed.
    """
    tried: list[tuple[int, PlanProposal]] = []
    for num_snapshots, nodes in every_schedule(case):
        proposal = PlanProposal(nodes, notes=(f"{num_snapshots} snapshots",))
        peak_bytes = case.sizes.peak_bytes(nodes)
        if peak_bytes <= case.budget_bytes:
            return proposal
        tried.append((peak_bytes, proposal))
    return min(tried, key=lambda pair: pair[0])[1]


def every_schedule(case: Case) -> Iterator[tuple[int, tuple[Node, ...]]]:
    """All schedules for a chain with their numbers of snapshots, the most first; then all with runs in checkpoints."""
    for wrapped in (False, True):
        for num_snapshots in range(len(case.chain.stages), 0, -1):
            yield num_snapshots, _reversed_runs(case, num_snapshots, wrapped=wrapped)


def _reversed_runs(case: Case, num_snapshots: int, *, wrapped: bool) -> tuple[Node, ...]:
    """Every run of stages with its own schedule; all but the last run within a checkpoint, if `wrapped`."""
    runs = legal_runs(case.chain, 0, len(case.chain.stages))
    nodes: list[Node] = []
    for run in runs:
        inside = revolve_nodes(run[0], run[-1] + 1, num_snapshots)
        alone = run is runs[-1] or not wrapped or not case.chain.stages[run[0]].recomputable
        nodes.extend(inside if alone else (Checkpoint(inside=inside),))
    return tuple(nodes)


# ---- with a disk ---------------------------------------------------------------------------------------------

Place = Literal["memory", "disk"]


@dataclass(frozen=True, slots=True)
class Action:
    """One thing a schedule does: advance from a state to another, store or load a state, reverse a step."""

    what: Literal["advance", "store", "load", "reverse"]
    at: int
    to: int = 0
    place: Place = "memory"


@dataclass(frozen=True)
class DiskCosts:
    """Seconds of one forward step, of writing and of reading one snapshot."""

    step_seconds: float = 1.0
    write_seconds: float = 1.0
    read_seconds: float = 1.0


class DiskRevolve:
    """Best schedules with `num_snapshots` in memory, the first state among them, and a disk without limit."""

    def __init__(self, costs: DiskCosts) -> None:
        self.costs = costs
        self._best = cache(self._search)

    def seconds(self, num_steps: int, num_snapshots: int) -> float:
        """Time for repeated steps, writes and reads."""
        return self._start(num_steps, num_snapshots)[0]

    def _start(self, num_steps: int, num_snapshots: int) -> tuple[float, Place]:
        """Where the first state goes, and the time that takes altogether."""
        written = self.costs.write_seconds + self._best(num_steps, num_snapshots, "disk")[0]
        return min((self._best(num_steps, num_snapshots, "memory")[0], "memory"), (written, "disk"))

    def _search(self, steps: int, free: int, held: Place) -> tuple[float, int, Place]:
        """(seconds, first stretch, where the next state goes); a state held on disk is there and loaded at first.

        `free` counts memory snapshots, the held one included when it is in memory.
        """
        if steps == 1:
            return 0.0, 0, "memory"
        best: tuple[float, int, Place] = (inf, 0, "memory")
        if held == "disk" and free >= 1:  # copy it into memory as well and forget the disk
            best = (self._best(steps, free, "memory")[0], 0, "memory")
        rest_free = free - 1 if held == "memory" else free
        again = self.costs.read_seconds if held == "disk" else 0.0
        for k in range(1, steps):
            here = k * self.costs.step_seconds + again + self._best(k, free, held)[0]
            if rest_free >= 1:
                best = min(best, (here + self._best(steps - k, rest_free, "memory")[0], k, "memory"))
            written = self.costs.write_seconds + self._best(steps - k, rest_free, "disk")[0]
            best = min(best, (here + written, k, "disk"))
            if steps - k == 1:  # a single step needs no snapshot of its own
                best = min(best, (here, k, "memory"))
        return best

    def schedule(self, num_steps: int, num_snapshots: int) -> list[Action]:
        """The actions of a best schedule; storing the first state comes first."""
        _, place = self._start(num_steps, num_snapshots)
        return [Action("store", 0, place=place), *self._actions(0, num_steps, num_snapshots, place)]

    def _actions(self, at: int, steps: int, free: int, held: Place) -> list[Action]:
        if steps == 1:
            return [Action("reverse", at)]
        _, k, place = self._best(steps, free, held)
        if k == 0:
            return [Action("store", at), *self._actions(at, steps, free, "memory")]
        rest_free = free - 1 if held == "memory" else free
        actions = [Action("advance", at, at + k)]
        if steps - k > 1:
            actions.append(Action("store", at + k, place=place))
        actions += self._actions(at + k, steps - k, rest_free, place)
        return [*actions, Action("load", at, place=held), *self._actions(at, k, free, held)]


def disk_revolve(case: Case) -> PlanProposal | None:
    """Revolve within equal runs, with the outputs of the runs moved over the link: the fastest that fits."""
    count = len(case.chain.stages)
    if case.link is None:
        return None
    best: tuple[float, tuple[Node, ...]] | None = None
    for num_runs in range(1, count + 1):
        size = -(-count // num_runs)
        for num_snapshots in (count, size, 4, 2, 1):
            nodes = _runs_on_disk(case, size, num_snapshots)
            found = _quick_seconds(case, nodes)
            if found is not None and (best is None or found < best[0]):
                best = (found, nodes)
    return None if best is None else PlanProposal(best[1])


def _runs_on_disk(case: Case, size: int, num_snapshots: int) -> tuple[Node, ...]:
    """Runs of at most `size` stages whose outputs go to disk; the last run stays, and so does what runs only once."""
    count = len(case.chain.stages)
    nodes: list[Node] = []
    for node in runs_to_nodes(case.chain, range(size, count, size)):
        if isinstance(node, Checkpoint):
            first = node.inside[0]
            assert isinstance(first, Keep)
            inside = revolve_nodes(first.stage, first.stage + len(node.inside), num_snapshots)
            nodes.append(Checkpoint(inside=inside, offload=True))
        else:
            nodes.append(node)
    return (*nodes[: _tail(nodes)], *_tail_nodes(case, count - (len(nodes) - _tail(nodes)), num_snapshots))


def _tail(nodes: list[Node]) -> int:
    """Where the kept stages at the end begin."""
    first = len(nodes)
    while first and isinstance(nodes[first - 1], Keep):
        first -= 1
    return first


def _tail_nodes(case: Case, first: int, num_snapshots: int) -> list[Node]:
    """The stages that stay, each run of them with its own schedule."""
    runs = legal_runs(case.chain, first, len(case.chain.stages))
    return [node for run in runs for node in revolve_nodes(run[0], run[-1] + 1, num_snapshots)]


def _quick_seconds(case: Case, nodes: tuple[Node, ...]) -> float | None:
    outcome = judge(case, PlanProposal(nodes))
    return None if outcome is None else outcome.replayed.seconds
