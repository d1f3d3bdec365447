"""Statements on optimizers are judged by what the grids say."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from memfit.records.figure import Figure, unknown
from memfit.records.grid import CellFigures, Grid, GridCell, PeakMoment
from memfit.records.prediction import Share
from memfit.records.reproduction import OptimizerResult, PrecisionPoint, Statement
from memfit.reproduce import optimizers as slides
from memfit.units import MIB

STATE = {
    "sgd": 0,
    "sgd-momentum": 1,
    "adagrad": 1,
    "rmsprop": 1,
    "adam": 2,
    "adamw": 2,
    "adamax": 2,
    "nadam": 2,
    "adadelta": 2,
}
PARAMETERS_MIB = 253


def cell(
    optimizer: str, technique: str, peak_mib: float, *, saved_mib: float | None = None, seconds: float = 1.0
) -> GridCell:
    peak = Figure(value=peak_mib * MIB, unit="bytes", source="predicted")
    shares = (
        Share(name="parameter", num_bytes=PARAMETERS_MIB * MIB, num_tensors=1),
        Share(name="optimizer state", num_bytes=STATE[optimizer] * PARAMETERS_MIB * MIB, num_tensors=1),
    )
    figures = CellFigures(
        tensors=peak, peak=peak, level="allocated", needed=peak, first_step=peak, steady=peak, average=peak, host=peak,
        at_peak=shares, binds=PeakMoment(phase="backward", peak_bytes=int(peak_mib * MIB)),
        step_time=Figure(value=seconds, unit="seconds", source="predicted"), epoch_time=unknown("seconds", "not asked"),
        energy=unknown("joules", "not asked"),
    )  # fmt: skip
    saved = None if saved_mib is None else int(saved_mib * MIB)
    return GridCell(optimizer=optimizer, technique=technique, state="done", predicted=figures, saved_bytes=saved)


def grid(cells: list[GridCell]) -> Grid:
    rows = tuple(dict.fromkeys(each.optimizer for each in cells))
    columns = tuple(dict.fromkeys(each.technique for each in cells))
    return Grid(
        target="distilbert", device="a100-40gb", engine="fake tensors", level="allocated", optimizers=rows,
        techniques=columns, base=("adam", "plain"), cells=tuple(cells),
    )  # fmt: skip


def slides_world() -> OptimizerResult:
    """A world in which everything is as the slides say."""
    cells = []
    for name, states in STATE.items():
        peak = 3000 + states * PARAMETERS_MIB
        cells += [
            cell(name, "plain", peak, seconds=1 + states / 10),
            cell(name, "checkpoint", peak - 900, saved_mib=900),
            cell(name, "batch=8", peak - 1200, saved_mib=1200),
            cell(name, "accumulate=4", peak - 1000, saved_mib=1000),
        ]
    pair = grid([cell("sgd", "fp16", 4480), cell("adam", "fp16", 4480 + 508)])
    points = [(1, 1000, 1120), (4, 1500, 1530), (16, 3000, 2400)]
    return OptimizerResult(
        grid=grid(cells),
        precision=tuple(PrecisionPoint(batch_size=b, plain_bytes=p * MIB, mixed_bytes=m * MIB) for b, p, m in points),
        configurations=slides.nearest_configurations({(48, 256, "eager"): pair}),
    )


def verdicts(found: OptimizerResult) -> dict[str, Statement]:
    return {statement.says: statement for statement in slides.statements_on(found)}


def test_in_the_world_of_the_slides_everything_holds_but_what_needs_a_clock() -> None:
    found = verdicts(slides_world())
    assert set(found) == set(slides.SAID)
    open_ones = {says for says, statement in found.items() if statement.verdict != "holds"}
    assert open_ones == {slides.ACCUMULATION_SAYS, slides.FASTEST_SAYS}
    assert {found[says].verdict for says in open_ones} == {"cannot tell"}


def test_a_cheaper_optimizer_than_sgd_is_told() -> None:
    world = slides_world()
    cells = [each for each in world.grid.cells if each.optimizer != "adagrad"] + [cell("adagrad", "plain", 100)]
    found = verdicts(msgspec.structs.replace(world, grid=grid(cells)))
    assert found[slides.LOWEST_SAYS].verdict == "does not hold"


def test_a_saving_that_depends_on_the_optimizer_is_told() -> None:
    world = slides_world()
    cells = [each for each in world.grid.cells if (each.optimizer, each.technique) != ("adam", "checkpoint")]
    cells.append(cell("adam", "checkpoint", 3000, saved_mib=300))
    found = verdicts(msgspec.structs.replace(world, grid=grid(cells)))
    assert found[slides.ACTIVATIONS_SAY].verdict == "does not hold"


def test_without_cells_nothing_is_claimed() -> None:
    empty = OptimizerResult(grid=grid([cell("sgd", "other", 1)]))
    assert {statement.verdict for statement in verdicts(empty).values()} <= {"cannot tell"}


@given(st.integers(1, 100), st.integers(1, 100))
def test_the_crossing_lies_between_the_points_beside_it(more: int, less: int) -> None:
    points = [
        PrecisionPoint(batch_size=4, plain_bytes=1000, mixed_bytes=1000 + more),
        PrecisionPoint(batch_size=8, plain_bytes=2000, mixed_bytes=2000 - less),
    ]
    crossing = slides.crossing_batch(points)
    assert crossing is not None
    assert 4 < crossing < 8
    assert slides.crossing_batch(points[:1]) is None
