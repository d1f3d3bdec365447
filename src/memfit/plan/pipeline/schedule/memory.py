"""Memory of every rank, split by cause, and the sentences that say why one rank is the fullest.

What a rank holds depends on the order of its own work alone, for it does one thing at a time: a micro-batch is held
from the start of its forward to the end of its backward (of the weights, where that comes later). Gradients are counted
from the start of the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memfit.plan.pipeline.case import PipelineCase
from memfit.plan.pipeline.schedule.schedules import Orders, RankAction
from memfit.records.pipeline import PipelineCut, PipelineStage, RankMemory
from memfit.records.plan import Part
from memfit.units import format_bytes

CAUSES = (
    "weights", "gradients", "optimizer state", "weight versions", "activations in flight", "outputs of the last stage",
    "buffers of transfers", "working memory",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class WorstMoment:
    """The worst moment of a rank's order."""

    held_bytes: int
    working_bytes: int
    copies: dict[int, int]
    """Of every stage at that moment."""
    most: dict[int, int]
    """Of every stage at any moment."""


def held_by(case: PipelineCase, stages: Sequence[PipelineStage], order: Sequence[RankAction]) -> WorstMoment:
    """Walk one rank's order and find its worst moment."""
    split = {(action.stage, action.micro_batch) for action in order if action.kind == "W"}
    copies: dict[int, int] = {}
    most: dict[int, int] = {}
    worst = WorstMoment(0, 0, {}, {})
    held = 0
    for stage, kind, k in order:
        own = stages[stage]
        size = case.copy_bytes(own.first_layer, own.last_layer, own.choice)
        if kind == "F":
            copies[stage] = copies.get(stage, 0) + 1
            most[stage] = max(most.get(stage, 0), copies[stage])
            held += size
        working = own.choice.working_bytes
        if held + working > worst.held_bytes + worst.working_bytes:
            worst = WorstMoment(held, working, dict(copies), {})
        if kind == "W" or (kind in "BI" and (stage, k) not in split):
            copies[stage] -= 1
            held -= size
    return WorstMoment(worst.held_bytes, worst.working_bytes, worst.copies, most)


def rank_memories(case: PipelineCase, cut: PipelineCut, orders: Orders) -> tuple[RankMemory, ...]:
    """What every rank holds at its worst moment, by cause."""
    return tuple(_rank_memory(case, cut, rank, orders[rank]) for rank in range(cut.num_ranks))


def _rank_memory(case: PipelineCase, cut: PipelineCut, rank: int, order: Sequence[RankAction]) -> RankMemory:
    worst = held_by(case, cut.stages, order)
    causes: dict[str, int] = dict.fromkeys(CAUSES, 0)
    for index in cut.stages_of(rank):
        stage = cut.stages[index]
        first, last, copies = stage.first_layer, stage.last_layer, worst.copies.get(index, 0)
        parts = case.weight_parts(first, last, copies)
        for cause, size in parts.items():
            causes[cause] += size
        causes["buffers of transfers"] += case.buffer_bytes(first, last)
        stashed = parts["weights"] if case.weight_rule == "stash" else 0
        held = copies * (case.copy_bytes(first, last, stage.choice) - stashed)
        if last == case.num_layers - 1:
            outputs = min(held, copies * case.chain.layers[last].output_bytes)
            causes["outputs of the last stage"] += outputs
            held -= outputs
        causes["activations in flight"] += held
    causes["working memory"] = worst.working_bytes
    return RankMemory(
        rank=rank, limit_bytes=case.limits_bytes[rank],
        parts=tuple(Part(name=name, num_bytes=size) for name, size in causes.items() if size),
        in_flight=tuple(worst.most.get(index, 0) for index in cut.stages_of(rank)),
    )  # fmt: skip


def fixed_bytes(case: PipelineCase, cut: PipelineCut, rank: int) -> int:
    """What a rank holds all the time: everything but micro-batches in flight and working memory."""
    return sum(
        case.base_bytes(own.first_layer, own.last_layer, own.choice) - own.choice.working_bytes
        for own in (cut.stages[index] for index in cut.stages_of(rank))
    )


# ---- why -------------------------------------------------------------------------------------------------------


def why_fullest(case: PipelineCase, cut: PipelineCut, ranks: Sequence[RankMemory]) -> tuple[int, tuple[str, ...]]:
    """The fullest rank, and what sets it apart from the emptiest one, largest cause first."""
    busy = [own for own in ranks if own.parts]
    fullest = max(busy, key=lambda own: (own.total_bytes, -own.rank))
    emptiest = min(busy, key=lambda own: (own.total_bytes, -own.rank))
    largest = max(fullest.parts, key=lambda part: part.num_bytes)
    share = largest.num_bytes / fullest.total_bytes if fullest.total_bytes else 0.0
    sentences = [
        f"rank {fullest.rank} holds {format_bytes(fullest.total_bytes)}, {share:.0%} of it {largest.name}; "
        + _copies_sentence(case, cut, fullest)
    ]
    if emptiest.rank != fullest.rank:
        sentences.append(_difference_sentence(fullest, emptiest))
        sentences += _flight_sentence(fullest, emptiest)
    return fullest.rank, tuple(sentences)


def _copies_sentence(case: PipelineCase, cut: PipelineCut, rank: RankMemory) -> str:
    said = []
    for index, copies in zip(cut.stages_of(rank.rank), rank.in_flight, strict=True):
        stage = cut.stages[index]
        size = case.copy_bytes(stage.first_layer, stage.last_layer, stage.choice)
        word = "micro-batch" if copies == 1 else "micro-batches"
        said.append(f"stage {index} keeps {copies} {word} of {format_bytes(size)}")
    return ", ".join(said)


def _difference_sentence(fullest: RankMemory, emptiest: RankMemory) -> str:
    other = {part.name: part.num_bytes for part in emptiest.parts}
    apart = [(part.num_bytes - other.get(part.name, 0), part.name) for part in fullest.parts]
    more = [f"{format_bytes(size)} more {name}" for size, name in sorted(apart, reverse=True) if size > 0][:3]
    return f"against rank {emptiest.rank} ({format_bytes(emptiest.total_bytes)}): " + ", ".join(more)


def _flight_sentence(fullest: RankMemory, emptiest: RankMemory) -> list[str]:
    sizes = {part.name: part.num_bytes for part in emptiest.parts}
    apart = {part.name: part.num_bytes - sizes.get(part.name, 0) for part in fullest.parts}
    is_cause = max(apart, key=lambda name: apart[name]) == "activations in flight"
    if not is_cause or sum(fullest.in_flight) <= sum(emptiest.in_flight):
        return []
    return [
        "the earlier a stage lies in the chain, the longer its micro-batches wait for their backward, and the more of "
        "them are alive at once"
    ]
