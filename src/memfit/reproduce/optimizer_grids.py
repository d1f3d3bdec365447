"""Grids of `memfit reproduce optimizers`: which cells are predicted for a GPU, and which are trained here.

What is trained is a smaller DistilBERT for two short epochs: every optimizer as it is, and Adam and SGD under each
technique. All grids are kept in folders, so that the same command goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from memfit.compare.cells.judge_cells import judge_cells
from memfit.job.data.questions import SquadChoice
from memfit.records.grid import Grid
from memfit.records.reproduction import MeasuredEpochs, OptimizerResult
from memfit.reproduce import optimizers as slides

Settings = dict[str, int | str]
Engine = Literal["auto", "fake", "phantom"]
Show = Callable[[str, float], None]
NUM_EPOCHS = 2
PAIR = ("adam", "sgd")
"""The optimizers whose timelines are drawn."""
MEASURED_BATCH = 8
MEASURED_TECHNIQUES = ("plain", "bf16", "checkpoint", "accumulate=4")
HALF_BATCH = f"batch={MEASURED_BATCH // 2}"
MEASURED_WEIGHT = 40
"""What a measured cell takes, where a predicted one is 1."""


class FillGrid(Protocol):
    """Fills one grid, as `memfit.compare_recipes` does."""

    def __call__(
        self, target: str, *, settings: Settings, optimizers: Sequence[str], techniques: Sequence[str], output: Path,
        progress: Callable[[str, int, int], None], base: str | None = None, device: str = "cpu",
        engine: Engine = "auto", measure: bool = False, num_steps: int = 5, epoch_steps: int | None = None,
    ) -> Grid: ...  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class GridRequest:
    """One grid that is to be filled."""

    name: str
    optimizers: tuple[str, ...]
    techniques: tuple[str, ...]
    settings: Settings
    num_steps: int = 0
    """Measured for so many steps here; 0 predicts for the GPU."""
    epoch_steps: int | None = None

    @property
    def weight(self) -> int:
        """How much of the work it is."""
        return len(self.optimizers) * len(self.techniques) * (MEASURED_WEIGHT if self.num_steps else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlideOptions:
    """What the statements are judged on."""

    device: str
    engine: Engine
    batch_size: int
    length: int
    measure: bool
    layers: int
    train_length: int
    epoch_steps: int
    squad: SquadChoice


def requests_for(options: SlideOptions) -> tuple[GridRequest, ...]:
    """All grids, those that are predicted first."""
    size: Settings = {"batch_size": options.batch_size, "length": options.length}
    mixed = tuple(f"{prefix}batch={n}" for n in slides.BATCHES for prefix in ("", f"{slides.MIXED}+"))
    tried = tuple(
        GridRequest(
            name=f"{attention}-{batch}x{length}", optimizers=("sgd", "adam"), techniques=(slides.MIXED,),
            settings={"batch_size": batch, "length": length, "attention": attention},
        )
        for batch, length, attention in slides.CONFIGURATIONS
    )  # fmt: skip
    predicted = (
        GridRequest(name="grid", optimizers=slides.OPTIMIZERS, techniques=slides.TECHNIQUES, settings=size),
        GridRequest(name="precision", optimizers=("sgd",), techniques=mixed, settings=size),
        *tried,
    )
    return (*predicted, *_measured_requests(options)) if options.measure else predicted


def _measured_requests(options: SlideOptions) -> tuple[GridRequest, ...]:
    """Adam and SGD under each technique, half the batch for twice the steps, and the other optimizers as they are."""
    steps = options.epoch_steps
    settings: Settings = {"layers": options.layers, "batch_size": MEASURED_BATCH, "length": options.train_length}
    settings |= {**options.squad.settings, "questions": MEASURED_BATCH * steps} if options.squad.settings else {}
    others = tuple(name for name in slides.OPTIMIZERS if name not in PAIR)
    rows = (
        ("measured", PAIR, MEASURED_TECHNIQUES, 1), ("measured-others", others, ("plain",), 1),
        ("measured-half", PAIR, (HALF_BATCH,), 2),
    )  # fmt: skip
    return tuple(
        GridRequest(
            name=name, optimizers=optimizers, techniques=techniques, settings=settings, epoch_steps=steps,
            num_steps=NUM_EPOCHS * steps * factor,
        )
        for name, optimizers, techniques, factor in rows
    )  # fmt: skip


def fill_grids(fill: FillGrid, options: SlideOptions, folder: Path, show: Show) -> OptimizerResult:
    """Fill one grid after the other, and judge the statements on what is there; an interrupt leaves the rest out."""
    requests = requests_for(options)
    total, done = sum(each.weight for each in requests), 0
    grids: dict[str, Grid] = {}
    for request in requests:
        grids[request.name] = _filled(fill, request, options, folder, show, done / total, request.weight / total)
        done += request.weight
        if grids[request.name].was_interrupted:
            break
    return _result(grids, options)


def _filled(
    fill: FillGrid, request: GridRequest, options: SlideOptions, folder: Path, show: Show, begin: float, share: float
) -> Grid:
    def tell(what: str, num_done: int, num_all: int) -> None:
        show(f"{request.name}: {what}", begin + share * num_done / num_all)

    asked = {"settings": request.settings, "optimizers": request.optimizers, "techniques": request.techniques}
    base = "adam" if "adam" in request.optimizers else None
    if request.num_steps:
        return fill(
            "distilbert", **asked, output=folder / request.name, progress=tell, base=base, measure=True,
            num_steps=request.num_steps, epoch_steps=request.epoch_steps,
        )  # fmt: skip
    return fill(
        "distilbert", **asked, output=folder / request.name, progress=tell, base=base, device=options.device,
        engine=options.engine,
    )  # fmt: skip


def _result(grids: dict[str, Grid], options: SlideOptions) -> OptimizerResult:
    tried = {
        (batch, length, attention): grids[name]
        for batch, length, attention in slides.CONFIGURATIONS
        if (name := f"{attention}-{batch}x{length}") in grids
    }
    precision = grids.get("precision")
    found = OptimizerResult(
        grid=grids["grid"],
        precision=() if precision is None else slides.precision_points(precision),
        measured=_joined([grids[name] for name in ("measured", "measured-half", "measured-others") if name in grids]),
        epochs=_epochs(options),
        configurations=slides.nearest_configurations(tried),
        was_interrupted=any(grid.was_interrupted for grid in grids.values()),
    )
    return msgspec.structs.replace(found, statements=slides.statements_on(found))


def _epochs(options: SlideOptions) -> MeasuredEpochs:
    return MeasuredEpochs(
        num_epochs=NUM_EPOCHS, epoch_steps=options.epoch_steps, batch_size=MEASURED_BATCH, length=options.train_length,
        layers=options.layers, data=options.squad.said,
    )  # fmt: skip


def _joined(grids: Sequence[Grid]) -> Grid | None:
    """The measured grids as one, each cell judged beside the plain one of its row."""
    if not grids:
        return None
    cells = judge_cells([cell for grid in grids for cell in grid.cells])
    return msgspec.structs.replace(
        grids[0],
        optimizers=tuple(dict.fromkeys(cell.optimizer for cell in cells)),
        techniques=tuple(dict.fromkeys(cell.technique for cell in cells)),
        cells=cells,
        took_seconds=sum(grid.took_seconds for grid in grids),
    )
