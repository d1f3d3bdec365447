"""Grid of optimizers and techniques as text: peaks by cell, what binds, what a technique saves, what fits a budget."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from memfit.records.figure import Figure
from memfit.records.grid import BudgetAnswer, Change, Grid, GridCell
from memfit.show.text_output import render
from memfit.units import format_bytes, format_seconds

STATES = {"contradictory": "contradicts", "not here": "not here", "failed": "failed", "out of memory": "no memory"}
LEVELS = {
    "tensors": "peak of tensors",
    "allocated": "peak of allocated bytes",
    "process": "peak of the process",
}
MOST_REASONS = 12
LEAST_COLUMN = 9


def grid_text(grid: Grid, *, width: int = 80, color: bool = False) -> str:
    """The grid as text."""
    return render(draw_grid(grid, width), width, color)


def draw_grid(grid: Grid, width: int = 80) -> RenderableType:
    """Title, table of peaks, what the techniques do, what was not possible, the budget."""
    parts: list[RenderableType] = [Text(grid_title(grid), style="bold"), *_tables(grid, width)]
    parts += _measured(grid)
    parts += _section("What a technique does", technique_lines(grid))
    parts += _section("Not in the table", reason_lines(grid))
    if grid.budget is not None:
        parts += _section(f"Into {format_bytes(grid.budget.budget_bytes)}", budget_lines(grid.budget, grid))
    parts += _section("How exact", list(grid.notes))
    return Group(*parts)


def _section(title: str, lines: list[str]) -> list[RenderableType]:
    return ["", Text(title, style="bold"), *(Text(f"  {line}") for line in lines)] if lines else []


def grid_title(grid: Grid) -> str:
    """What is compared, where, and how the figures were had."""
    settings = " ".join(f"{name}={value}" for name, value in grid.settings.items())
    job = " ".join(part for part in (grid.target, settings, *grid.arguments) if part)
    how = "measured" if grid.engine == "recorded runs" else f"predicted on {grid.engine}"
    return f"{job} on {grid.device}: {LEVELS.get(grid.level, grid.level)}, {how}"


def _tables(grid: Grid, width: int) -> list[RenderableType]:
    """The peaks, as many columns beside each other as the terminal is wide."""
    name_width = max(len("optimizer"), *(len(name) for name in grid.optimizers))
    blocks: list[list[str]] = [[]]
    left = width - name_width
    for technique in grid.techniques:
        needed = max(len(technique), LEAST_COLUMN) + 2
        if blocks[-1] and needed > left:
            blocks.append([])
            left = width - name_width
        blocks[-1].append(technique)
        left -= needed
    return [part for block in blocks for part in ("", _table(grid, block))]


def _table(grid: Grid, techniques: list[str]) -> Table:
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    table.add_column("optimizer", no_wrap=True)
    for technique in techniques:
        table.add_column(technique, justify="right", overflow="fold")
    for optimizer in grid.optimizers:
        cells = [grid.cell(optimizer, technique) for technique in techniques]
        table.add_row(optimizer, *(_peak(cell) for cell in cells))
    return table


def cell_text(cell: GridCell) -> str:
    """The peak of a cell, or what became of it."""
    figures = cell.predicted or cell.measured
    if figures is None or figures.peak.value is None:
        return STATES.get(cell.state, "-")
    return format_bytes(figures.peak.value)


def _peak(cell: GridCell | None) -> Text:
    if cell is None:
        return Text("-", style="dim")
    if cell.figures is None:
        return Text(cell_text(cell), style="dim")
    style = {"saves": "green", "costs": "red", "useless here": "yellow"}.get(cell.value, "")
    return Text(cell_text(cell), style=style)


def _measured(grid: Grid) -> list[RenderableType]:
    """Predicted beside measured, where cells were trained."""
    cells = [cell for cell in grid.cells if cell.measured is not None and cell.predicted is not None]
    if not cells:
        return []
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    for name in ("optimizer", "technique", "predicted", "measured", "difference", "process", "a step"):
        table.add_column(name, justify="left" if name in ("optimizer", "technique") else "right", overflow="fold")
    for cell in cells:
        predicted, measured = cell.predicted, cell.measured
        assert predicted is not None
        assert measured is not None
        table.add_row(
            cell.optimizer, cell.technique, _bytes(predicted.tensors), _bytes(measured.tensors), _difference(cell),
            _bytes(measured.needed), _seconds(measured.step_time),
        )  # fmt: skip
    return ["", Text("Measured here (tensors by torch's own record, the process by the kernel)", style="bold"), table]


def _difference(cell: GridCell) -> str:
    difference = cell.difference_bytes
    if difference is None:
        return "unknown"
    return "equal" if difference == 0 else f"{difference:+,} B"


def _bytes(figure: Figure) -> str:
    return "unknown" if figure.value is None else format_bytes(figure.value)


def _seconds(figure: Figure) -> str:
    return "unknown" if figure.value is None else format_seconds(figure.value)


def technique_lines(grid: Grid) -> list[str]:
    """One line per technique for the optimizer of the base row, and where it does otherwise for others."""
    lines = []
    for technique in grid.techniques:
        cells = [cell for cell in grid.cells if cell.technique == technique and cell.why]
        mine = next((cell for cell in cells if cell.optimizer == grid.base[0]), None)
        if mine is None:
            lines += [f"{cell.optimizer}, {technique}: {cell.why}" for cell in cells[:1]]
            continue
        time = "" if mine.time_ratio is None else f"; {_timed(mine.technique)} x {mine.time_ratio:.2f}"
        others = [cell.optimizer for cell in cells if cell.value != mine.value]
        beside = f" (otherwise with {', '.join(others[:4])}{', ...' if len(others) > 4 else ''})" if others else ""
        lines.append(f"{mine.optimizer}, {technique}: {mine.why}{time}{beside}")
    if grid.techniques == ("recorded",):
        lines = [f"{cell.optimizer}: {cell.why}" for cell in grid.cells if cell.why]
    return lines


def _timed(technique: str) -> str:
    """What a ratio of times is of: a step with another batch is another amount of work."""
    return "epoch" if any(name.startswith("batch=") for name in technique.split("+")) else "step"


def reason_lines(grid: Grid) -> list[str]:
    """Cells without figures, those of one reason together."""
    by_reason: dict[str, list[GridCell]] = {}
    for cell in grid.cells:
        reason = cell.reason or cell.not_measured
        if reason:
            by_reason.setdefault(reason, []).append(cell)
    lines = [f"{_which(cells)}: {reason}" for reason, cells in by_reason.items()]
    more = len(lines) - MOST_REASONS
    return lines[:MOST_REASONS] + ([f"and {more} more: --json"] if more > 0 else [])


def _which(cells: list[GridCell]) -> str:
    if len(cells) == 1:
        return f"{cells[0].optimizer}, {cells[0].technique}"
    techniques = list(dict.fromkeys(cell.technique for cell in cells))
    optimizers = list(dict.fromkeys(cell.optimizer for cell in cells))
    if len(techniques) == 1:
        return f"{techniques[0]} with {len(optimizers)} optimizers"
    return f"{optimizers[0]} with {len(techniques)} techniques" if len(optimizers) == 1 else f"{len(cells)} cells"


def budget_lines(answer: BudgetAnswer, grid: Grid) -> list[str]:
    """What fits, the fastest, and the cheapest changes with their code."""
    process = "the whole process (its upper bound where only a range is known)"
    what = "the whole card, context included" if grid.level == "allocated" else process
    lines = [f"{answer.num_fit} of {len([c for c in grid.cells if c.figures])} cells fit, counted as {what}"]
    start = grid.cell(*grid.base)
    needed = None if start is None or start.figures is None else start.figures.needed_bytes
    if needed is not None and needed <= answer.budget_bytes:
        lines.append(f"{grid.base[0]}, {grid.base[1]} fits as it is: {format_bytes(needed)}")
    if answer.fastest is not None:
        lines.append(f"fastest: {_change(answer.fastest)}")
    for index, change in enumerate(answer.changes, 1):
        lines.append(f"{index}. {_change(change)}")
        lines += [f"     {line}" for line in change.code]
    if answer.fastest is None and answer.smallest is not None:
        lines.append(f"least: {_change(answer.smallest)}")
    return lines


def _change(change: Change) -> str:
    saved = f"saves {format_bytes(change.saved_bytes)}" if change.saved_bytes >= 0 else "takes more"
    time = "time not known" if change.time_ratio is None else f"{_timed(change.technique)} x {change.time_ratio:.2f}"
    return f"{change.optimizer}, {change.technique}: {format_bytes(change.peak_bytes)}, {saved}, {time}"
