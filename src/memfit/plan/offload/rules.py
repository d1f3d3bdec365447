"""Rules of published offloading systems: what they move, when they wait and when they fetch.

- offload all: everything, with the best waits and fetches there are;
- vDNN (Rhu et al., 2016) all / conv: the input of every layer, or of convolutions only; each layer waits until the
  input of the one before has left; fetched while the layer before the reader runs;
- vDNN++ (Shriram, Garg, Kulkarni, 2019): everything, without waiting after each layer;
- SuperNeurons (Wang et al., 2018): convolutions are kept and moved when memory runs short, cheap layers are recomputed;
- AutoSwap (Zhang et al., 2019): by size times idle time, until the peak fits;
- TFLMS (Le et al., 2018): what is read again only many operations later, fetched a few operations ahead.

These are the rules as far as a chain of stages can express them: pooling, fragmentation and compression of the
originals play no part. O(n^2) each.
"""

from __future__ import annotations

import statistics

from memfit.plan.case import Case, PlanProposal, with_moves
from memfit.plan.offload.moves import MoveSearch
from memfit.plan.problem.program import Program, lower
from memfit.plan.problem.simulator import simulate
from memfit.plan.problem.transfers import Room, Transfers, fetch_ahead, wait_for_each
from memfit.records.plan import Chain, Checkpoint, Keep, Node

TFLMS_AHEAD = 3
HEAVY_KINDS = ("conv", "linear", "attention", "lstm")


def offload_all(case: Case) -> PlanProposal | None:
    """Move everything."""
    return PlanProposal(with_moves(case.kept, set(range(len(case.kept) - 1)))) if case.link else None


def vdnn_all(case: Case) -> PlanProposal | None:
    """Move every layer's input, one layer after the other."""
    proposal = offload_all(case)
    return None if proposal is None else PlanProposal(proposal.nodes, rule=_layer_by_layer)


def vdnn_conv(case: Case) -> PlanProposal | None:
    """Move the inputs of convolutions only."""
    chosen = {index - 1 for index, stage in enumerate(case.chain.stages) if stage.kind == "conv" and index}
    if case.link is None or not chosen:
        return None
    return PlanProposal(with_moves(case.kept, chosen), rule=_layer_by_layer)


def vdnn_plus_plus(case: Case) -> PlanProposal | None:
    """Move everything, wait only where memory asks for it, fetch one layer ahead."""
    proposal = offload_all(case)
    return None if proposal is None else PlanProposal(proposal.nodes, rule=_one_ahead)


def super_neurons(case: Case) -> PlanProposal | None:
    """Recompute runs of cheap layers; keep the heavy ones and move as many, from the first on, as memory asks for."""
    if case.link is None:
        return None
    heavy = heavy_stages(case.chain)
    nodes = _cheap_runs(case.chain, heavy)
    search = MoveSearch(lower(case.chain, nodes), case.link, case.budget_bytes)
    movable = [index for index, node in enumerate(nodes[:-1]) if isinstance(node, Keep) and node.stage in heavy]
    for count in range(len(movable) + 1):
        if search.seconds(tuple(movable[:count])) < float("inf"):
            return PlanProposal(with_moves(nodes, set(movable[:count])))
    return None


def auto_swap(case: Case) -> PlanProposal | None:
    """Move by size times idle time until it fits."""
    program = lower(case.chain, case.kept)
    order = sorted(program.movables, key=lambda unit: -_score(program, unit.node))
    room = Room.of(program, case.budget_bytes)
    chosen: set[int] = set()
    for unit in [None, *order]:
        chosen |= {unit.node} if unit is not None else set()
        if room.transfers(tuple(sorted(chosen))) is not None:
            return PlanProposal(with_moves(case.kept, chosen)) if case.link or not chosen else None
    return None


def tflms(case: Case) -> PlanProposal | None:
    """Move what is idle for at least so many operations: the highest threshold that fits."""
    program = lower(case.chain, case.kept)
    room = Room.of(program, case.budget_bytes)
    distances = {unit.node: unit.needed_by - unit.last_read_forward for unit in program.movables}
    for threshold in sorted({*distances.values(), 10**9}, reverse=True):
        chosen = {node for node, distance in distances.items() if distance >= threshold}
        if room.transfers(tuple(sorted(chosen))) is not None:
            return PlanProposal(with_moves(case.kept, chosen), rule=_few_ahead) if case.link or not chosen else None
    return None


RULES = (offload_all, vdnn_all, vdnn_conv, vdnn_plus_plus, super_neurons, auto_swap, tflms)
"""All of them."""


def heavy_stages(chain: Chain) -> set[int]:
    """Stages of heavy kinds; where no kind is known, those slower than the median."""
    named = {index for index, stage in enumerate(chain.stages) if stage.kind in HEAVY_KINDS}
    if any(stage.kind for stage in chain.stages):
        return named
    median = statistics.median(stage.forward_seconds for stage in chain.stages)
    return {index for index, stage in enumerate(chain.stages) if stage.forward_seconds > median}


def _cheap_runs(chain: Chain, heavy: set[int]) -> tuple[Node, ...]:
    nodes: list[Node] = []
    run: list[Node] = []
    for index, stage in enumerate(chain.stages):
        cheap = index not in heavy and stage.recomputable and index < len(chain.stages) - 1
        if cheap:
            run.append(Keep(stage=index))
        if run and (not cheap or not stage.joins_next):
            nodes.append(Checkpoint(inside=tuple(run)))
            run = []
        if not cheap:
            nodes.append(Keep(stage=index))
    return tuple(nodes)


def _score(program: Program, node: int) -> float:
    unit = program.movables[node]
    starts = simulate(program).starts
    return unit.num_bytes * (starts[unit.needed_by] - starts[unit.last_read_forward + 1])


# ---- when to wait and fetch ------------------------------------------------------------------------------------


def _layer_by_layer(program: Program, chosen: list[int], budget_bytes: int) -> Transfers | None:
    transfers = _ahead(program, chosen, budget_bytes, num_ahead=1)
    if transfers is not None:
        transfers.wait_sent = wait_for_each(program, transfers.moved)
    return transfers


def _one_ahead(program: Program, chosen: list[int], budget_bytes: int) -> Transfers | None:
    return _ahead(program, chosen, budget_bytes, num_ahead=1)


def _few_ahead(program: Program, chosen: list[int], budget_bytes: int) -> Transfers | None:
    return _ahead(program, chosen, budget_bytes, num_ahead=TFLMS_AHEAD)


def _ahead(program: Program, chosen: list[int], budget_bytes: int, *, num_ahead: int) -> Transfers | None:
    """Fetch so many operations ahead, or later where memory asks for it."""
    transfers = Room.of(program, budget_bytes).transfers(chosen)
    if transfers is not None:
        late = fetch_ahead(program, transfers.moved, num_ahead)
        transfers.fetch_after = [max(pair) for pair in zip(transfers.fetch_after, late, strict=True)]
    return transfers
