"""Interface of planners: a case goes in, a proposal comes out, the simulator replays it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, Protocol

from memfit.plan.problem.checks import check_budget, check_link
from memfit.plan.problem.program import Program, lower
from memfit.plan.problem.simulator import Replayed, simulate
from memfit.plan.problem.sizes import Sizes
from memfit.plan.problem.transfers import Room, Transfers
from memfit.plan.recompute.nested import NestedPlanner
from memfit.records.plan import Chain, Checkpoint, Keep, Link, Node

Family = Literal["checkpoint", "offload", "combined"]
"""What a planner may do: recompute, move, or both."""
TransferRule = Callable[[Program, list[int], int], Transfers | None]
"""A published rule for waits and fetches: program, chosen nodes, budget."""


@dataclass
class Case:
    """One chain, one budget, perhaps a link; what several planners need is worked out once."""

    chain: Chain
    budget_bytes: int
    link: Link | None = None
    nested: NestedPlanner = field(init=False)
    _proposals: dict[str, PlanProposal | None] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        check_budget(self.chain, self.budget_bytes)
        if self.link is not None:
            check_link(self.link)
        self.nested = NestedPlanner.of(self.chain)

    @property
    def sizes(self) -> Sizes:
        return self.nested.sizes

    def with_budget(self, budget_bytes: int) -> Case:
        """The same chain and link under another budget, sharing what is known."""
        return self.with_link(self.link, budget_bytes)

    def with_link(self, link: Link | None, budget_bytes: int) -> Case:
        """The same chain behind another link and under another budget, sharing what is known."""
        other = Case(self.chain, budget_bytes, link)
        other.nested = self.nested
        return other

    def once(self, name: str, propose: Callable[[], PlanProposal | None]) -> PlanProposal | None:
        """What a planner proposes for this case, worked out the first time: others start from it."""
        if name not in self._proposals:
            self._proposals[name] = propose()
        return self._proposals[name]

    @cached_property
    def kept(self) -> tuple[Keep, ...]:
        """Every stage kept the plain way."""
        return tuple(Keep(stage=index) for index in range(len(self.chain.stages)))


@dataclass(frozen=True, slots=True)
class PlanProposal:
    """What a planner suggests: nodes with their moves marked, and a rule of its own for transfers where it has one."""

    nodes: tuple[Node, ...]
    rule: TransferRule | None = None
    notes: tuple[str, ...] = ()


class Planner(Protocol):
    """Turns a case into a proposal; None when it finds nothing that fits."""

    @property
    def name(self) -> str: ...

    @property
    def family(self) -> Family: ...

    @property
    def nothing_because(self) -> str:
        """Why it may have nothing to propose where other planners of its family do."""
        ...

    def propose(self, case: Case) -> PlanProposal | None: ...


@dataclass(frozen=True, slots=True)
class Rule:
    """A planner made of one function."""

    name: str
    family: Family
    function: Callable[[Case], PlanProposal | None]
    nothing_because: str = "its rule fits at no setting of its own"

    def propose(self, case: Case) -> PlanProposal | None:
        """Ask the function."""
        return self.function(case)


@dataclass(frozen=True, slots=True)
class PlannedOutcome:
    """A proposal as the arbiter saw it."""

    proposal: PlanProposal
    program: Program
    transfers: Transfers
    replayed: Replayed


def moved_nodes(nodes: tuple[Node, ...]) -> list[int]:
    """Which nodes are moved; what the last one leaves is read at once and stays."""
    return [index for index, node in enumerate(nodes[:-1]) if node.offload]


def with_moves(nodes: tuple[Node, ...], chosen: set[int]) -> tuple[Node, ...]:
    """The same nodes with exactly these moved."""
    changed: list[Node] = []
    for index, node in enumerate(nodes):
        offload = index in chosen
        if isinstance(node, Keep):
            changed.append(Keep(stage=node.stage, option=node.option, offload=offload))
        else:
            changed.append(Checkpoint(inside=node.inside, offload=offload))
    return tuple(changed)


def judge(case: Case, proposal: PlanProposal) -> PlannedOutcome | None:
    """Replay a proposal; None when it does not fit into the budget or onto the link."""
    program = lower(case.chain, proposal.nodes)
    chosen = moved_nodes(proposal.nodes)
    if not link_holds(case.link, program, chosen):
        return None
    if proposal.rule is not None:
        transfers = proposal.rule(program, chosen, case.budget_bytes)
    else:
        transfers = Room.of(program, case.budget_bytes).transfers(chosen)
    if transfers is None:
        return None
    replayed = simulate(program, transfers, case.link)
    return PlannedOutcome(proposal, program, transfers, replayed) if replayed.peak_bytes <= case.budget_bytes else None


def link_holds(link: Link | None, program: Program, chosen: list[int]) -> bool:
    """Whether there is a link, and room on its other side, for what is moved."""
    if not chosen:
        return True
    if link is None:
        return False
    moved_bytes = sum(program.movables[index].num_bytes for index in chosen)
    return link.capacity_bytes is None or moved_bytes <= link.capacity_bytes
