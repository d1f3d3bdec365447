"""Judgement of cells: what a technique saves and costs beside the plain column, why, and what fits a budget. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from memfit.records.grid import BudgetAnswer, CellFigures, Change, GridCell
from memfit.units import format_bytes

LEAST_SHARE = 0.005
"""A peak that moves by less than this part of itself did not move."""
NUM_CHANGES = 3
UPDATE = "the optimizer step"
PLAIN = "plain"
PHASE_NAMES = {
    "setup": "building the job", "data": "loading data", "forward": "the forward", "backward": "the backward",
    "recompute": "the recomputation in the backward", "update": UPDATE, "evaluation": "the evaluation",
    "other": "what comes after the step",
}  # fmt: skip


def judge_cells(cells: Sequence[GridCell], *, base_row: str = "") -> tuple[GridCell, ...]:
    """Every cell beside the plain one of its row, or, with `base_row`, beside the one cell of that row."""
    bases = {cell.optimizer: cell for cell in cells if cell.technique == PLAIN}
    of_all = next((cell for cell in cells if cell.optimizer == base_row), None)
    return tuple(_judged(cell, of_all or bases.get(cell.optimizer)) for cell in cells)


def _judged(cell: GridCell, beside: GridCell | None) -> GridCell:
    figures = cell.predicted or cell.measured
    if figures is None:
        return cell
    base = None if beside is None else _like(beside, figures is cell.measured)
    if cell is beside:
        return msgspec.structs.replace(cell, value="base", why=_binding(figures))
    if base is None or base.peak.value is None or figures.peak.value is None:
        return cell
    saved = int(base.peak.value - figures.peak.value)
    moved = abs(saved) > LEAST_SHARE * base.peak.value
    value = ("saves" if saved > 0 else "costs") if moved else "useless here"
    return msgspec.structs.replace(
        cell, value=value, saved_bytes=saved, time_ratio=_ratio(cell, beside), why=_why(figures, base, saved, moved)
    )


def _like(cell: GridCell, is_measured: bool) -> CellFigures | None:
    """Figures had in the same way: a measured cell is not set beside a predicted one."""
    return cell.measured if is_measured else cell.predicted


def _ratio(cell: GridCell, beside: GridCell | None) -> float | None:
    """The time for as many examples over that of the other cell, both measured or both predicted."""
    if beside is None or not cell.examples_ratio or not beside.examples_ratio:
        return None
    for mine, its in ((cell.measured, beside.measured), (cell.predicted, beside.predicted)):
        if mine is not None and its is not None and mine.step_time.value is not None and its.step_time.value:
            return mine.step_time.value / its.step_time.value * beside.examples_ratio / cell.examples_ratio
    return None


def _why(figures: CellFigures, base: CellFigures, saved: int, moved: bool) -> str:
    """What became of the peak, and by which moment."""
    if figures.binds is None or base.binds is None:
        return ""
    now, before = PHASE_NAMES[figures.binds.phase], PHASE_NAMES[base.binds.phase]
    if not moved:
        elsewhere = _saved_elsewhere(figures, base) + _sharper(figures, base)
        return f"peak unchanged: {now} binds{' still' if now == before else ' now'}{elsewhere}"
    verb = "saves" if saved > 0 else "takes"
    change = f"{verb} {format_bytes(abs(saved))}{'' if saved > 0 else ' more'}"
    return f"{change}; {now} binds{'' if now == before else f' instead of {before}'}{_next(figures)}"


def _saved_elsewhere(figures: CellFigures, base: CellFigures) -> str:
    """A saving that the peak hides: the moment that shrank."""
    if figures.next_binds is None or base.next_binds is None or figures.next_binds.phase != base.next_binds.phase:
        return ""
    saved = base.next_binds.peak_bytes - figures.next_binds.peak_bytes
    if saved <= LEAST_SHARE * base.next_binds.peak_bytes:
        return ""
    return f"; {PHASE_NAMES[figures.next_binds.phase]} shrank by {format_bytes(saved)}"


def _sharper(figures: CellFigures, base: CellFigures) -> str:
    """A process of which a figure is known where there was a range only."""
    if figures.needed.value is None or base.needed.value is not None or base.needed.high is None:
        return ""
    return (
        f"; the process takes {format_bytes(figures.needed.value)}, and up to {format_bytes(base.needed.high)} without"
    )


def _binding(figures: CellFigures) -> str:
    return "" if figures.binds is None else f"{PHASE_NAMES[figures.binds.phase]} binds{_next(figures)}"


def _next(figures: CellFigures) -> str:
    """What would bind next, and how far below it is."""
    if figures.binds is None or figures.next_binds is None:
        return ""
    below = figures.binds.peak_bytes - figures.next_binds.peak_bytes
    return f", {PHASE_NAMES[figures.next_binds.phase]} is {format_bytes(below)} below"


# ---- a budget --------------------------------------------------------------------------------------------------------


def answer_budget(cells: Sequence[GridCell], base: tuple[str, str], budget_bytes: int) -> BudgetAnswer:
    """The fastest cell that fits, and the cheapest ways into the budget from where the user is."""
    known = [cell for cell in cells if cell.figures is not None and cell.figures.needed_bytes is not None]
    fitting = [cell for cell in known if _needed(cell) <= budget_bytes]
    start = next((cell for cell in known if (cell.optimizer, cell.technique) == base), None)
    ways = [cell for cell in fitting if _num_changes(cell, base) and (start is None or _needed(cell) < _needed(start))]
    ways.sort(key=lambda cell: (_num_changes(cell, base), _price(cell, start), _needed(cell)))
    smallest = min(known, key=_needed, default=None)
    fastest = min(fitting, key=lambda cell: (_seconds(cell), _needed(cell)), default=None)
    return BudgetAnswer(
        budget_bytes=budget_bytes,
        num_fit=len(fitting),
        fastest=None if fastest is None else _change(fastest, start),
        smallest=None if smallest is None else _change(smallest, start),
        changes=tuple(_change(cell, start) for cell in ways[:NUM_CHANGES]),
    )


def _num_changes(cell: GridCell, base: tuple[str, str]) -> int:
    """How many things a user has to change to come from the base to a cell."""
    mine, its = set(cell.technique.split("+")), set(base[1].split("+"))
    return (cell.optimizer != base[0]) + len((mine ^ its) - {"plain"})


def _needed(cell: GridCell) -> float:
    figures = cell.figures
    assert figures is not None
    assert figures.needed_bytes is not None
    return figures.needed_bytes


def _seconds(cell: GridCell) -> float:
    """The time for as many examples; a cell whose time is not known comes last."""
    seconds = cell.seconds_of_examples
    return float("inf") if seconds is None else seconds


def _price(cell: GridCell, start: GridCell | None) -> float:
    return _seconds(cell) / _seconds(start) if start is not None and 0 < _seconds(start) < float("inf") else 0.0


def _change(cell: GridCell, start: GridCell | None) -> Change:
    price = _price(cell, start)
    return Change(
        optimizer=cell.optimizer,
        technique=cell.technique,
        saved_bytes=0 if start is None else int(_needed(start) - _needed(cell)),
        peak_bytes=int(_needed(cell)),
        time_ratio=price if 0 < price < float("inf") else None,
        code=cell.code,
    )
