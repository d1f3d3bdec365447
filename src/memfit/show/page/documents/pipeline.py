"""Document of a pipeline plan: its promise, the schedule of a step, the memory of every rank over time and by cause."""

from __future__ import annotations

import numpy as np

from memfit.records.pipeline import PipelinePlan, PipelineStage, RankCurve
from memfit.show.as_json import plain
from memfit.show.page.documents.document import Body, Document, codes, numbers
from memfit.units import format_bytes, format_ratio, format_seconds

MOST_EVENTS = 60_000
"""A step with more operations has no chart of its schedule; the memory over time is drawn for any number."""
MOST_CELLS = 40_000
FEWEST_COLUMNS, MOST_COLUMNS = 48, 240
"""Columns of the heat map of ranks and time."""
KINDS = ("forward", "backward", "weight", "send", "send back")


def pipeline_document(plan: PipelinePlan) -> Document:
    """Everything the page draws of a pipeline plan."""
    cut = plan.cut
    title = f"{plan.chain.target or 'the chain'} on {cut.num_ranks} ranks"
    body: Body = {
        "sentence": pipeline_sentence(plan),
        "planner": plan.planner,
        "schedule": "an order of its own" if cut.schedule == "custom" else cut.schedule,
        "fits": plan.fits,
        "num_micro_batches": cut.num_micro_batches,
        "micro_batch_size": plan.chain.micro_batch_size,
        "period_seconds": plan.period_seconds,
        "lower_bound_seconds": plan.lower_bound_seconds,
        "optimal_among": plan.optimal_among,
        "step_seconds": plan.step.seconds,
        "idle_shares": list(plan.step.idle_shares),
        "weight_rule": plan.weight_rule,
        "source": plan.chain.source,
        "time_source": plan.chain.time_source,
        "link": plain(plan.link),
        "stages": [_stage(plan, index, stage) for index, stage in enumerate(cut.stages)],
        "ranks": [_rank(plan, index) for index in range(len(plan.ranks))],
        "fullest_rank": plan.fullest_rank,
        "reasons": list(plan.reasons),
        "baselines": plain(plan.baselines),
        "notes": list(plan.notes),
        "gantt": _gantt(plan),
        "heat": _heat(plan),
    }
    return Document(kind="pipeline", title=title, body=body)


def pipeline_sentence(plan: PipelinePlan) -> str:
    """The time of a step, how long ranks wait, what the fullest one holds, and whether all fit."""
    step, full = plan.step, plan.ranks[plan.fullest_rank]
    idle = sum(step.idle_shares) / max(len(step.idle_shares), 1)
    over = [rank.rank for rank in plan.ranks if not rank.fits]
    limit = "" if full.limit_bytes is None else f" of {format_bytes(full.limit_bytes)}"
    fits = "every rank fits" if not over else f"ranks above their limit: {', '.join(map(str, over))}"
    return (
        f"A step of {plan.cut.num_micro_batches} micro-batches takes {format_seconds(step.seconds)}, ranks idle "
        f"{format_ratio(idle)} of it; rank {full.rank} is the fullest with {format_bytes(full.total_bytes)}{limit}, "
        f"and {fits} (sizes {plan.chain.source}, times {plan.chain.time_source})."
    )


def _rank(plan: PipelinePlan, index: int) -> Body:
    rank = plan.ranks[index]
    simulated = plan.step.peak_bytes[index] if index < len(plan.step.peak_bytes) else None
    return {
        "rank": rank.rank,
        "limit_bytes": rank.limit_bytes,
        "total_bytes": rank.total_bytes,
        "simulated_bytes": simulated,
        "fits": rank.fits,
        "parts": plain(rank.parts),
        "in_flight": list(rank.in_flight),
    }


def _stage(plan: PipelinePlan, index: int, stage: PipelineStage) -> Body:
    layers, is_last = plan.chain.layers, index + 1 == len(plan.cut.stages)
    return {
        "rank": stage.rank,
        "num_replicas": stage.num_replicas,
        "first_layer": stage.first_layer,
        "last_layer": stage.last_layer,
        "first_name": layers[stage.first_layer].name,
        "last_name": layers[stage.last_layer].name,
        "seconds": stage.choice.forward_seconds + stage.choice.backward_seconds,
        "held_bytes": stage.choice.held_bytes,
        "sent_bytes": None if is_last else layers[stage.last_layer].output_bytes,
        "in_flight": stage.in_flight,
        "choice": stage.choice.name,
    }


def _gantt(plan: PipelinePlan) -> Body | None:
    """What every rank and link does, one bar for each operation; None where there are too many to draw."""
    events = plan.step.events
    if len(events) > MOST_EVENTS:
        return None
    ranks = [f"rank {rank}" for rank in range(plan.cut.num_ranks)]
    links = sorted({event.resource for event in events} - set(ranks), key=_link_order)
    rows = [row for rank in ranks for row in (rank, *(link for link in links if _link_order(link)[0] == int(rank[5:])))]
    return {
        "rows": rows,
        "row": codes([event.resource for event in events], rows),
        "kind": codes([event.kind for event in events], KINDS),
        "stage": numbers([event.stage for event in events]),
        "micro_batch": numbers([event.micro_batch for event in events]),
        "start": numbers([event.start_seconds for event in events]),
        "seconds": numbers([event.seconds for event in events]),
    }


def _link_order(resource: str) -> tuple[int, int]:
    """The two ranks of 'link 0-1'; the lower one decides below which rank it is drawn."""
    first, _, second = resource.removeprefix("link ").partition("-")
    return min(int(first), int(second)), max(int(first), int(second))


def _heat(plan: PipelinePlan) -> Body:
    """The highest bytes of every rank in equal stretches of the step."""
    num_ranks = max(len(plan.step.curves), 1)
    columns = int(np.clip(MOST_CELLS // num_ranks, FEWEST_COLUMNS, MOST_COLUMNS))
    edges = np.linspace(0.0, plan.step.seconds, columns + 1)
    cells = [value for curve in plan.step.curves for value in highest_between(curve, edges)]
    return {"columns": columns, "ranks": [curve.rank for curve in plan.step.curves], "bytes": numbers(cells)}


def highest_between(curve: RankCurve, edges: np.ndarray) -> list[int]:
    """The most that a step curve holds between each edge and the next; what holds at an edge counts on both sides."""
    seconds, sizes = np.asarray(curve.seconds), np.asarray(curve.num_bytes)
    first = np.maximum(np.searchsorted(seconds, edges[:-1], side="right") - 1, 0)
    last = np.maximum(np.searchsorted(seconds, edges[1:], side="right"), first + 1)
    return [int(sizes[begin:end].max()) for begin, end in zip(first, last, strict=True)]
