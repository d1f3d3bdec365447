"""Statements on optimizers are judged by what the grids say."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.errors import UsageError
from memfit.job.data.questions import SquadChoice, choose_squad
from memfit.records.figure import Figure, unknown
from memfit.records.grid import CellFigures, CurvePoint, Grid, GridCell, PeakMoment
from memfit.records.prediction import Share
from memfit.records.reproduction import MeasuredEpochs, OptimizerResult, PrecisionPoint, Statement
from memfit.reproduce import optimizers as slides
from memfit.reproduce.optimizer_grids import MEASURED_BATCH, SlideOptions, fill_grids, requests_for
from memfit.show.figures.optimizers import repeated_steps
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
OPTIONS = SlideOptions(
    device="cuda:a100-40gb", engine="fake", batch_size=16, length=384, measure=True, layers=2, train_length=64,
    epoch_steps=3,
    squad=SquadChoice(settings={"data": "dev.json"}, said="SQuAD"),
)  # fmt: skip


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


def timed(name: str, technique: str, seconds: float, low: float) -> GridCell:
    made = cell(name, technique, 100)
    assert made.predicted is not None
    time = Figure(value=seconds, unit="seconds", source="measured", low=low)
    return msgspec.structs.replace(made, measured=msgspec.structs.replace(made.predicted, step_time=time))


def with_times(**cells: tuple[float, float]) -> dict[str, Statement]:
    made = [timed(*name.replace("sgd_m", "sgd-m").split("__"), *both) for name, both in cells.items()]  # type: ignore[arg-type]
    made = [msgspec.structs.replace(each, technique=each.technique.replace("_", "=")) for each in made]
    return verdicts(msgspec.structs.replace(slides_world(), measured=grid(made)))


def test_time_is_judged_by_the_median_and_by_the_quick_steps_and_disagreement_is_told() -> None:
    others = {f"{name}__plain": (1.2, 1.1) for name in slides.OPTIMIZERS if name not in ("sgd", "adagrad")}
    some = with_times(sgd__plain=(1.0, 0.9), **others)
    assert some[slides.FASTEST_SAYS].verdict == "cannot tell"
    assert "not timed: adagrad" in some[slides.FASTEST_SAYS].reason
    agree = with_times(
        sgd__plain=(1.0, 0.9), adagrad__plain=(1.2, 1.1), adam__accumulate_4=(1.5, 1.4), **others
    )  # fmt: skip
    assert agree[slides.FASTEST_SAYS].verdict == "holds"
    assert agree[slides.ACCUMULATION_SAYS].verdict == "holds"
    against = with_times(sgd__plain=(1.3, 1.2), adam__plain=(1.2, 1.1), adam__accumulate_4=(1.1, 1.0))
    assert against[slides.FASTEST_SAYS].verdict == "does not hold"
    assert against[slides.ACCUMULATION_SAYS].verdict == "does not hold"
    mixed = with_times(sgd__plain=(1.0, 0.9), adam__plain=(1.2, 0.8), adam__accumulate_4=(1.5, 0.7))
    assert mixed[slides.FASTEST_SAYS].verdict == "cannot tell"
    assert mixed[slides.ACCUMULATION_SAYS].verdict == "cannot tell"
    assert "quieter machine" in mixed[slides.FASTEST_SAYS].reason


def test_an_interrupt_ends_all_grids_and_the_statements_are_judged_on_what_is_there(tmp_path: Path) -> None:
    asked: list[str] = []

    def fill(target: str, *, output: Path, **_: object) -> Grid:
        asked.append(output.name)
        return msgspec.structs.replace(slides_world().grid, was_interrupted=len(asked) == 2)

    shares: list[float] = []
    found = fill_grids(fill, OPTIONS, tmp_path, lambda what, share: shares.append(share))  # type: ignore[arg-type]
    assert asked == ["grid", "precision"]
    assert found.was_interrupted
    assert len(found.statements) == len(slides.SAID)


def test_the_half_batch_is_measured_over_as_many_questions_and_all_optimizers_are_timed() -> None:
    requests = {request.name: request for request in requests_for(OPTIONS)}
    assert requests["measured-half"].num_steps == 2 * requests["measured"].num_steps == 2 * 2 * OPTIONS.epoch_steps
    timed_ones = {name for each in ("measured", "measured-others") for name in requests[each].optimizers}
    assert timed_ones == set(slides.OPTIMIZERS)
    assert requests["measured"].settings["questions"] == MEASURED_BATCH * OPTIONS.epoch_steps


def test_a_timeline_of_two_epochs_repeats_the_second_step(tmp_path: Path) -> None:
    made = cell("adam", "plain", 100)
    assert made.predicted is not None
    curve = tuple(CurvePoint(position=at / 4, num_bytes=size) for at, size in enumerate((1, 2, 3, 4)))
    traced = msgspec.structs.replace(made.predicted, curve=curve, step_begins=(0.0, 0.5))
    epochs = MeasuredEpochs(num_epochs=2, epoch_steps=2, batch_size=8, length=64, layers=2, data="synthetic")
    x, y = repeated_steps(msgspec.structs.replace(made, predicted=traced), epochs)
    assert list(y) == [1, 2, 3, 4, 3, 4, 3, 4]
    assert list(x) == [0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75]
    half = msgspec.structs.replace(made, predicted=traced, examples_ratio=0.5)
    assert len(repeated_steps(half, epochs)[1]) == 16
    assert repeated_steps(half, epochs)[0].max() < 2


def test_questions_are_taken_from_a_file_a_folder_or_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMFIT_DATA", str(tmp_path))
    assert choose_squad().settings == {}
    assert "synthetic" in choose_squad().said
    folder = tmp_path / "squad"
    folder.mkdir()
    with pytest.raises(UsageError, match="holds no SQuAD"):
        choose_squad(str(folder))
    (folder / "dev.json.gz").write_bytes(b"")
    (folder / "vocab.txt").write_bytes(b"")
    whole = {"data": str(folder / "dev.json.gz"), "vocabulary": str(folder / "vocab.txt")}
    assert choose_squad().settings == choose_squad(str(folder)).settings == whole
    assert choose_squad(str(folder / "dev.json.gz")).settings == whole
    with pytest.raises(UsageError, match="not there"):
        choose_squad(str(tmp_path / "nowhere"))
