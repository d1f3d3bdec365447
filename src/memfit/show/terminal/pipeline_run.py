"""A pipeline that was run here, in the terminal: every rank, predicted beside measured."""

from __future__ import annotations

import io

from rich.console import Console
from rich.table import Table
from rich.text import Text

from memfit.records.figure import Figure
from memfit.records.pipeline_run import PipelineRun, RankOutcome
from memfit.units import format_bytes, format_seconds


def pipeline_run_text(run: PipelineRun, *, width: int = 80, color: bool = False) -> str:
    """A row for each rank, the losses, and the last output of a rank that died."""
    stream = io.StringIO()
    console = Console(
        file=stream, width=width, highlight=False, soft_wrap=True, force_terminal=color, no_color=not color,
        color_system="standard" if color else None, legacy_windows=False,
    )  # fmt: skip
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
