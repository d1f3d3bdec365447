"""Offloading planners: which saved tensors of kept stages are moved over the link, and when.

Two heuristics from relaxations of the same problem (Beaumont, Eyraud-Dubois, Shilova, 2020): the best prefix, from
moving fractions, and the set of the dynamic program in which memory is freed drop by drop; all sets for short chains;
and descent on the true simulator from both heuristics, which is what `offload` does beyond `EXACT_UP_TO` values.
"""

from __future__ import annotations

from collections.abc import Iterable

from memfit.plan.case import Case, PlanProposal, moved_nodes, with_moves
from memfit.plan.offload.fluid import FluidProgram
from memfit.plan.offload.moves import Chosen, MoveSearch
from memfit.plan.problem.program import lower
from memfit.records.plan import Node

WORK = 6_000_000


def fluid_levels(num_stages: int) -> int:
    """How many levels per state the relaxation can afford."""
    return max(16, min(48, round((WORK / num_stages) ** (1 / 3))))


def _search(case: Case) -> MoveSearch | None:
    return MoveSearch(lower(case.chain, case.kept), case.link, case.budget_bytes) if case.link else None


def _proposal(case: Case, chosen: Chosen | None) -> PlanProposal | None:
    return None if chosen is None else PlanProposal(with_moves(case.kept, set(chosen)))


def offload_prefix(case: Case) -> PlanProposal | None:
    """The best prefix of the chain."""
    search = _search(case)
    return _proposal(case, search.prefixes()) if search else None


def offload_fluid(case: Case) -> PlanProposal | None:
    """The set of the fluid relaxation; where it does not fit as it is, with the earliest others added until it does."""
    search = _search(case)
    guess = None if search is None else fluid_guess(case)
    return None if search is None or guess is None else _proposal(case, search.repair(guess))


def fluid_guess(case: Case) -> Chosen | None:
    """Which nodes the fluid relaxation moves."""
    assert case.link is not None
    levels = fluid_levels(len(case.chain.stages))
    program = FluidProgram(case.sizes, case.link, case.budget_bytes, levels=levels, table=None, round_down=False)
    nodes: tuple[Node, ...] | None = program.nodes()
    return None if nodes is None else tuple(moved_nodes(nodes))


def offload_exact(case: Case) -> PlanProposal | None:
    """The best of all sets: 2^(n - 1) of them."""
    search = _search(case)
    return _proposal(case, search.exact()) if search else None


def offload(case: Case) -> PlanProposal | None:
    """All sets for short chains, otherwise downhill from the heuristics."""
    return case.once("offload", lambda: _searched(case))


def _searched(case: Case) -> PlanProposal | None:
    search = _search(case)
    if search is None:
        return PlanProposal(case.kept) if case.sizes.peak_bytes(case.kept) <= case.budget_bytes else None
    return _proposal(case, search.search(_seeds(case)))


def _seeds(case: Case) -> Iterable[Chosen]:
    """Made only when a search asks for them."""
    guess = fluid_guess(case)
    if guess is not None:
        yield guess
