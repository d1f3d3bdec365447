"""Integer linear program for the schedule of a given allocation: the shortest period, several stages on a rank allowed.

Divided by the period, the program is linear in the throughput rho = 1 / T, which it maximises. For every operation i it
has the start tau within the period and the shift h in whole periods; for every two operations of one resource a y that
says which comes first. Constraints:

1. along the chain:   tau_i + h_i + d_i rho <= tau_j + h_j
2. one at a time:     tau_i + d_i rho <= tau_j + 1 - y,   tau_j + d_j rho <= tau_i + y
3. loads:             rho * (sum of d on a resource) <= 1
4. memory, at the start of every forward s on a rank, where peaks occur:
   fixed + sum over its stages of copy * (h_B - h_F + [F before or at s] - [B before s]) <= limit

Solved by HiGHS as scipy ships it. Exact for the allocation up to the solver's tolerance; links are those of pairs of
ranks, so that two cuts between the same ranks share one. Strongly NP-hard in general, below a second for ten stages.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from memfit.errors import MissingExtra
from memfit.plan.pipeline.case import PipelineCase, ProposedStage
from memfit.records.pipeline import OperationKind, PeriodicOperation

SECONDS = 20.0
"""After which the solver's best answer so far is taken."""


@dataclass(frozen=True, slots=True)
class Task:
    """One operation that the program places."""

    kind: OperationKind
    stage: int
    seconds: float
    resource: str


@dataclass(frozen=True, slots=True)
class PlacedSchedule:
    """The answer of the solver."""

    period_seconds: float
    operations: tuple[PeriodicOperation, ...]
    is_proved: bool
    """False when the time ran out before the solver could prove that nothing is shorter."""


def require_scipy() -> None:
    """Refuse where scipy is missing, with what to install."""
    from importlib.util import find_spec

    if find_spec("scipy") is None:
        raise MissingExtra("this planner needs scipy", hint="pip install 'memfit[ilp]'")


def tasks_of(case: PipelineCase, stages: Sequence[ProposedStage]) -> list[Task]:
    """Operations of one micro-batch in their order; nothing is sent between stages on one rank."""
    tasks: list[Task] = []
    for index, stage in enumerate(stages):
        if index and stages[index - 1].rank != stage.rank:
            tasks.append(_transfer(case, stages, index - 1, "send"))
        tasks.append(Task("forward", index, stage.choice.forward_seconds, f"rank {stage.rank}"))
    for index, stage in reversed(list(enumerate(stages))):
        tasks.append(Task("backward", index, stage.choice.backward_seconds, f"rank {stage.rank}"))
        if index and stages[index - 1].rank != stage.rank:
            tasks.append(_transfer(case, stages, index - 1, "send back"))
    return tasks


def _transfer(case: PipelineCase, stages: Sequence[ProposedStage], stage: int, kind: OperationKind) -> Task:
    pair = sorted((stages[stage].rank, stages[stage + 1].rank))
    name = f"link {pair[0]}-{pair[1]}" + (f" {kind}" if case.link.full_duplex else "")
    return Task(kind, stage, case.link_seconds(stages[stage].last), name)


def best_schedule(
    case: PipelineCase,
    stages: Sequence[ProposedStage],
    *,
    most_copies: Sequence[int] | None = None,
    seconds: float = SECONDS,
) -> PlacedSchedule | None:
    """The shortest period of an allocation within the memory; None when no schedule fits.

    `most_copies` bounds the copies of every stage as well.
    """
    require_scipy()
    tasks = tasks_of(case, stages)
    program = _Program(tasks)
    program.add_chain()
    program.add_resources()
    fixed = _fixed_bytes(case, stages)
    for rank in sorted({stage.rank for stage in stages}):
        program.add_memory(case, stages, rank, case.limits_bytes[rank] - fixed[rank])
    if most_copies is not None:
        program.add_copies(most_copies)
    return program.solve(seconds)


def _fixed_bytes(case: PipelineCase, stages: Sequence[ProposedStage]) -> dict[int, int]:
    """Base bytes of every rank; of working memory only the largest counts, for one stage runs at a time."""
    fixed: dict[int, int] = {}
    working: dict[int, int] = {}
    for s in stages:
        base = case.base_bytes(s.first, s.last, s.choice) - s.choice.working_bytes
        fixed[s.rank] = fixed.get(s.rank, 0) + base
        working[s.rank] = max(working.get(s.rank, 0), s.choice.working_bytes)
    return {rank: fixed[rank] + working[rank] for rank in fixed}


