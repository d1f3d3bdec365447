"""Entry point of `memfit compare`: plan the cells, predict them, measure them, judge them, answer the budget."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from memfit.compare.cells.cells_on_disk import KeptCells
from memfit.compare.cells.judge_cells import answer_budget, judge_cells
from memfit.compare.cells.measure_cells import CellFailed, MeasureOptions, measure_cell
from memfit.compare.cells.predict_cells import Predicted, predict_cells
from memfit.compare.cells.predicted_figures import figures_of
from memfit.compare.options import CompareOptions
from memfit.compare.rows_and_columns import CellPlan, code_of_optimizer, plan_cells
from memfit.errors import MemfitError, UsageError
from memfit.predict.choose_engine import choose_engine
from memfit.predict.devices.parse import level_for
from memfit.predict.engine import Question
from memfit.records.grid import CellState, Grid, GridCell
from memfit.version import VERSION

MOST_CHARACTERS = 300
"""Of what a job or an optimizer said, in a cell."""
Progress = Callable[[str, int, int], None]
"""Called with what was just done, and how much of the work is over: so many of so many parts."""
MEASURED_PARTS = 20
"""Parts of the work that a measured cell is, where a predicted one is one: it trains for steps, twice."""


def compare(question: Question, options: CompareOptions, *, folder: Path | None, progress: Progress) -> Grid:
    """Fill a grid; an interrupt ends it early, with what is there."""
    started = time.monotonic()
    engine = choose_engine(question)
    kind, level = question.device.kind, level_for(question.device)
    can_compile = engine.name == "phantom"
    plans = plan_cells(question.job, kind, options.optimizers, options.techniques, can_compile=can_compile)
    key = _key(question, options, engine.name)
    kept = KeptCells(folder, key)
    filled = _Filled(plans, kept, progress, options.measure)
    versions: set[str] = set()
    try:
        for found in predict_cells(question, engine, filled.missing(), num_workers=options.num_workers):
            versions |= {found.prediction.torch_version} if found.prediction else set()
            filled.add(found.plan, _cell(found, level, options))
        if options.measure:
            _measure(question, options, filled, folder, key)
    except KeyboardInterrupt:
        filled.was_interrupted = True
    cells = judge_cells(filled.cells())
    base = (options.optimizers[0] if options.base is None else options.base, options.techniques[0])
    return Grid(
        target=question.job.target,
        settings={name: str(value) for name, value in question.job.settings.items()},
        arguments=question.job.arguments,
        device=question.device.name,
        engine="phantom GPU" if can_compile else "fake tensors",
        torch_version=", ".join(sorted(versions)),
        level=level,
        optimizers=tuple(options.optimizers),
        techniques=tuple(dict.fromkeys(plan.technique for plan in plans)),
        base=base,
        cells=cells,
        budget=None if options.budget_bytes is None else answer_budget(cells, base, options.budget_bytes),
        notes=_notes(cells, filled.num_kept),
        took_seconds=time.monotonic() - started,
        was_interrupted=filled.was_interrupted,
    )


class _Filled:
    """The cells so far, in the order of the grid."""

    def __init__(self, plans: Sequence[CellPlan], kept: KeptCells, progress: Progress, measure: bool) -> None:
        self.plans = plans
        self.kept = kept
        self.progress = progress
        self.measure = measure
        self.was_interrupted = False
        self.found = {plan: cell for plan in plans if (cell := _cell_without(plan)) is not None}
        old = {place: cell for place, cell in kept.read().items() if cell.state != "failed"}  # that may be mended now
        again = {plan: old[at] for plan in plans if plan not in self.found and (at := plan.place) in old}
        self.found |= again
        self.num_kept = len(again)

    def missing(self) -> list[CellPlan]:
        """Cells that have to be predicted."""
        return [plan for plan in self.plans if plan not in self.found]

    def to_measure(self) -> Iterator[tuple[CellPlan, GridCell]]:
        """Predicted cells that were not measured yet."""
        for plan in self.plans:
            cell = self.found.get(plan)
            if cell is not None and self._is_open(cell):
                yield plan, cell

    def _is_open(self, cell: GridCell) -> bool:
        """A cell that waits for its measurement; one that failed in an earlier run is tried again."""
        return cell.predicted is not None and cell.measured is None and cell.state != "out of memory"

    def add(self, plan: CellPlan, cell: GridCell) -> None:
        """Keep a cell, and say so."""
        self.found[plan] = cell
        self.kept.add(cell)
        verb, num = "predicted", len(self.found)
        if cell.measured is not None or cell.not_measured:
            verb, num = "measured", sum(not self._is_open(each) or bool(each.not_measured) for each in self.cells())
        self.progress(f"{verb} {num} of {len(self.plans)} cells: {plan.optimizer}, {plan.technique}", *self._parts())

    def _parts(self) -> tuple[int, int]:
        """How many parts of the work are over, and how many there are."""
        if not self.measure:
            return len(self.found), len(self.plans)
        measured = sum(not self._is_open(cell) or bool(cell.not_measured) for cell in self.found.values())
        return len(self.found) + MEASURED_PARTS * measured, (1 + MEASURED_PARTS) * len(self.plans)

    def cells(self) -> tuple[GridCell, ...]:
        """All cells that are there."""
        return tuple(self.found[plan] for plan in self.plans if plan in self.found)


def _cell_without(plan: CellPlan) -> GridCell | None:
    """A cell that needs no prediction, because it cannot be."""
    if plan.state == "done":
        return None
    state: CellState = "contradictory" if plan.state == "contradictory" else "not here"
    return GridCell(optimizer=plan.optimizer, technique=plan.technique, state=state, reason=plan.reason)


def _cell(found: Predicted, level: str, options: CompareOptions) -> GridCell:
    plan = found.plan
    if found.prediction is None:
        return GridCell(
            optimizer=plan.optimizer, technique=plan.technique, state="failed", reason=_reason(found.error),
            code=_code(plan), examples_ratio=plan.examples_ratio,
        )  # fmt: skip
    cost = found.prediction.cost
    return GridCell(
        optimizer=plan.optimizer,
        technique=plan.technique,
        state="done",
        predicted=figures_of(found.prediction, level, _epoch_steps(plan, options)),  # pyright: ignore[reportArgumentType]
        code=_code(plan),
        examples_ratio=plan.examples_ratio,
        seconds=0.0 if cost is None else cost.total_seconds,
    )


def _epoch_steps(plan: CellPlan, options: CompareOptions) -> float | None:
    """The steps of an epoch of a cell: twice as many of half the batch."""
    if options.epoch_steps is None or not plan.examples_ratio:
        return None
    return options.epoch_steps / plan.examples_ratio


def _code(plan: CellPlan) -> tuple[str, ...]:
    """The lines that a user writes to have a cell."""
    optimizer: tuple[str, ...] = ()
    with contextlib.suppress(UsageError):  # a name that cannot be read is said to be so in its cell
        optimizer = (code_of_optimizer(plan.recipe.optimizer),) if plan.recipe.optimizer else ()
    return (*optimizer, *(choice.code for choice in plan.choices))


def _reason(error: MemfitError | None) -> str:
    if error is None:
        return "no answer"
    hint = "" if "traceback above" in error.hint else error.hint  # a cell shows none
    return "; ".join(part for part in (error.what, _first_sentence(error.found), hint and f"try: {hint}") if part)


def _first_sentence(text: str) -> str:
    """A message that fits a cell: torch's go on for pages."""
    line = text.strip().partition("\n")[0]
    if len(line) <= MOST_CHARACTERS:
        return line
    end = line.find(". ", 0, MOST_CHARACTERS)
    return line[: end + 1] if end > 0 else line[:MOST_CHARACTERS] + " ..."


