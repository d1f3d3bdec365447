"""A run in the terminal: how it ended, its peak, its curve and its parts.

Colour is only an accent: everything is said in words too, so that NO_COLOR, a pipe or a file lose nothing.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from memfit.show.terminal.sparkline import timeline_text
from memfit.show.text_output import render, table
from memfit.show.views.ledger import Bar, LedgerView
from memfit.show.views.run import Headline, RunView
from memfit.show.wording import bounds_text, cut, figure_text, short_text, steps_text, value_text
from memfit.units import format_bytes, format_ratio, format_seconds

MAX_PROCESS_ROWS = 8
MAX_LEDGER_ROWS = 14
_BAR_WIDTH = 16


def summary_text(view: RunView, *, width: int = 80, color: bool = False, written: tuple[Path, ...] = ()) -> str:
    """The summary of one run as text."""
    parts: list[RenderableType | None] = [
        _head(view.headline, view, width),
        _course(view, width),
        _steps(view),
        _processes(view, width),
        *(_ledger(ledger, width) for ledger in view.ledgers),
        _facts(view),
        _notes(view),
        _files(view, written),
    ]
    return render(Group(*(Padding(part, (0, 0, 1, 0)) for part in parts if part is not None)), width, color)


def _head(headline: Headline, view: RunView, width: int) -> RenderableType:
    text = Text(cut(headline.title, max(width - 2, 20)), style="bold")
    mark, style = ("✓", "green") if headline.good else ("✗", "bold red")
    where = _where(headline.outcome.step, headline.outcome.phase)
    ended = Text(f"{mark} {headline.outcome.kind}", style=style)
    ended.append(f" after {format_seconds(headline.duration.value or 0)}", style="default")
    ended.append(f", in {where}" if where else "", style="default")
    ended.append(f": {headline.outcome.message}" if headline.outcome.message else "", style="default")
    grid = Table.grid(padding=(0, 2))
    grid.add_row(Text("Peak", style="bold"), _peak(headline))
    return Group(text, ended, Text(), grid)


def _peak(headline: Headline) -> RenderableType:
    """The peak, where it lay, how it was had, and how far a repeat may land."""
    peak = headline.peak
    if peak.value is None:
        return Text(figure_text(peak), style="yellow")
    first = Text(figure_text(peak), style="bold cyan")
    when = "" if headline.peak_seconds is None else f"at {format_seconds(headline.peak_seconds)}"
    place = ", ".join(part for part in (when, _peak_place(headline)) if part)
    first.append(f"  {place}" if place else "", style="default")
    lines = [first, Text(": ".join(part for part in (bounds_text(peak), peak.method) if part), style="dim")]
    if headline.limit_bytes:
        share = format_ratio(peak.value / headline.limit_bytes)
        lines.append(Text(f"{share} of the limit of {format_bytes(headline.limit_bytes)}"))
    noise = headline.noise
    if noise is not None and noise.decisive is not None:
        share = format_ratio(noise.half_width / peak.value if peak.value else 0.0)
        lines.append(Text(f"repeats may differ by ± {format_bytes(noise.half_width)} ({share})"))
        lines.append(Text(noise.decisive.reason, style="dim"))
    return Group(*lines)


def _peak_place(headline: Headline) -> str:
    steps = steps_text(headline.peak_first_step, headline.peak_step)
    return ", ".join(part for part in (steps, headline.peak_phase) if part)


def _where(step: int | None, phase: str) -> str:
    return ", ".join([*([f"step {step}"] if step is not None else []), *([phase] if phase else [])])


def _course(view: RunView, width: int) -> RenderableType | None:
    tree = next((curve for curve in view.curves if curve.role == "tree"), None)
    if tree is None or not len(tree.levels[0]):
        return None
    top = view.headline.peak.value or 0.0
    end_seconds = view.headline.duration.value or 0.0
    return timeline_text(tree.levels[0], end_seconds=end_seconds, width=min(width, 100), top_bytes=top)


def _steps(view: RunView) -> RenderableType | None:
    steps = view.steps
    if not steps.num_steps:
        return None
    pace = Text()
    pace.append("Steps  ", style="bold")
    pace.append(steps.words)
    if steps.steps_per_second.value is not None:
        rate = steps.steps_per_second.value
        pace.append(f", {rate:.3g} per second, {short_text(steps.median_seconds)} each (median)")
    if steps.largest_group > 1:
        pace.append(f"; short ones share one exact peak, up to {steps.largest_group} of them", style="dim")
    rows = table("phase", ">median peak", ">highest peak", ">time")
    for row in view.phases:
        rows.add_row(
            row.phase, short_text(row.median_peak), short_text(row.highest_peak), short_text(row.median_seconds)
        )
    return Group(pace, Padding(rows, (0, 0, 0, 2)))


def _processes(view: RunView, width: int) -> RenderableType | None:
    if len(view.processes) < 2:
        return None
    head = Text("Processes", style="bold")
    rows = table("pid", "command", ">peak", ">anonymous", ">proportional")
    ordered = sorted(view.processes, key=lambda row: -(row.peak.value or 0))
    for row in ordered[:MAX_PROCESS_ROWS]:
        command = cut(row.command, max(width - 52, 16))
        rows.add_row(
            str(row.pid), command, short_text(row.peak), short_text(row.anonymous), short_text(row.proportional)
        )
    more = len(ordered) - MAX_PROCESS_ROWS
    tail = [Text(f"  and {more} more", style="dim")] if more > 0 else []
    return Group(head, Padding(rows, (0, 0, 0, 2)), *tail)


def _ledger(ledger: LedgerView, width: int) -> RenderableType:
    head = Text()
    head.append("Where it went", style="bold")
    owner = "" if ledger.pid is None else f"process {ledger.pid}, "
    where = "" if ledger.device == "host" else f"{ledger.device}, "
    head.append(f"  {owner}{where}{ledger.moment}", style="dim")
    rows = table("what", ">bytes", ">share", "")
    shown = [bar for rank, bar in enumerate(ledger.bars) if rank < MAX_LEDGER_ROWS or bar.kind == "unexplained"]
    hidden = [bar for bar in ledger.bars if bar not in shown]
    smaller = _smaller_lines(hidden, ledger.peak_bytes)
    for bar in shown:
        if bar.kind == "unexplained" and smaller:
            rows.add_row(*smaller)
            smaller = None
        name = bar.name if bar.kind == "tensors" else f"{bar.kind}: {bar.name}"
        name = bar.kind if bar.name in ("", bar.kind) else name
        marked = name + ("" if bar.source == "measured" else f" ({bar.source})")
        drawn = "█" * max(round(_BAR_WIDTH * min(max(bar.share, 0.0), 1.0)), 1 if bar.num_bytes > 0 else 0)
        style = "dim" if bar.kind == "unexplained" else "cyan"
        rows.add_row(
            cut(marked, max(width - 46, 22)), format_bytes(bar.num_bytes), format_ratio(bar.share), Text(drawn, style)
        )
    rows.add_row("adds up to", format_bytes(ledger.peak_bytes), f"{format_ratio(1.0)}", "")
    return Group(head, Padding(rows, (0, 0, 0, 2)), Padding(Text("\n".join(ledger_remarks(ledger))), (0, 0, 0, 2)))


def ledger_remarks(ledger: LedgerView) -> list[str]:
    """What is said below the lines: how much carries a name, what is reserved without being there, and the note."""
    named_bytes = ledger.peak_bytes - ledger.unexplained_bytes
    remarks = [f"{format_ratio(ledger.explained_ratio)} carries a name ({format_bytes(named_bytes)})."]
    if ledger.untouched_bytes:
        remarks.append(
            f"Not in memory, so not counted: {format_bytes(ledger.untouched_bytes)} of reserved heap and tensors."
        )
    return [*remarks, *([ledger.note] if ledger.note else [])]


def _smaller_lines(hidden: list[Bar], peak_bytes: int) -> tuple[str, ...] | None:
    if not hidden:
        return None
    rest = sum(bar.num_bytes for bar in hidden)
    return f"{len(hidden)} smaller lines", format_bytes(rest), format_ratio(rest / (peak_bytes or 1)), ""


def _facts(view: RunView) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column()
    for gpu in view.gpus:
        own = f"job {figure_text(gpu.job_peak)}, device {short_text(gpu.device_peak)} of {short_text(gpu.total)}"
        grid.add_row(f"GPU {gpu.device}", f"{gpu.name}: {own}")
    if view.system is not None:
        grid.add_row("System", _system_line(view))
    grid.add_row("Energy", _energy_line(view))
    if view.sampler is not None:
        grid.add_row("Sampler", _sampler_line(view))
    return grid


def _system_line(view: RunView) -> str:
    system = view.system
    assert system is not None
    background = system.mean_background
    span = f"{value_text(background.low or 0, 'bytes')} to {value_text(background.high or 0, 'bytes')}"
    return (
        f"on average {short_text(system.mean_used)} used of {short_text(system.total)}; "
        f"background without this job {short_text(background)} ({span})"
    )


def _energy_line(view: RunView) -> str:
    energy = view.energy
    if not energy.rows:
        return f"unavailable: {energy.reason or 'nothing was read'}"
    rows = ", ".join(f"{row.domain} {figure_text(row.figure)}" for row in energy.rows)
    scopes = ", ".join(sorted({row.scope for row in energy.rows if row.scope}))
    each = f"; {short_text(energy.per_step)} per step" if energy.per_step.value is not None else ""
    return f"{rows}{each}" + (f" (of the whole {scopes})" if scopes else "")


def _sampler_line(view: RunView) -> str:
    sampler = view.sampler
    assert sampler is not None
    late = f"{sampler.num_late_ticks} of {sampler.num_ticks:,} ticks late (at most {short_text(sampler.late_high)})"
    failed = f", {sampler.num_failed_reads} failed reads" if sampler.num_failed_reads else ""
    pace = f"every {short_text(sampler.mean_interval)} on average"
    return f"{figure_text(sampler.cpu_share)} of a core, {short_text(sampler.resident)}; {pace}, {late}{failed}"


def _notes(view: RunView) -> RenderableType | None:
    if not view.notes:
        return None
    grid = Table.grid(padding=(0, 1))
    for note in view.notes:
        grid.add_row(Text("•", style="yellow"), note)
    return Group(Text("Notes", style="bold"), Padding(grid, (0, 0, 0, 2)))


def _files(view: RunView, written: tuple[Path, ...]) -> RenderableType:
    """Where the record is, and the page and picture beside it, or how to get them."""
    text = Text(overflow="fold")
    text.append("Record  ", style="bold")
    text.append(view.folder)
    for path in written:
        text.append(f"\n        {path}")
    if not written:
        text.append(
            f"\n        a page to explore: memfit show {shlex.quote(view.folder)} --html report.html", style="dim"
        )
    return text