class _Program:
    """Rows of the program: variables are rho, then tau and h of every task, then y of every pair on one resource."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.tasks = tasks
        self.num_tasks = len(tasks)
        self.pairs = {
            pair: 1 + 2 * self.num_tasks + index
            for index, pair in enumerate(
                (i, j)
                for i, j in itertools.combinations(range(self.num_tasks), 2)
                if tasks[i].resource == tasks[j].resource
            )
        }
        self.num_variables = 1 + 2 * self.num_tasks + len(self.pairs)
        self.rows: list[dict[int, float]] = []
        self.upper: list[float] = []
        self.scale = max(task.seconds for task in tasks) or 1.0

    def tau(self, task: int) -> int:
        return 1 + task

    def shift(self, task: int) -> int:
        return 1 + self.num_tasks + task

    def length(self, task: int) -> float:
        """Seconds over the scale, which keeps the numbers of the program near one."""
        return self.tasks[task].seconds / self.scale

    def add(self, row: dict[int, float], upper: float) -> None:
        """One constraint: the sum over the row is at most `upper`."""
        self.rows.append(row)
        self.upper.append(upper)

    def add_chain(self) -> None:
        """Each task starts after the end of the one before it."""
        for i in range(self.num_tasks - 1):
            row = {self.tau(i): 1.0, self.shift(i): 1.0, 0: self.length(i), self.tau(i + 1): -1.0}
            self.add({**row, self.shift(i + 1): -1.0}, 0.0)

    def add_resources(self) -> None:
        """One task at a time on each resource, and no more work than a period has."""
        for (i, j), y in self.pairs.items():
            self.add({self.tau(i): 1.0, 0: self.length(i), self.tau(j): -1.0, y: 1.0}, 1.0)
            self.add({self.tau(j): 1.0, 0: self.length(j), self.tau(i): -1.0, y: -1.0}, 0.0)
        for resource in {task.resource for task in self.tasks}:
            own = [i for i, task in enumerate(self.tasks) if task.resource == resource]
            self.add({0: sum(self.length(i) for i in own)}, 1.0)

    def place(self, kind: OperationKind, stage: int) -> int:
        """The number of a task."""
        return next(i for i, task in enumerate(self.tasks) if task.kind == kind and task.stage == stage)

    def before(self, i: int, j: int, factor: float, row: dict[int, float]) -> float:
        """Add factor * [i before j] to a row; returns the constant part."""
        if i < j:
            row[self.pairs[i, j]] = row.get(self.pairs[i, j], 0.0) + factor
            return 0.0
        row[self.pairs[j, i]] = row.get(self.pairs[j, i], 0.0) - factor
        return factor

    def add_memory(self, case: PipelineCase, stages: Sequence[ProposedStage], rank: int, left_bytes: int) -> None:
        """At the start of every forward of a rank, what all of its stages hold stays within what is left."""
        own = [index for index, stage in enumerate(stages) if stage.rank == rank]
        unit = float(max(abs(left_bytes), 1))
        for at in own:
            row, constant = {}, 0.0
            start = self.place("forward", at)
            for index in own:
                stage = stages[index]
                copy = case.copy_bytes(stage.first, stage.last, stage.choice) / unit
                constant += self._held(row, index, start, copy)
            self.add(row, left_bytes / unit - constant + 1e-9)

    def _held(self, row: dict[int, float], stage: int, start: int, copy: float) -> float:
        """Copies of a stage at the start of a task, times `copy`; returns the constant part."""
        forward, backward = self.place("forward", stage), self.place("backward", stage)
        row[self.shift(backward)] = row.get(self.shift(backward), 0.0) + copy
        row[self.shift(forward)] = row.get(self.shift(forward), 0.0) - copy
        constant = copy if forward == start else self.before(forward, start, copy, row)
        return constant + self.before(backward, start, -copy, row)

    def add_copies(self, most_copies: Sequence[int]) -> None:
        """Bounds on the copies of every stage."""
        for stage, most in enumerate(most_copies):
            row: dict[int, float] = {}
            constant = self._held(row, stage, self.place("forward", stage), 1.0)
            self.add(row, most - constant)

    def solve(self, seconds: float) -> PlacedSchedule | None:
        """Ask HiGHS; then the integers are fixed and the times found again, which takes rounding away."""
        found = self._ask(seconds)
        if found is None:
            return None
        values, is_proved = found
        fixed = {index: round(values[index]) for index in range(1 + self.num_tasks, self.num_variables)}
        again = self._ask(seconds, fixed)
        values = again[0] if again is not None else values
        period = self.scale / values[0]
        operations = tuple(
            PeriodicOperation(
                kind=task.kind, stage=task.stage, start_seconds=max(0.0, values[self.tau(i)]) * period,
                seconds=task.seconds, shift=round(values[self.shift(i)]),
            )
            for i, task in enumerate(self.tasks)
        )  # fmt: skip
        return PlacedSchedule(period, operations, is_proved)

    def _ask(self, seconds: float, fixed: dict[int, int] | None = None) -> tuple[list[float], bool] | None:
        import numpy
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import coo_array

        entries = [(number, index, value) for number, row in enumerate(self.rows) for index, value in row.items()]
        numbers, indices, values = zip(*entries, strict=True)
        matrix = coo_array((values, (numbers, indices)), shape=(len(self.rows), self.num_variables)).tocsr()
        low = numpy.zeros(self.num_variables)
        high = numpy.ones(self.num_variables)
        high[0] = 1.0 / max(self.length(i) for i in range(self.num_tasks)) if self.scale else 1.0
        high[1 + self.num_tasks : 1 + 2 * self.num_tasks] = self.num_tasks
        high[self.tau(0)] = high[self.shift(0)] = 0.0
        for index, value in (fixed or {}).items():
            low[index] = high[index] = value
        integral = numpy.zeros(self.num_variables)
        integral[1 + self.num_tasks :] = 0 if fixed else 1
        objective = numpy.zeros(self.num_variables)
        objective[0] = -1.0
        answer = milp(
            objective, constraints=LinearConstraint(matrix, ub=numpy.array(self.upper)),  # pyright: ignore[reportArgumentType]
            bounds=Bounds(low, high),  # pyright: ignore[reportArgumentType]
            integrality=integral, options={"time_limit": seconds, "mip_rel_gap": 1e-7},
        )  # fmt: skip
        if answer.x is None or answer.x[0] <= 0:
            return None
        return [float(value) for value in answer.x], answer.status == 0
