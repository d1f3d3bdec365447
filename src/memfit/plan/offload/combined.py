"""Planner that combines recomputation and offloading: the fastest plan within a budget.

Short chains: all nested plans with all sets of moves. Longer ones: first guesses, each with its best moves, then
descent. Guesses are the best plan that only recomputes; the best that only moves; what published rules move; the best
nested plans for larger budgets, whose surplus is then moved; the dynamic program over the fluid relaxation (POFO);
everything kept; and the plan with the smallest peak. Descent changes one node at a time: keep it or recompute it, redo
a run with more or less memory, shift the end of a run, join two nodes or take one apart.

Lower bound: if at most W bytes are away at any time, the same nodes with nothing moved would fit into the budget plus
W, and W bytes must have gone out and come back one after the other, since nothing comes back before everything has
left:

    min over W of max(bound of nested plans for budget + W, first forward + W / out + W / in + last backwards)

Cost: `MOST_JUDGED` judgements of O(operations) each. Known limits: no guarantee beyond the bound for chains that are
not short; moves only what the first forward leaves.

Smallest possible peak when all saved tensors may be moved; exact for a link without limit.

Along the chain only the input of the node at hand, the node itself and, for a checkpoint, the smallest peak of
redoing it count. O(L^2) states and choices.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product
from math import inf

from memfit.plan.case import Case, PlanProposal, moved_nodes, with_moves
from memfit.plan.offload.fluid import FluidProgram
from memfit.plan.offload.moves import MoveSearch
from memfit.plan.offload.offload import offload
from memfit.plan.offload.rules import RULES
from memfit.plan.problem.checks import covers
from memfit.plan.problem.program import lower
from memfit.plan.problem.sizes import Sizes
from memfit.plan.recompute.best_known import best_recompute
from memfit.plan.recompute.nested import SLACK, LeastMemory
from memfit.plan.recompute.nested_table import NestedTable
from memfit.records.plan import Checkpoint, Keep, Link, Node

EXACT_UP_TO = 5
MOST_JUDGED = 4000
"""For chains of up to 100 stages; fewer for longer ones."""
NUM_BUDGETS = 8
POFO_WORK = 150_000_000

Nodes = tuple[Node, ...]


def combined(case: Case) -> PlanProposal | None:
    """The fastest plan found."""
    if case.link is None:
        return best_recompute(case)
    if len(case.chain.stages) <= EXACT_UP_TO:
        return _best_of_all(case, case.link)
    return _Descent(case, case.link).run()


def pofo(case: Case) -> PlanProposal | None:
    """The guess of the fluid relaxation alone, with its inner parts made smaller until it fits."""
    link = case.link
    return None if link is None else case.once("POFO", lambda: _pofo_guess(case, link))


# ---- short chains --------------------------------------------------------------------------------------------


def every_nodes(sizes: Sizes, i: int, j: int) -> Iterator[Nodes]:
    """All nested plans between two boundaries."""
    if i == j:
        yield ()
        return
    stage = sizes.chain.stages[i]
    for name, rest in product(["", *(option.name for option in stage.options)], list(every_nodes(sizes, i + 1, j))):
        yield (Keep(stage=i, option=name), *rest)
    for k in range(i + 1, j):
        if sizes.joined[i, k]:
            for inside, rest in product(list(every_nodes(sizes, i, k)), list(every_nodes(sizes, k, j))):
                yield (Checkpoint(inside=inside), *rest)


def _best_of_all(case: Case, link: Link) -> PlanProposal | None:
    best, least = None, inf
    for nodes in every_nodes(case.sizes, 0, len(case.chain.stages)):
        program = lower(case.chain, nodes)
        if program.compute_seconds >= least:
            continue
        search = MoveSearch(program, link, case.budget_bytes)
        chosen = search.exact()
        if chosen is not None and search.seconds(chosen) < least:
            best, least = with_moves(nodes, set(chosen)), search.seconds(chosen)
    return None if best is None else PlanProposal(best)


# ---- longer chains -------------------------------------------------------------------------------------------


class _Descent:
    """One search; remembers what it judged."""

    def __init__(self, case: Case, link: Link) -> None:
        self.case, self.link = case, link
        self.sizes = case.sizes
        self.known: dict[Nodes, float] = {}
        self.num_judged = 0
        self.most_judged = MOST_JUDGED * 100 // max(100, self.sizes.num_stages)
        self.bound = combined_bound(case) * (1 + 1e-9)

    def run(self) -> PlanProposal | None:
        best: Nodes | None = None
        for guess in self._guesses():
            if self.seconds(guess) < (inf if best is None else self.seconds(best)):
                best = guess
            if best is not None and self.seconds(best) <= self.bound:
                return PlanProposal(best)
        if best is None:
            return None
        while self.num_judged < self.most_judged:
            better = self._better(best)
            if better is None:
                break
            best = better
        return PlanProposal(best)

    def seconds(self, nodes: Nodes) -> float:
        """Seconds of nodes with their moves; infinite when they do not fit."""
        if nodes not in self.known:
            self.num_judged += 1
            search = MoveSearch(lower(self.case.chain, nodes), self.link, self.case.budget_bytes)
            self.known[nodes] = search.seconds(tuple(moved_nodes(nodes)))
        return self.known[nodes]

    def _guesses(self) -> Iterator[Nodes]:
        for propose in (best_recompute, offload, *RULES):
            proposal = propose(self.case)
            if proposal is not None:
                yield proposal.nodes
        for nodes in self._nested_guesses():
            search = MoveSearch(lower(self.case.chain, nodes), self.link, self.case.budget_bytes)
            start = search.prefixes()
            if start is not None:
                yield with_moves(nodes, set(search.improve(start)))
        relaxed = pofo(self.case)
        if relaxed is not None:
            yield relaxed.nodes
        least = LeastCombined(self.sizes)
        if least.peak_bytes <= self.case.budget_bytes:
            yield least.nodes()

    def _nested_guesses(self) -> Iterator[Nodes]:
        nested, low = self.case.nested, self.case.budget_bytes
        high = max(low, nested.plain.peak_bytes)
        low = max(low, nested.least.peak_bytes)
        for budget_bytes in sorted({low + (high - low) * k // NUM_BUDGETS for k in range(NUM_BUDGETS + 1)}):
            found = nested.best(budget_bytes)
            if found is not None:
                yield found.nodes

    def _better(self, nodes: Nodes) -> Nodes | None:
        """The first neighbour that is faster."""
        now = self.seconds(nodes)
        for other in _neighbours(self.sizes, nodes, self._redone):
            if self.num_judged >= self.most_judged:
                return None
            if self.seconds(other) < now - 1e-12 * now:
                return other
        return None

    def _redone(self, i: int, j: int) -> list[Nodes]:
        """Ways to redo a run, from everything kept to the smallest peak."""
        table = _small_table(self.case)
        ways: list[Nodes] = [tuple(Keep(stage=index) for index in range(i, j))]
        if table is not None:
            row = table.swept[table.row(i, j)]
            falls = [m for m in range(1, len(row)) if row[m] < row[m - 1]]
            ways += [table.stretch(m, i, j) for m in falls[:: max(1, len(falls) // 4)]]
        return ways


def _neighbours(sizes: Sizes, nodes: Nodes, redone) -> Iterator[Nodes]:
    """Plans one change away, cheap changes first."""
    for index, node in enumerate(nodes):
        before, after = nodes[:index], nodes[index + 1 :]
        if index < len(nodes) - 1:
            yield (*before, *with_moves((node,), set() if node.offload else {0}), *after)
    for index, node in enumerate(nodes):
        before, after = nodes[:index], nodes[index + 1 :]
        first, last = covers(node)
        if isinstance(node, Checkpoint):
            yield (*before, *node.inside[:-1], *with_moves(node.inside[-1:], {0} if node.offload else set()), *after)
            for inside in redone(first, last + 1):
                yield (*before, Checkpoint(inside=inside, offload=node.offload), *after)
        else:
            for option in ("", *(option.name for option in sizes.chain.stages[first].options)):
                yield (*before, Keep(stage=first, option=option, offload=node.offload), *after)
            if after and sizes.joined[first, last + 1]:
                yield (*before, Checkpoint(inside=(Keep(stage=first),), offload=node.offload), *after)
        if len(after) > 1 and sizes.joined[first, covers(after[0])[1] + 1]:
            for inside in redone(first, covers(after[0])[1] + 1):
                yield (*before, Checkpoint(inside=inside, offload=after[0].offload), *after[1:])
        if index and len(after) and isinstance(node, Checkpoint) and last > first:
            for middle in {first + 1, last, (first + last + 1) // 2}:
                for left, right in ((first, middle), (middle, last + 1)):
                    other = (middle, last + 1) if left == first else (first, middle)
                    run = Checkpoint(inside=redone(left, right)[0], offload=node.offload)
                    rest: Nodes = tuple(Keep(stage=k, offload=node.offload) for k in range(*other))
                    yield (*before, *((run, *rest) if left == first else (*rest, run)), *after)


def _small_table(case: Case) -> NestedTable | None:
    """A nested table fine enough for guesses, shared by all of them."""
    budget_bytes = min(case.budget_bytes, case.nested.plain.peak_bytes)
    inside = budget_bytes - case.sizes.base_bytes
    if inside <= 0:
        return None
    return case.nested.rough_table(inside)


def _pofo_guess(case: Case, link: Link) -> PlanProposal | None:
    """The relaxation's plan, or that for a smaller budget where it does not fit."""
    table = _small_table(case)
    count = len(case.chain.stages)
    if table is None:
        return None
    levels = max(8, min(24, round((POFO_WORK / (4 * count * min(count, 32))) ** (1 / 3))))
    for percent in (100, 95, 88, 80) if count <= 40 else (100, 90):
        inside = (case.budget_bytes - case.sizes.base_bytes) * percent // 100
        budget_bytes = case.sizes.base_bytes + inside
        program = FluidProgram(case.sizes, link, budget_bytes, levels=levels, table=table, round_down=False)
        nodes = program.nodes()
        if nodes is None:
            continue
        search = MoveSearch(lower(case.chain, nodes), link, case.budget_bytes)
        chosen = search.repair(tuple(moved_nodes(nodes)))
        if chosen is not None:
            return PlanProposal(with_moves(nodes, set(search.improve(chosen))))
    return None


