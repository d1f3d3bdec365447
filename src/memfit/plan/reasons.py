"""Reasons of a plan: what sets its peak, and what each decision saves and costs."""

from __future__ import annotations

from itertools import accumulate

from memfit.plan.case import Case, PlannedOutcome, moved_nodes
from memfit.plan.offload.moves import MoveSearch
from memfit.plan.problem.checks import covers, option_of
from memfit.plan.problem.program import INPUT, Program, lower
from memfit.plan.problem.sizes import Sizes
from memfit.records.plan import Binding, Checkpoint, Decision, Keep, Node, Part

WORDS = {
    "forward": "the forward of {}",
    "sweep": "the forward of {}, whose values are not kept",
    "recompute": "the second forward of {}",
    "backward": "the backward of {}",
    "update": "the optimizer's step",
}


def least_budget_bytes(program: Program, chosen: list[int]) -> int:
    """The smallest budget in which a program holds when it moves these; equal to its peak when it moves nothing."""
    moved = [program.movables[node] for node in sorted(chosen)]
    sums = list(accumulate((unit.num_bytes for unit in moved), initial=0))
    least = 0
    for index, memory in enumerate(program.memory_bytes()):
        gone = sum(unit.last_read_forward < index for unit in moved)
        back = sum(unit.needed_by > index for unit in moved)
        least = max(least, memory - sums[min(gone, back)])
    return least


# ---- what sets the peak ----------------------------------------------------------------------------------------


def binding_of(case: Case, outcome: PlannedOutcome) -> Binding:
    """The moment of the peak, and who is alive there."""
    at = outcome.replayed.peak_at
    operation = outcome.program.operations[at]
    name = "" if operation.stage is None else case.chain.stages[operation.stage].name
    parts = _alive(case, outcome, at)
    rest = outcome.replayed.peak_bytes - sum(part.num_bytes for part in parts)
    if rest:
        parts.append(Part(name="transfers under way", num_bytes=rest))
    unavoidable = min(_unavoidable_bytes(case.sizes, operation.kind, operation.stage), outcome.replayed.peak_bytes)
    return Binding(
        step=at,
        where=WORDS[operation.kind].format(name),
        parts=tuple(sorted((part for part in parts if part.num_bytes), key=lambda part: -part.num_bytes)),
        unavoidable_bytes=unavoidable,
        a_plan_helps=outcome.replayed.peak_bytes > unavoidable,
    )


def _alive(case: Case, outcome: PlannedOutcome, at: int) -> list[Part]:
    """Parts at an operation; a moved value is left out while it is away."""
    program, fixed = outcome.program, case.chain.fixed
    alive: set[int] = set()
    for operation in program.operations[:at]:
        alive.update(operation.makes)
        alive.difference_update(operation.frees)
    alive.update(program.operations[at].makes)
    start = outcome.replayed.starts[at]
    end = start + program.operations[at].seconds
    for position, unit in enumerate(outcome.transfers.moved):
        gone = unit.last_read_forward < at and outcome.replayed.sends[position][1] <= start
        fetched = outcome.replayed.fetches[position][0]
        if gone and not (fetched <= start or fetched < end):
            alive.discard(unit.value)
    parts = [
        Part(name="parameters", num_bytes=fixed.parameter_bytes),
        Part(name="optimizer state", num_bytes=fixed.optimizer_state_bytes),
        Part(name="gradients held all the time", num_bytes=fixed.gradient_bytes),
        Part(name="other fixed bytes", num_bytes=fixed.other_bytes),
        Part(name="the batch", num_bytes=case.chain.input_bytes),
        Part(name="temporary values of the operation", num_bytes=program.operations[at].transient_bytes),
    ]
    return parts + [
        Part(name=program.values[value].label, num_bytes=program.values[value].num_bytes)
        for value in sorted(alive - {INPUT})
    ]


def _unavoidable_bytes(sizes: Sizes, kind: str, stage: int | None) -> int:
    """What this operation needs under every plan."""
    if stage is None:
        return sizes.update_bytes
    held = sizes.base_bytes + sizes.output[stage]
    ways = (*sizes.ways(stage), *sizes.ways_at_end(stage))
    if kind == "backward":
        own = min(way.saved_bytes + way.backward_transient_bytes for way in ways)
        return held + own + sizes.gradient[stage] + sizes.gradient[stage + 1] + sizes.after[stage]
    swept = sizes.output[stage + 1] + sizes.chain.stages[stage].forward_transient_bytes
    return held + min(swept, *(way.saved_bytes + way.forward_transient_bytes for way in ways))


# ---- what each decision does -----------------------------------------------------------------------------------


def decisions_of(case: Case, outcome: PlannedOutcome) -> tuple[Decision, ...]:
    """Every choice of the plan against the same plan without it, in as much more memory as that takes."""
    nodes = outcome.proposal.nodes
    found: list[Decision] = []
    for index, node in enumerate(nodes):
        first, last = covers(node)
        names = [case.chain.stages[k].name for k in range(first, last + 1)]
        stages = tuple(range(first, last + 1))
        span = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
        if isinstance(node, Checkpoint):
            plain: tuple[Node, ...] = tuple(Keep(stage=k) for k in stages[:-1])
            plain = (*plain, Keep(stage=last, offload=node.offload))
            freed = sum(case.chain.stages[k].saved_bytes for k in stages) - case.sizes.output[last + 1]
            found.append(_decision(case, outcome, f"recompute {span}", stages, freed, _replaced(nodes, index, plain)))
        elif node.option:
            stage = case.chain.stages[first]
            freed = stage.saved_bytes - option_of(stage, node.option).saved_bytes
            changed = _replaced(nodes, index, (Keep(stage=first, offload=node.offload),))
            found.append(_decision(case, outcome, f"keep {span} as {node.option}", stages, freed, changed))
        if node.offload and index < len(nodes) - 1:
            size = outcome.program.movables[index].num_bytes
            what = f"move {'the output' if isinstance(node, Checkpoint) else 'what is saved'} of {names[-1]}"
            changed = _replaced(nodes, index, (_unmoved(node),))
            found.append(_decision(case, outcome, what, stages, size, changed))
    return tuple(found)


def _replaced(nodes: tuple[Node, ...], index: int, others: tuple[Node, ...]) -> tuple[Node, ...]:
    return (*nodes[:index], *others, *nodes[index + 1 :])


def _unmoved(node: Node) -> Node:
    return Keep(stage=node.stage, option=node.option) if isinstance(node, Keep) else Checkpoint(inside=node.inside)


def _decision(
    case: Case,
    outcome: PlannedOutcome,
    what: str,
    stages: tuple[int, ...],
    freed_bytes: int,
    without: tuple[Node, ...],
) -> Decision:
    program = lower(case.chain, without)
    chosen = moved_nodes(without)
    needed = least_budget_bytes(program, chosen)
    seconds = program.compute_seconds
    if chosen and case.link is not None:
        enough = max(needed, case.budget_bytes + freed_bytes)
        seconds = MoveSearch(program, case.link, enough).seconds(tuple(chosen))
    return Decision(
        what=what,
        stages=stages,
        saved_bytes=max(0, needed - outcome.replayed.peak_bytes),
        freed_bytes=freed_bytes,
        paid_seconds=outcome.replayed.seconds - seconds,
    )
