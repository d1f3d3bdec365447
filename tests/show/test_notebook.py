"""Is a record in a notebook small, free of scripts, well formed, and deaf to what stands in names?"""

from __future__ import annotations

import dataclasses
import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec

import memfit.api
from memfit.records.figure import Figure
from memfit.records.files.notebook import NotebookRecord
from memfit.records.grid import Grid, GridCell
from memfit.records.plan import Point
from memfit.records.prediction import Assumption, AtPeak, Level, Prediction, RankClass, RankPredictions, Share
from memfit.records.run import RunRecord
from memfit.runfolder.reader import read_run
from memfit.testing.made_records.chains import even_chain
from memfit.testing.made_records.runs import MadeRun, write_made_run
from memfit.testing.made_records.studies import made_study
from memfit.units import MIB

MOST_LETTERS = 40_000
EVIL = '<script>alert(1)</script>"><img src=x onerror=alert(1)>'
VOID = {"circle", "rect", "polyline", "br", "img"}


class Balance(HTMLParser):
    """Every tag that is opened is closed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.add(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def checked(record: NotebookRecord) -> str:
    text = record._repr_html_()
    assert text is not None
    assert len(text) < MOST_LETTERS
    balance = Balance()
    balance.feed(text)
    assert balance.open == []
    assert balance.seen <= {"div", "b", "table", "tr", "td", "th", "ul", "li", "svg", "text", *VOID} - {"img", "br"}
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|javascript:", text)
    return text


def test_a_study_of_ten_thousand_trials_is_small_and_names_its_best():
    study = made_study(3000)
    text = checked(study)
    best = min((trial for trial in study.trials if trial.kind == "done"), key=lambda trial: trial.metric or 9e9)
    assert f">{best.number}</td>" in text
    for name in best.flat_parameters:
        assert f"{name}=" in text
    many = {f"a_long_name_of_a_hyperparameter_{k}": k for k in range(40)}
    proposal = msgspec.structs.replace(best.proposal, parameters=many)
    text = checked(msgspec.structs.replace(study, trials=(msgspec.structs.replace(best, proposal=proposal),)))
    assert all(f"{name}=" in text for name in many)


def test_what_stands_in_names_is_shown_and_never_run(tmp_path: Path):
    study = made_study(5)
    settings = msgspec.structs.replace(study.settings, name=EVIL)
    text = checked(msgspec.structs.replace(study, settings=settings))
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    run = read_run(write_made_run(tmp_path / "run", MadeRun(seconds=2.0)))
    header = msgspec.structs.replace(run.header, command=("python", EVIL, "\ud800"))
    assert "<script" not in checked(dataclasses.replace(run, header=header))


def test_a_run_shows_its_peak_and_curve(tmp_path: Path):
    run = memfit.read_run(write_made_run(tmp_path / "run", MadeRun(seconds=20.0)))
    text = checked(run)
    assert "Peak " in text
    assert "<polyline" in text


def test_a_prediction_shows_its_levels_and_what_is_alive_at_the_peak():
    shares = (
        Share(name="activation", num_bytes=3 * MIB, num_tensors=2),
        Share(name=EVIL, num_bytes=MIB, num_tensors=1),
    )
    alive = AtPeak(
        event=5, step=1, phase="backward", by_category=shares, by_module=(), by_phase=(), by_line=(), by_operator=()
    )
    figure = Figure(value=4 * MIB, unit="bytes", source="predicted")
    level = Level(name="tensors", figure=figure, meaning="live tensors")
    found = Prediction(
        target=EVIL, device="cpu", route="fake cpu", torch_version="2.13", num_steps=2, levels=(level,), at_peak=alive,
        assumptions=tuple(Assumption(kind="made", text=f"assumption {k}") for k in range(9)),
    )  # fmt: skip
    text = checked(found)
    assert "4.00 MiB (predicted)" in text
    assert "activation 3.00 MiB" in text
    assert "and 3 more" in text  # notes are never cut silently


def test_a_plan_shows_its_promise_and_where_it_lies_on_the_curve():
    from memfit.plan.planners import make_plan

    chain = even_chain(12)
    plain = make_plan(chain, 2**62).plain_peak_bytes
    plan = make_plan(chain, int(plain * 0.6))
    points = (Point(peak_bytes=plain // 2, seconds=2.0, solver="a"), Point(peak_bytes=plain, seconds=1.0, solver="a"))
    text = checked(msgspec.structs.replace(plan, frontier=points))
    assert "within the budget of" in text
    assert "<polyline" in text


def test_a_grid_shows_every_cell_or_why_it_has_no_number():
    nothing = GridCell(optimizer="adam", technique="bf16", state="contradictory", reason="made")
    grid = Grid(
        target="gpt", device="cpu", engine="fake tensors", level="tensors", optimizers=("adam",),
        base=("adam", "plain"), techniques=("plain", "bf16"), cells=(nothing,),
    )  # fmt: skip
    text = checked(grid)
    assert ">contradictory</td>" in text
    assert ">-</td>" in text


def test_the_plain_text_beside_it_is_short(tmp_path: Path):
    class Printer:
        def __init__(self) -> None:
            self.parts: list[str] = []

        def text(self, text: str) -> None:
            self.parts.append(text)

    printer = Printer()
    made_study(100)._repr_pretty_(printer, False)
    assert len("".join(printer.parts)) < 100
    assert "_repr_pretty_" in vars(RunRecord)  # its own __repr__ would go before what a base class has


def test_a_pipeline_and_every_rank_are_small_too():
    """Without HTML of their own a notebook would print a page of fields."""
    graph = Path(__file__).parents[2] / "examples" / "pipeline" / "graph.txt"
    plan = memfit.api.plan_pipeline(str(graph), num_ranks=4, memory_bytes=16 * 2**30, link_bytes_per_second=12e9)
    assert "rank 0, the fullest" in checked(plan)
    alive = AtPeak(
        event=5, step=1, phase="backward", by_category=(), by_module=(), by_phase=(), by_line=(), by_operator=()
    )
    level = Level(name="tensors", figure=Figure(value=4 * MIB, unit="bytes", source="predicted"), meaning="live")
    one = Prediction(
        target=EVIL, device="cpu", route="fake cpu", torch_version="2.13", num_steps=2, levels=(level,), at_peak=alive
    )
    classes = tuple(RankClass(ranks=(rank,), traced=(rank,), why=EVIL, prediction=one) for rank in range(40))
    text = checked(RankPredictions(target=EVIL, device="cpu", num_ranks=40, classes=classes))
    assert "28 more kinds of ranks" in text


def test_a_plan_for_what_fits_as_it_is_names_no_budget():
    from memfit.plan.planners import make_plan

    assert "without a budget" in checked(make_plan(even_chain(12), 2**62))