def combined_bound(case: Case) -> float:
    """No nested plan with moves of what its first forward leaves is faster."""
    nested, link = case.nested, case.link
    if link is None:
        return nested.bound_seconds(case.budget_bytes)
    stages = case.chain.stages
    ends = min(way.forward_seconds for way in case.sizes.ways(0)) + case.chain.update_seconds
    ends += sum(min(way.backward_seconds for way in case.sizes.ways(i)) for i in range(min(2, len(stages))))
    both_ways = 1 / link.out_bytes_per_second + 1 / link.in_bytes_per_second
    low, high = 0, max(0, nested.plain.peak_bytes - case.budget_bytes)
    if link.capacity_bytes is not None:
        high = min(high, link.capacity_bytes)
    fewer, trip = nested.bound_seconds, lambda num_bytes: ends + num_bytes * both_ways if num_bytes else 0.0
    if fewer(case.budget_bytes + high) > trip(high):  # the link is never what holds it up
        return fewer(case.budget_bytes + high)
    for _ in range(64):  # one side falls with W, the other rises: halve until they meet
        middle = (low + high) // 2
        if high - low <= 1:
            break
        low, high = (middle, high) if fewer(case.budget_bytes + middle) > trip(middle) else (low, middle)
    between = max(fewer(case.budget_bytes + high), trip(low))
    least = min(fewer(case.budget_bytes + low), between, trip(high))
    return max(fewer(nested.plain.peak_bytes), least * (1.0 - SLACK))


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