def _measure(question: Question, options: CompareOptions, filled: _Filled, folder: Path | None, key: str) -> None:
    """Measure every predicted cell, one after the other: two at once would disturb each other's time."""
    assert folder is not None
    for plan, cell in list(filled.to_measure()):
        steps = _epoch_steps(plan, options)
        asked = MeasureOptions(num_steps=options.num_steps, epoch_steps=steps, folder=folder / "runs" / key)
        try:
            figures = measure_cell(question.job, plan, asked)
        except CellFailed as error:
            state: CellState = "out of memory" if error.is_memory else "done"
            filled.add(plan, msgspec.structs.replace(cell, state=state, not_measured=_reason(error)))
        else:
            filled.add(plan, msgspec.structs.replace(cell, measured=figures, not_measured=""))


def _key(question: Question, options: CompareOptions, engine: str) -> str:
    """What a kept cell depends on: the job and the text of its file, the options, the engine, and the versions."""
    job = question.job
    text = hashlib.sha256(Path(job.path).read_bytes()).hexdigest() if job.path else ""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        text += importlib.metadata.version("torch")
    facts = (job, text, question.options, engine, options.num_steps, options.epoch_steps, VERSION)
    return hashlib.sha256(msgspec.json.encode(facts)).hexdigest()[:16]


def _notes(cells: Sequence[GridCell], num_kept: int) -> tuple[str, ...]:
    """What holds for many cells, said once."""
    bands: dict[str, list[GridCell]] = {}
    for cell in cells:
        if cell.predicted is not None and cell.predicted.error_band:
            bands.setdefault(cell.predicted.error_band, []).append(cell)
    said = [band if len(bands) == 1 else f"{_places(own)}: {band}" for band, own in bands.items()]
    kept = f"{num_kept} of {len(cells)} cells are from an earlier run of this command; another -o makes them again"
    return (*((kept,) if num_kept else ()), *said)


def _places(cells: Sequence[GridCell]) -> str:
    """Rows and columns of some cells, for a person."""
    rows = dict.fromkeys(cell.optimizer for cell in cells)
    columns = dict.fromkeys(cell.technique for cell in cells)
    if len(cells) == len(rows) * len(columns):
        return f"{', '.join(rows)} under {', '.join(columns)}"
    return "; ".join(f"{cell.optimizer}, {cell.technique}" for cell in cells)
