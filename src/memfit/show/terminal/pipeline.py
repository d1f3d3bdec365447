"""Pipeline plan as text: stages, memory of every rank by cause, why one is the fullest, the schedule, other cuts.

A pipeline that was run here, in the terminal: every rank, predicted beside measured.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from memfit.records.figure import Figure
from memfit.records.pipeline import PipelineEvent, PipelinePlan, PipelineRun, PipelineStage, RankMemory, RankOutcome
from memfit.show.text_output import render, table, unwrapped_console
from memfit.units import format_bytes, format_ratio, format_seconds

CAUSES = (
    "weights", "gradients", "optimizer state", "weight versions", "activations in flight", "outputs of the last stage",
    "buffers of transfers", "working memory",
)  # fmt: skip
MOST_STAGES = 64
LONGEST_NAME = 24


def pipeline_text(plan: PipelinePlan, *, width: int = 80, color: bool = False) -> str:
    """The plan as text."""
    return render(draw_plan(plan, width), width, color)


def draw_plan(plan: PipelinePlan, width: int = 80) -> RenderableType:
    """Title, throughput, stages, ranks, reasons, schedule, baselines, notes."""
    parts: list[RenderableType] = [Text(_title(plan), style="bold"), *(Text(line) for line in _promise(plan))]
    parts += ["", _stages_table(plan)]
    parts += ["", Text("Memory of every rank", style="bold"), *_ranks_tables(plan, width)]
    parts += _section("Why the fullest rank is the fullest", plan.reasons)
    parts += _section(f"One step of {plan.cut.num_micro_batches} micro-batches", _strips(plan, width - 12))
    parts += _baselines(plan)
    parts += _section("Notes", plan.notes)
    return Group(*parts)


def _section(title: str, lines: Sequence[str]) -> list[RenderableType]:
    return ["", Text(title, style="bold"), *(Padding(Text(line), (0, 0, 0, 2)) for line in lines)] if lines else []


def _title(plan: PipelinePlan) -> str:
    cut = plan.cut
    name = plan.chain.target or "the chain"
    order = "an order of its own" if cut.schedule == "custom" else cut.schedule
    planner = "planned for" if plan.planner == order else f"planned by {plan.planner},"
    return f"{name}: {len(plan.chain.layers)} layers on {cut.num_ranks} ranks, {planner} {order}"


def _promise(plan: PipelinePlan) -> list[str]:
    rate = plan.micro_batches_per_second
    size = plan.chain.micro_batch_size
    examples = "" if size is None else f", {rate * size:.4g} examples a second"
    if plan.cut.schedule == "custom":
        first = f"a micro-batch every {format_seconds(plan.period_seconds)}, {rate:.4g} a second{examples}"
    else:
        first = f"busiest rank or link: {format_seconds(plan.period_seconds)} for each micro-batch"
    lines = [first]
    lines.append(
        f"a step of {plan.cut.num_micro_batches}: {format_seconds(plan.step.seconds)}, "
        f"ranks idle {format_ratio(min(plan.step.idle_shares))} to {format_ratio(max(plan.step.idle_shares))} of it"
    )
    if plan.optimal_among:
        lines.append(f"the best of {plan.optimal_among}")
    lines.append(f"sizes {plan.chain.source}, seconds {plan.chain.time_source}, link {_link(plan)}")
    return lines


def _link(plan: PipelinePlan) -> str:
    ways = "both ways at once" if plan.link.full_duplex else "one way at a time"
    return f"{plan.link.bytes_per_second / 1e9:.4g} GB/s, {ways}"


def _stages_table(plan: PipelinePlan) -> RenderableType:
    shown = table(">stage", ">rank", ">layers", ">compute", ">sends", ">in flight", "activations", "first layer")
    stages = plan.cut.stages
    for index, stage in enumerate(stages[:MOST_STAGES]):
        seconds = stage.choice.forward_seconds + stage.choice.backward_seconds
        sent = plan.chain.layers[stage.last_layer].output_bytes if index + 1 < len(stages) else None
        shown.add_row(
            str(index), _ranks(stage), f"{stage.first_layer}-{stage.last_layer}", format_seconds(seconds),
            "-" if sent is None else format_bytes(sent), str(stage.in_flight), _choice(stage),
            _short(plan.chain.layers[stage.first_layer].name),
        )  # fmt: skip
    return shown


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"


def _ranks(stage: PipelineStage) -> str:
    return str(stage.rank) if stage.num_replicas == 1 else f"{stage.rank}-{stage.rank + stage.num_replicas - 1}"


def _choice(stage: PipelineStage) -> str:
    return "kept" if stage.choice.name == "keep" else f"{stage.choice.name}"


def _ranks_tables(plan: PipelinePlan, width: int) -> list[RenderableType]:
    """Causes in rows, ranks in columns, as many beside each other as the terminal is wide."""
    causes = [name for name in CAUSES if any(part.name == name for rank in plan.ranks for part in rank.parts)]
    per_block = max(1, (width - max(len(name) for name in (*causes, "limit")) - 2) // 12)
    found: list[RenderableType] = []
    for start in range(0, len(plan.ranks), per_block):
        ranks = plan.ranks[start : start + per_block]
        shown = table("", *(f">rank {rank.rank}" for rank in ranks))
        for name in causes:
            shown.add_row(name, *(_size_of(rank, name) for rank in ranks))
        shown.add_row("in all", *(_whole(plan, rank) for rank in ranks))
        shown.add_row("limit", *("-" if r.limit_bytes is None else format_bytes(r.limit_bytes) for r in ranks))
        found += [shown] if not found else ["", shown]
    return found


def _size_of(rank: RankMemory, cause: str) -> str:
    return next((format_bytes(part.num_bytes) for part in rank.parts if part.name == cause), "-")


def _whole(plan: PipelinePlan, rank: RankMemory) -> Text:
    style = "red" if not rank.fits else "bold" if rank.rank == plan.fullest_rank else ""
    return Text(format_bytes(rank.total_bytes) + ("" if rank.fits else " !"), style=style)


# ---- the schedule as strips ------------------------------------------------------------------------------------


def _strips(plan: PipelinePlan, width: int) -> list[str]:
    """One line per rank: forward as the last digit of the micro-batch, backward as a letter, idle as a dot."""
    width = max(20, min(width, 100))
    lines = []
    for rank in range(plan.cut.num_ranks):
        own = [event for event in plan.step.events if event.resource == f"rank {rank}"]
        lines.append(f"rank {rank:<3} {_strip(own, plan.step.seconds, width)}")
    lines.append("digits: forward of that micro-batch, letters: its backward (a is 0), =: weights, dots: idle")
    return lines


def _strip(events: Sequence[PipelineEvent], seconds: float, width: int) -> str:
    letters = ["·"] * width
    for event in events:
        start = int(event.start_seconds / seconds * width + 1e-9)
        end = max(start + 1, int((event.start_seconds + event.seconds) / seconds * width + 1e-9))
        for place in range(start, min(end, width)):
            letters[place] = _letter(event)
    return "".join(letters)


def _letter(event: PipelineEvent) -> str:
    if event.kind == "weight":
        return "="
    if event.kind == "forward":
        return str(event.micro_batch % 10)
    return chr(ord("a") + event.micro_batch % 26)


def _baselines(plan: PipelinePlan) -> list[RenderableType]:
    if not plan.baselines:
        return []
    shown = table("cut by", ">period", ">of this plan", "stages end with layer")
    for candidate in plan.baselines:
        ends = ", ".join(str(last) for _, last in candidate.stages)
        if candidate.period_seconds is None:
            shown.add_row(
                candidate.planner, "does not fit", "", f"{ends} ({candidate.reason})" if ends else candidate.reason
            )
            continue
        ratio = candidate.period_seconds / plan.period_seconds
        shown.add_row(candidate.planner, format_seconds(candidate.period_seconds), f"x {ratio:.2f}", ends)
    return ["", Text("Other cuts, each with its best schedule within the same memory", style="bold"), shown]


def pipeline_run_text(run: PipelineRun, *, width: int = 80, color: bool = False) -> str:
    """A row for each rank, the losses, and the last output of a rank that died."""
    stream = io.StringIO()
    console = unwrapped_console(stream, width, color)
    order = run.order
    words = f"{order.num_steps} steps of {order.num_micro_batches} micro-batches, {order.schedule}"
    console.print(
        Text(f"\nRun here with {order.num_ranks} processes ({words}) in {format_seconds(run.total_seconds)}:")
    )
    console.print(_table(run))
    if run.losses:
        console.print(Text("Loss of each step: " + ", ".join(f"{loss:.4g}" for loss in run.losses)))
    console.print(Text(f"On several machines: {run.command}", style="dim"))
    dead = run.dead
    if dead is not None and dead.output.strip():
        console.print(Text(f"\nWhat rank {dead.rank} printed last:\n{dead.output.rstrip()}"))
    return stream.getvalue()


def _table(run: PipelineRun) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("rank", justify="right")
    table.add_column("stages")
    for name in ("predicted", "measured", "difference", "per step"):
        table.add_column(name, justify="right")
    table.add_column("ended")
    for rank in run.ranks:
        stages = ", ".join(map(str, rank.stages))
        figures = (_bytes(rank.predicted), _bytes(rank.measured), _difference(rank))
        seconds = "" if rank.step_seconds.value is None else format_seconds(rank.step_seconds.value)
        table.add_row(str(rank.rank), stages, *figures, seconds, rank.ended)
    return table


def _bytes(figure: Figure) -> str:
    return "unknown" if figure.value is None else format_bytes(figure.value)


def _difference(rank: RankOutcome) -> str:
    if rank.predicted.value is None or not rank.measured.value:
        return ""
    return f"{int(rank.predicted.value - rank.measured.value):+,} bytes"
