"""Integer linear program for allocation and schedule together, on chains of a few layers.

Every layer has a forward and a backward, every boundary a transfer in each direction; x[l, p] says that layer l lies on
rank p, and cut[l] that a transfer follows layer l. The constraints of `scipy_schedule` hold between operations that
share a rank (same[l, m]) or a pair of ranks, switched on by big numbers; products of a switch with the throughput or
with a count of copies are linearised. Layers that follow each other on one rank run back to back, as one stage. Memory
is that of the other planners: copies of kept bytes and received inputs, weights, buffers of each cut, working memory.

Exact up to the solver's tolerance when it ends in time, strongly NP-hard; the answer is scheduled and replayed again
by others. Ranks are alike, weights are flushed, stages keep everything.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable

from memfit.plan.pipeline.case import PipelineCase, ProposedStage

MOST_LAYERS = 8
SECONDS = 90.0

Row = dict[Hashable, float]


class _Model:
    """Named variables with bounds, and rows of which each is at most a number."""

    def __init__(self) -> None:
        self.index: dict[Hashable, int] = {}
        self.high: list[float] = []
        self.integral: list[int] = []
        self.rows: list[tuple[Row, float]] = []

    def new(self, name: Hashable, high: float, *, whole: bool = False) -> Hashable:
        """One more variable, from zero on."""
        self.index[name] = len(self.high)
        self.high.append(high)
        self.integral.append(int(whole))
        return name

    def at_most(self, row: Row, bound: float) -> None:
        """One more constraint."""
        self.rows.append((row, bound))

    def maximise(self, name: Hashable, seconds: float) -> tuple[dict[Hashable, float] | None, bool]:
        """Ask HiGHS; the values, and whether they were proved to be the best."""
        import numpy
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import coo_array

        entries = [(n, self.index[key], value) for n, (row, _) in enumerate(self.rows) for key, value in row.items()]
        numbers, indices, values = zip(*entries, strict=True)
        matrix = coo_array((values, (numbers, indices)), shape=(len(self.rows), len(self.high))).tocsr()
        objective = numpy.zeros(len(self.high))
        objective[self.index[name]] = -1.0
        bounds = Bounds(numpy.zeros(len(self.high)), numpy.array(self.high))  # pyright: ignore[reportArgumentType]
        upper = numpy.array([bound for _, bound in self.rows])
        answer = milp(
            objective, constraints=LinearConstraint(matrix, ub=upper), bounds=bounds,  # pyright: ignore[reportArgumentType]
            integrality=numpy.array(self.integral), options={"time_limit": seconds, "mip_rel_gap": 1e-6},
        )  # fmt: skip
        if answer.x is None:
            return None, False
        return {key: float(answer.x[place]) for key, place in self.index.items()}, answer.status == 0


def joint_allocation(case: PipelineCase, seconds: float = SECONDS) -> tuple[tuple[ProposedStage, ...] | None, bool]:
    """Stages with their ranks, and whether the solver proved that no allocation is faster."""
    program = _Joint(case)
    program.build()
    values, is_proved = program.model.maximise("rho", seconds)
    if values is None or values["rho"] <= 0:
        return None, is_proved
    return program.stages(values), is_proved


class _Joint:
    """The program of one case; times are in units of all work, bytes in units of the memory."""

    def __init__(self, case: PipelineCase) -> None:
        self.case, self.model = case, _Model()
        self.layers, self.ranks = range(case.num_layers), range(case.num_ranks)
        self.unit = sum(x.forward_seconds + x.backward_seconds for x in case.chain.layers)
        self.limit = float(case.limits_bytes[0])
        self.most = 2.0 * case.num_ranks + 2
        """Bound on shifts and copies."""

    def build(self) -> None:
        """All variables and constraints."""
        model = self.model
        longest = max(x.forward_seconds + x.backward_seconds for x in self.case.chain.layers) / self.unit
        self.fastest = min(float(self.case.num_ranks), 1 / longest)
        model.new("rho", self.fastest)
        self._allocation()
        for kind, layer in self._tasks():
            model.new(("tau", kind, layer), 1.0)
            model.new(("h", kind, layer), self.most if (kind, layer) != ("F", 0) else 0.0, whole=True)
        model.at_most({("tau", "F", 0): 1.0}, 0.0)
        for last in self.layers[:-1]:
            self._product(("send", last), ("cut", last))
            model.at_most(self._length("S", last), 1.0)  # a transfer is over before the next one of its cut
        self._chain()
        self._conflicts()
        self._memory()

    def _tasks(self) -> list[tuple[str, int]]:
        found = [(kind, layer) for kind in "FB" for layer in self.layers]
        return found + [(kind, layer) for kind in "SR" for layer in self.layers[:-1]]

    def _product(self, name: Hashable, switch: Hashable) -> None:
        """name = rho where the switch is on, else zero."""
        model = self.model
        model.new(name, self.fastest)
        model.at_most({name: 1.0, "rho": -1.0}, 0.0)
        model.at_most({name: 1.0, switch: -self.fastest}, 0.0)
        model.at_most({"rho": 1.0, name: -1.0, switch: self.fastest}, self.fastest)

    # ---- who is where ------------------------------------------------------------------------------------------

    def _allocation(self) -> None:
        model = self.model
        for layer, rank in itertools.product(self.layers, self.ranks):
            model.new(("x", layer, rank), 1.0 if layer or rank == 0 else 0.0, whole=True)
        for layer in self.layers:
            every: Row = {("x", layer, rank): 1.0 for rank in self.ranks}
            model.at_most(every, 1.0)
            model.at_most(dict.fromkeys(every, -1.0), -1.0)
        for first, second in itertools.combinations(self.layers, 2):
            self._same(first, second)
        for last in self.layers[:-1]:
            model.new(("cut", last), 1.0, whole=True)
            both: Row = {("cut", last): 1.0, ("same", last, last + 1): 1.0}
            model.at_most(both, 1.0)
            model.at_most(dict.fromkeys(both, -1.0), -1.0)
            if not self.case.can_cut(last):
                model.at_most({("cut", last): 1.0}, 0.0)
        for rank in self.ranks:
            row: Row = {("x", layer, rank): self._load(layer) for layer in self.layers}
            self._load_row(rank, row)

    def _load(self, layer: int) -> float:
        own = self.case.chain.layers[layer]
        return (own.forward_seconds + own.backward_seconds) / self.unit

    def _load_row(self, rank: int, row: Row) -> None:
        """rho times the load of a rank is at most one: the products rho x are variables of their own."""
        products: Row = {}
        for (_, layer, _), load in ((key, value) for key, value in row.items() if isinstance(key, tuple)):
            self._product(("rx", layer, rank), ("x", layer, rank))
            products["rx", layer, rank] = load
        self.model.at_most(products, 1.0)

    def _same(self, first: int, second: int) -> None:
        """Whether two layers share a rank, exactly."""
        model = self.model
        model.new(("same", first, second), 1.0, whole=True)
        for rank in self.ranks:
            mine, other = ("x", first, rank), ("x", second, rank)
            model.at_most({mine: 1.0, other: 1.0, ("same", first, second): -1.0}, 1.0)
            model.at_most({mine: 1.0, other: -1.0, ("same", first, second): 1.0}, 1.0)

    def same(self, first: int, second: int) -> Row:
        """same[first, second] as part of a row; a layer shares a rank with itself."""
        return {} if first == second else {("same", min(first, second), max(first, second)): 1.0}

    # ---- when --------------------------------------------------------------------------------------------------

    def _length(self, kind: str, layer: int) -> Row:
        own = self.case.chain.layers[layer]
        if kind in "FB":
            return {"rho": (own.forward_seconds if kind == "F" else own.backward_seconds) / self.unit}
        return {("send", layer): self.case.link_seconds(layer) / self.unit}

    def _chain(self) -> None:
        """Along the micro-batch; where there is no cut, the next layer of the stage follows at once."""
        order = [task for layer in self.layers for task in (("F", layer), ("S", layer))][:-1]
        order += [task for layer in reversed(self.layers) for task in (("B", layer), ("R", layer - 1))][:-1]
        for before, following in itertools.pairwise(order):
            row = self._starts(before, 1.0) | self._length(*before) | self._starts(following, -1.0)
            self.model.at_most(row, 0.0)
            boundary = before[1] if before[0] in "SR" else following[1]
            if {before[0], following[0]} & {"S", "R"}:
                back: Row = {key: -value for key, value in row.items()}
                self.model.at_most({**back, ("cut", boundary): -self.most - 1}, 0.0)

    def _starts(self, task: tuple[str, int], sign: float) -> Row:
        return {("tau", *task): sign, ("h", *task): sign}

    def _conflicts(self) -> None:
        """One at a time on a rank, and on the link of a pair of ranks."""
        compute = [(kind, layer) for kind in "FB" for layer in self.layers]
        for one, other in itertools.combinations(compute, 2):
            self._one_at_a_time(one, other, self.same(one[1], other[1]), 0.0 if one[1] != other[1] else 1.0)
        transfers = [(kind, layer) for kind in "SR" for layer in self.layers[:-1]]
        for one, other in itertools.combinations(transfers, 2):
            if self.case.link.full_duplex and (one[0] != other[0]):
                continue
            if one[1] == other[1]:
                self._one_at_a_time(one, other, {("cut", one[1]): 1.0}, 0.0)
            else:
                self._one_at_a_time(one, other, self._same_pair(one[1], other[1]), 0.0)

    def _same_pair(self, first: int, second: int) -> Row:
        """Whether two cuts lie between the same two ranks."""
        name = ("pair", min(first, second), max(first, second))
        if name not in self.model.index:
            first, second = name[1], name[2]
            self.model.new(name, 1.0)
            straight = {**self.same(first, second), **self.same(first + 1, second + 1)}
            crossed = {**self.same(first, second + 1), **self.same(first + 1, second)}
            for way in (straight, crossed):
                missing = 2 - len(way)  # a layer shares a rank with itself
                self.model.at_most(
                    {**way, ("cut", first): 1.0, ("cut", second): 1.0, name: -1.0}, 3.0 - missing
                )  # fmt: skip
        return {name: 1.0}

    def _one_at_a_time(self, one: tuple[str, int], other: tuple[str, int], switch: Row, constant: float) -> None:
        """y says that `one` comes first within the period; without the switch nothing is asked."""
        y = self.model.new(("y", one, other), 1.0, whole=True)
        off = 0.0 if constant else 2.0
        strong = {key: off * value for key, value in switch.items()}
        row: Row = {("tau", *one): 1.0, ("tau", *other): -1.0, y: 1.0}
        self.model.at_most(_added(_added(row, self._length(*one)), strong), 1.0 + off)
        row = {("tau", *other): 1.0, ("tau", *one): -1.0, y: -1.0}
        self.model.at_most(_added(_added(row, self._length(*other)), strong), off)

    # ---- memory ------------------------------------------------------------------------------------------------

    def _memory(self) -> None:
        """At the start of every forward, on its rank: all that the layers of the rank hold."""
        for at in self.layers:
            row: Row = {}
            constant = 0.0
            self.model.new(("working", at), 1.0)
            row["working", at] = 1.0
            for layer in self.layers:
                constant += self._layer_bytes(row, layer, at)
            self.model.at_most(row, 1.0 - constant + 1e-9)

    def _layer_bytes(self, row: Row, layer: int, at: int) -> float:
        """Add what one layer holds on the rank of `at`; returns the constant part."""
        own, case = self.case.chain.layers[layer], self.case
        same, alone = self.same(layer, at), layer == at
        weights = (own.parameter_bytes + own.gradient_bytes + own.optimizer_bytes) / self.limit
        if layer == 0 and case.receives_all:
            weights += case.num_micro_batches * case.input_bytes(0) / self.limit
        working = own.transient_bytes / self.limit
        constant = weights if alone else 0.0
        for key in same:
            row[key] = row.get(key, 0.0) + weights
        self.model.at_most({**dict.fromkeys(same, working), ("working", at): -1.0}, -working if alone else 0.0)
        received = case.input_bytes(layer)
        kept = own.saved_bytes + (received if layer == 0 and not case.receives_all else 0)
        self._held(row, ("kept", layer, at), layer, at, kept / self.limit, same)
        num_buffers = case.num_micro_batches if case.receives_all else 2
        if layer:
            behind = {**same, ("cut", layer - 1): 1.0}
            if not case.receives_all:  # else it lies in the buffer
                self._held(row, ("received", layer, at), layer, at, received / self.limit, behind)
            self._buffers(row, ("in", layer, at), num_buffers * received / self.limit, behind)
        if layer + 1 < case.num_layers:
            size = num_buffers * own.output_bytes / self.limit
            self._buffers(row, ("out", layer, at), size, {**same, ("cut", layer): 1.0})
        return constant

    def _held(self, row: Row, name: Hashable, layer: int, at: int, size: float, switches: Row) -> None:
        """size times the copies of a layer at the start of the forward of `at`, where all switches are on."""
        if not size:
            return
        model = self.model
        model.new(name, size * (self.most + 1))
        row[name] = row.get(name, 0.0) + 1.0
        count: Row = {("h", "B", layer): size, ("h", "F", layer): -size, name: -1.0}
        bound = 0.0
        bound -= size if layer == at else self._before(count, ("F", layer), ("F", at), size)
        bound -= self._before(count, ("B", layer), ("F", at), -size)
        large = size * (self.most + 1)
        for key in switches:
            count[key] = count.get(key, 0.0) + large
        model.at_most(count, bound + large * len(switches))

    def _before(self, row: Row, one: tuple[str, int], other: tuple[str, int], factor: float) -> float:
        """Add factor * [one before other]; returns the constant part."""
        if ("y", one, other) in self.model.index:
            row["y", one, other] = row.get(("y", one, other), 0.0) + factor
            return 0.0
        row["y", other, one] = row.get(("y", other, one), 0.0) - factor
        return factor

    def _buffers(self, row: Row, name: Hashable, size: float, switches: Row) -> None:
        if not size:
            return
        self.model.new(name, size)
        row[name] = row.get(name, 0.0) + 1.0
        need = dict.fromkeys(switches, size)
        self.model.at_most({**need, name: -1.0}, size * (len(switches) - 1))

    # ---- the answer --------------------------------------------------------------------------------------------

    def stages(self, values: dict[Hashable, float]) -> tuple[ProposedStage, ...]:
        """Stages of consecutive layers, ranks numbered as they come."""
        ranks = [max(self.ranks, key=lambda rank, own=layer: values["x", own, rank]) for layer in self.layers]
        names: dict[int, int] = {}
        found, first = [], 0
        for layer in self.layers:
            if layer + 1 == self.case.num_layers or ranks[layer + 1] != ranks[layer]:
                rank = names.setdefault(ranks[layer], len(names))
                found.append(ProposedStage(first, layer, rank, self.case.plain_choice(first, layer)))
                first = layer + 1
        return tuple(found)


def _added(row: Row, more: Row) -> Row:
    return {key: row.get(key, 0.0) + more.get(key, 0.0) for key in {**row, **more}}
