"""Grid of optimizers and techniques: every cell with what was predicted and measured, the choice for a budget."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from memfit.records.figure import Figure
from memfit.records.files.notebook import NotebookRecord
from memfit.records.files.versioned_file import FileKind, read_record
from memfit.records.prediction import LevelName, Share

GRID_FORMAT = "memfit-grid"
GRID_VERSION = 1

CellState = Literal["done", "contradictory", "not here", "failed", "out of memory"]
"""contradictory: its techniques do not go together; not here: this device, engine or installation does not have it;
failed: the job or its optimizer refused; out of memory: measured, and it did not fit."""
CellValue = Literal["saves", "costs", "useless here", "base", "unknown"]


class PeakMoment(msgspec.Struct, frozen=True, kw_only=True):
    """The largest bytes within one phase of a step."""

    phase: str
    peak_bytes: int


class CurvePoint(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes at one moment of a timeline that is drawn; the position is a share of the whole, or seconds."""

    position: float
    num_bytes: float


class CellFigures(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one cell takes, predicted or measured."""

    tensors: Figure
    """Peak of the bytes that tensors and kernels take on the device."""
    peak: Figure
    """The headline, counted as `level` says: allocated on a GPU, tensors on a CPU."""
    level: LevelName
    needed: Figure
    """What has to fit into a budget: the whole card with its context, or the whole process."""
    first_step: Figure
    """Peak of the first step, tensors only where it is predicted."""
    steady: Figure
    """Peak of the last step, in which the optimizer's state is there."""
    average: Figure
    at_peak: tuple[Share, ...] = ()
    """What the peak is made of."""
    binds: PeakMoment | None = None
    """The moment that makes the peak."""
    next_binds: PeakMoment | None = None
    """The moment that would make it if the first one shrank."""
    host: Figure
    """Bytes in host memory beside the device; on a CPU the process itself."""
    step_time: Figure
    epoch_time: Figure
    energy: Figure
    """Of one step."""
    error_band: str = ""
    assumptions: tuple[str, ...] = ()
    curve: tuple[CurvePoint, ...] = ()
    """Bytes over the steps, thinned out to what can be drawn, the peak kept."""
    step_begins: tuple[float, ...] = ()
    """Positions on the curve at which steps begin; on `over_time` where that is there."""
    over_time: tuple[CurvePoint, ...] = ()
    """The whole process, measured; positions are seconds since its first step began."""

    @property
    def needed_bytes(self) -> float | None:
        """What must be there to be sure: the figure, or its upper bound where only a range is known."""
        return self.needed.high if self.needed.value is None else self.needed.value


class GridCell(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One optimizer under one combination of techniques."""

    optimizer: str
    technique: str
    """As it was written: 'bf16+checkpoint', 'plain'."""
    state: CellState
    reason: str = ""
    """Why there are no figures, and what to do."""
    predicted: CellFigures | None = None
    measured: CellFigures | None = None
    not_measured: str = ""
    """Why it was predicted and not measured."""
    value: CellValue = "unknown"
    saved_bytes: int | None = None
    """Against the same optimizer without techniques; negative where it takes more."""
    examples_ratio: float | None = 1.0
    """Examples of a step over those of a step without techniques; None where the job's batch size is not known."""
    time_ratio: float | None = None
    """Its time for as many examples over that of the same optimizer without techniques."""
    why: str = ""
    """One sentence: what became of the peak, and which moment binds now."""
    code: tuple[str, ...] = ()
    """Lines that a user writes to have it."""
    seconds: float = 0.0
    """What it took to know this."""

    @property
    def figures(self) -> CellFigures | None:
        """The measured figures where there are any, else the predicted ones."""
        return self.measured or self.predicted

    @property
    def seconds_of_examples(self) -> float | None:
        """The time for as many examples as a step without techniques has; None where it is not known."""
        seconds = None if self.figures is None else self.figures.step_time.value
        return seconds / self.examples_ratio if seconds is not None and self.examples_ratio else None

    @property
    def difference_bytes(self) -> int | None:
        """Measured less predicted bytes of tensors; None where one of the two is not known."""
        if self.predicted is None or self.measured is None:
            return None
        predicted, measured = self.predicted.tensors.value, self.measured.tensors.value
        return None if predicted is None or measured is None else int(measured - predicted)


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One cell as a change from where the user is."""

    optimizer: str
    technique: str
    saved_bytes: int
    peak_bytes: int
    time_ratio: float | None
    code: tuple[str, ...]


class BudgetAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which cells fit into a budget."""

    budget_bytes: int
    num_fit: int
    fastest: Change | None = None
    """The fastest cell that fits; None where none does."""
    smallest: Change | None = None
    """The cell that takes least, whether it fits or not."""
    changes: tuple[Change, ...] = ()
    """The cheapest ways into the budget from where the user is, the least costly first."""


class Grid(NotebookRecord, msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Optimizers side by side under techniques."""

    format: str = msgspec.field(default_factory=lambda: GRID_FORMAT)
    format_version: int = msgspec.field(default_factory=lambda: GRID_VERSION)
    target: str
    settings: dict[str, str] = {}
    arguments: tuple[str, ...] = ()
    device: str
    engine: str
    """'fake tensors', 'phantom GPU', or 'recorded runs'."""
    torch_version: str = ""
    level: LevelName
    """What the headline of every cell counts."""
    optimizers: tuple[str, ...]
    techniques: tuple[str, ...]
    base: tuple[str, str]
    """Optimizer and technique of where the user is."""
    cells: tuple[GridCell, ...]
    budget: BudgetAnswer | None = None
    notes: tuple[str, ...] = ()
    took_seconds: float = 0.0
    was_interrupted: bool = False

    def cell(self, optimizer: str, technique: str) -> GridCell | None:
        """The cell of one row and column."""
        return next((c for c in self.cells if (c.optimizer, c.technique) == (optimizer, technique)), None)


GRID_FILE = FileKind(format=GRID_FORMAT, version=GRID_VERSION, what="a grid", hint="memfit compare ... -o FOLDER")


def read_grid(path: str | Path) -> Grid:
    """Read the grid.json that `memfit compare` wrote."""
    return read_record(path, GRID_FILE, Grid)
