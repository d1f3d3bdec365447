"""Rows and columns, judgement, budget and kept cells of a grid: pure parts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.compare.cells import measure_cells
from memfit.compare.cells.cells_on_disk import NAME, KeptCells
from memfit.compare.cells.judge_cells import answer_budget, judge_cells
from memfit.compare.cells.predict_cells import check_route
from memfit.compare.grid import _Filled, _reason
from memfit.compare.rows_and_columns import OWN, CellPlan, code_of_optimizer, job_for, plan_cells, split_names
from memfit.errors import MemfitError, PredictionFailed, UsageError
from memfit.job.description import JobDescription, describe_job, setting_of
from memfit.job.recipes.recipe import parse_techniques
from memfit.measure.session import JobEnd
from memfit.predict.child.messages import TRANSLATED
from memfit.records.figure import Figure, unknown
from memfit.records.grid import CellFigures, Grid, GridCell, PeakMoment
from memfit.show.figures.grid import pareto
from memfit.show.page.grid_page import grid_page
from memfit.testing.oracles.grid_laws import broken_laws

JOB = JobDescription(
    kind="function", target="jobs.py:make", path="jobs.py", function="make", settings={"batch_size": 8}
)


def figures(
    peak: int, *, binds: str = "backward", after: str = "update", below: int = 10, seconds: float = 1.0
) -> CellFigures:
    size = Figure(value=peak, unit="bytes", source="predicted")
    return CellFigures(
        tensors=size, peak=size, level="tensors", needed=size, first_step=size, steady=size, average=size, host=size,
        binds=PeakMoment(phase=binds, peak_bytes=peak), next_binds=PeakMoment(phase=after, peak_bytes=peak - below),
        step_time=Figure(value=seconds, unit="seconds", source="predicted"), epoch_time=unknown("seconds", "not asked"),
        energy=unknown("joules", "not asked"),
    )  # fmt: skip


def cell(optimizer: str, technique: str, peak: int, **more: object) -> GridCell:
    return GridCell(optimizer=optimizer, technique=technique, state="done", predicted=figures(peak, **more))  # type: ignore[arg-type]


@given(st.lists(st.text("abc.", min_size=1, max_size=4), max_size=5))
def test_names_with_commas_are_as_good_as_repeated_ones(names: list[str]) -> None:
    assert split_names([",".join(names)]) == split_names(names)


def test_a_comma_within_brackets_separates_nothing() -> None:
    assert split_names(["a.B(x=1,y=2),sgd"]) == ("a.B(x=1,y=2)", "sgd")
    with pytest.raises(UsageError, match="bracket"):
        split_names(["a.B(x=1"])


def test_cells_that_make_no_sense_say_why_and_the_others_are_planned() -> None:
    plans = plan_cells(JOB, "cpu", ["sgd"], ["plain", "bf16+fp16", "offload-activations", "compile"], can_compile=False)
    assert [plan.state for plan in plans] == ["done", "contradictory", "not here", "not here"]
    assert all(plan.reason for plan in plans[1:])


def test_a_script_keeps_its_own_optimizer_and_its_own_loop() -> None:
    script = JobDescription(kind="script", target="train.py", path="train.py")
    plans = plan_cells(script, "cpu", [OWN], ["plain", "bf16", "pinned-malloc"], can_compile=False)
    assert [plan.state for plan in plans] == ["done", "not here", "done"]
    with pytest.raises(UsageError, match="own"):
        plan_cells(script, "cpu", ["adam"], ["plain"], can_compile=False)


def test_another_batch_size_is_a_setting_of_the_job() -> None:
    plan = plan_cells(JOB, "cpu", ["sgd"], ["batch=32"], can_compile=False)[0]
    assert job_for(JOB, plan).settings == {"batch_size": 32}


def test_the_line_of_code_is_torchs() -> None:
    assert code_of_optimizer("sgd-momentum") == "optimizer = torch.optim.SGD(model.parameters(), lr=..., momentum=0.9)"
    assert "lib.Lion" in code_of_optimizer("lib.Lion")


def test_a_peak_that_did_not_move_is_useless_and_names_what_binds() -> None:
    cells = judge_cells([
        cell("adam", "plain", 1000, binds="update", after="backward", below=100),
        cell("adam", "checkpoint", 1000, binds="update", after="backward", below=400),
    ])  # fmt: skip
    assert cells[1].value == "useless here"
    assert "the optimizer step binds still" in cells[1].why
    assert "the backward shrank by 300 B" in cells[1].why


def test_a_saving_says_what_binds_instead() -> None:
    cells = judge_cells([cell("sgd", "plain", 1000), cell("sgd", "checkpoint", 600, binds="update", after="backward")])
    assert (cells[1].value, cells[1].saved_bytes) == ("saves", 400)
    assert "instead of the backward" in cells[1].why


@given(st.lists(st.tuples(st.integers(1, 1000), st.floats(0.1, 9)), min_size=1, max_size=12), st.integers(1, 1200))
def test_the_answer_to_a_budget_fits_it_and_nothing_that_fits_is_faster(
    points: list[tuple[int, float]], budget_bytes: int
) -> None:
    cells = [cell(f"o{index}", "plain", peak, seconds=seconds) for index, (peak, seconds) in enumerate(points)]
    answer = answer_budget(cells, ("o0", "plain"), budget_bytes)
    fitting = [(peak, seconds) for peak, seconds in points if peak <= budget_bytes]
    assert answer.num_fit == len(fitting)
    assert (answer.fastest is None) == (not fitting)
    assert answer.smallest is not None
    assert answer.smallest.peak_bytes == min(peak for peak, _ in points)
    if answer.fastest is not None:
        assert answer.fastest.peak_bytes <= budget_bytes
        chosen = next(seconds for index, (_, seconds) in enumerate(points) if f"o{index}" == answer.fastest.optimizer)
        assert chosen == min(seconds for _, seconds in fitting)
    assert all(change.saved_bytes > 0 and change.peak_bytes <= budget_bytes for change in answer.changes)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1))
def test_nothing_beats_the_pareto_front_and_it_leaves_nothing_out(points: list[tuple[int, int]]) -> None:
    front = pareto(points)
    for point in set(points):
        is_beaten = any(other != point and other[0] <= point[0] and other[1] <= point[1] for other in points)
        assert (point in front) == (not is_beaten)


def test_kept_cells_outlive_a_half_written_line_and_are_not_taken_for_another_job(tmp_path: Path) -> None:
    kept = KeptCells(tmp_path, "one")
    first, second = cell("sgd", "plain", 10), cell("adam", "plain", 20)
    kept.add(first)
    with open(tmp_path / NAME, "ab") as stream:
        stream.write(b'{"key": "one", "cell": {"optim')  # a process that was killed
    kept.add(second)
    assert KeptCells(tmp_path, "one").read() == {("sgd", "plain"): first, ("adam", "plain"): second}
    assert KeptCells(tmp_path, "other").read() == {}


def test_what_a_user_names_is_text_on_the_page() -> None:
    hostile = "<script>alert(1)</script>"
    cells = judge_cells([cell(hostile, "plain", 1000), cell(hostile, "checkpoint", 600)])
    failed = GridCell(optimizer=hostile, technique="bf16", state="failed", reason='"><img src=x onerror=y>')
    made = Grid(
        target=hostile, device="cpu", engine="fake tensors", level="tensors", optimizers=(hostile,),
        techniques=("plain", "checkpoint", "bf16"), base=(hostile, "plain"), cells=(*cells, failed),
        budget=answer_budget(cells, (hostile, "plain"), 700),
    )  # fmt: skip
    page = grid_page(made)
    assert "<script" not in page
    assert "<img" not in page
    assert page.count("600 B") >= 2
    assert "default-src 'none'" in page


def of_batch(technique: str, ratio: float | None, seconds: float, peak: int = 100) -> GridCell:
    return msgspec.structs.replace(cell("sgd", technique, peak, seconds=seconds), examples_ratio=ratio)


@given(st.floats(0.01, 10), st.integers(1, 6), st.floats(1.01, 3))
def test_a_smaller_batch_is_no_faster_because_its_step_is_shorter(seconds: float, halves: int, slower: float) -> None:
    """A step of a part of the batch takes a part of the time: as many examples take as long, or longer."""
    ratio = 0.5**halves
    plain = of_batch("plain", 1.0, seconds)
    small = of_batch("batch=1", ratio, seconds * ratio * slower)
    judged = judge_cells([plain, small])
    assert judged[1].time_ratio == pytest.approx(slower)
    answer = answer_budget(judged, ("sgd", "plain"), 1000)
    assert answer.fastest is not None
    assert answer.fastest.technique == "plain"


def test_the_time_of_a_batch_whose_ratio_is_not_known_is_not_claimed() -> None:
    judged = judge_cells([of_batch("plain", 1.0, 1.0), of_batch("batch=1", None, 0.01, 10)])
    assert judged[1].time_ratio is None
    answer = answer_budget(judged, ("sgd", "plain"), 1000)
    assert answer.fastest is not None
    assert answer.fastest.technique == "plain"


def test_the_batch_size_of_a_job_is_that_of_the_settings_or_of_the_functions_text(tmp_path: Path) -> None:
    path = tmp_path / "jobs.py"
    path.write_text("SIZE = 4\ndef one(batch_size: int = 16): ...\ndef two(*, batch_size=SIZE): ...\n")
    assert setting_of(describe_job(f"{path}:one"), "batch_size") == 16
    assert setting_of(describe_job(f"{path}:one", {"batch_size": 3}), "batch_size") == 3
    assert setting_of(describe_job(f"{path}:two"), "batch_size") is None
    assert setting_of(describe_job("distilbert"), "batch_size") == 16
    assert (
        plan_cells(describe_job(f"{path}:one"), "cpu", ["sgd"], ["batch=4"], can_compile=False)[0].examples_ratio
        == 0.25
    )
    assert (
        plan_cells(describe_job(f"{path}:two"), "cpu", ["sgd"], ["batch=4"], can_compile=False)[0].examples_ratio
        is None
    )


PHASES = st.sampled_from(["setup", "forward", "backward", "update"])


@given(st.lists(st.tuples(st.integers(1, 5000), PHASES, PHASES, st.integers(0, 50)), min_size=2, max_size=6))
def test_what_a_judged_cell_says_agrees_with_its_numbers(drawn: list[tuple[int, str, str, int]]) -> None:
    cells = judge_cells([
        cell("adam", f"clip={n}" if n else "plain", peak, binds=binds, after=after, below=min(below, peak))
        for n, (peak, binds, after, below) in enumerate(drawn)
    ])  # fmt: skip
    assert not broken_laws(made_grid(cells))


def test_a_cell_whose_words_and_numbers_disagree_is_found() -> None:
    cells = judge_cells([cell("adam", "plain", 1000), cell("adam", "checkpoint", 600)])
    for wrong in (
        {"value": "useless here"}, {"saved_bytes": 399}, {"why": "peak unchanged: the backward binds still"},
        {"why": "saves 400 B; the forward binds"}, {"state": "contradictory"},
    ):  # fmt: skip
        assert broken_laws(made_grid([cells[0], msgspec.structs.replace(cells[1], **wrong)])), wrong
    assert broken_laws(made_grid([GridCell(optimizer="adam", technique="plain", state="failed")]))


def made_grid(cells: Sequence[GridCell]) -> Grid:
    return Grid(
        target="mlp", device="cpu", engine="fake tensors", level="tensors", optimizers=("adam",),
        techniques=tuple(each.technique for each in cells), base=("adam", "plain"), cells=tuple(cells),
    )  # fmt: skip


def test_what_failed_is_tried_again_and_what_is_there_is_kept(tmp_path: Path) -> None:
    kept = KeptCells(tmp_path, "key")
    kept.add(GridCell(optimizer="sgd", technique="plain", state="failed", reason="a package was missing"))
    kept.add(cell("adam", "plain", 10))
    kept.add(msgspec.structs.replace(cell("adamw", "plain", 10), not_measured="the run was killed"))
    kept.add(msgspec.structs.replace(cell("nadam", "plain", 10), state="out of memory", not_measured="no memory"))
    plans = plan_cells(JOB, "cpu", ["sgd", "adam", "adamw", "nadam"], ["plain"], can_compile=False)
    filled = _Filled(plans, kept, lambda what, done, of: None, True)
    assert [plan.optimizer for plan in filled.missing()] == ["sgd"]
    assert [plan.optimizer for plan, _ in filled.to_measure()] == ["adam", "adamw"]


def test_progress_of_measured_cells_goes_up_to_the_end_and_not_beyond(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    plans = plan_cells(JOB, "cpu", ["sgd", "adam"], ["plain"], can_compile=False)
    filled = _Filled(plans, KeptCells(None, ""), lambda *what: told.append(what), True)
    for plan in plans:
        filled.add(plan, cell(plan.optimizer, plan.technique, 10))
    for plan, predicted in list(filled.to_measure()):
        filled.add(plan, msgspec.structs.replace(predicted, measured=figures(10)))
    shares = [done / of for _, done, of in told]
    assert shares == sorted(shares)
    assert shares[1] < 0.5
    assert shares[-1] == 1.0
    assert told[-1][0].startswith("measured 2 of 2 cells")


def test_the_reason_in_a_cell_is_short_and_speaks_of_nothing_that_is_not_shown() -> None:
    long = f"NotImplementedError: Could not run this. {'It is available for these backends: ' * 50}"
    said = _reason(MemfitError("the job failed", found=long, hint="the traceback above is the job's own"))
    assert said == "the job failed; NotImplementedError: Could not run this."
    assert _reason(MemfitError("a", found="b", hint="c")) == "a; b; try: c"


def test_an_interrupt_while_a_cell_is_measured_ends_the_grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = JobEnd(exit_code=None, signal=2, interrupted_by=2)
    monkeypatch.setattr(measure_cells, "_tensors", lambda job: (unknown("bytes", "not asked"), (), 0))
    monkeypatch.setattr(measure_cells, "run_command", lambda *order, **more: ended)
    plan = plan_cells(JOB, "cpu", ["sgd"], ["plain"], can_compile=False)[0]
    options = measure_cells.MeasureOptions(num_steps=2, epoch_steps=None, folder=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        measure_cells.measure_cell(JOB, plan, options)


@pytest.mark.parametrize("technique", ["optimizer-on-host", "bf16+offload-activations"])
def test_what_goes_to_the_host_is_refused_where_host_and_card_are_one(technique: str) -> None:
    plan = CellPlan(optimizer="adamw", technique=technique, choices=parse_techniques(technique))
    with pytest.raises(PredictionFailed, match="cannot be seen") as caught:
        check_route(plan, TRANSLATED)
    assert "phantom" in caught.value.hint
    check_route(plan, "fake cuda on a CPU-only build")
    check_route(CellPlan(optimizer="adamw", technique="bf16", choices=parse_techniques("bf16")), TRANSLATED)
