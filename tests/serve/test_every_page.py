"""Does every kind of page fit every screen, light and dark, and is each of its charts saved as picture and numbers?"""

from __future__ import annotations

import os
import runpy
from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec
import pytest
from served import Served
from watched_browser import IN_A_BROWSER, Watched, address, read_csv

from memfit import api
from memfit.plan.planners import make_plan
from memfit.records.figure import Figure
from memfit.records.grid import CellFigures, Grid, GridCell
from memfit.records.pipeline import encode_pipeline
from memfit.records.plan import encode_plan
from memfit.records.prediction import (
    AtPeak,
    Level,
    Prediction,
    RankClass,
    RankPredictions,
    Share,
)
from memfit.runfolder.reader import read_run
from memfit.testing.made_records.chains import rough_chain
from memfit.testing.made_records.runs import MadeRun, write_made_run
from memfit.testing.made_records.studies import made_mixed_study, write_made_study
from memfit.units import MIB

pytestmark = IN_A_BROWSER
LOOKS = {"light": (1280, "light"), "dark": (1280, "dark"), "narrow": (390, "light")}
EXAMPLES = Path(__file__).parents[2] / "examples"
PLACES = (
    "list", "run/a", "run/b", "run/a?against=b", "study/study", "prediction/prediction.json", "prediction/ranks.json",
    "plan/plan.json", "pipeline/pipeline.json", "grid/grid.json", "snapshot/snapshot.pickle",
)  # fmt: skip
SHARES = (
    Share(name="activation", num_bytes=3 * MIB, num_tensors=2),
    Share(name="parameter", num_bytes=MIB, num_tensors=1),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One record of every kind."""
    path = tmp_path_factory.mktemp("records")
    write_made_study(path / "study", made_mixed_study(200), runs_of=(0, 1))
    run = write_made_run(path / "a", MadeRun(seconds=6.0, ledger=True, limit_bytes=2**29))
    write_made_run(path / "b", MadeRun(seconds=6.0, seed=3, num_workers=2, gpu=True))
    chain = rough_chain(Random(3), 8)
    (path / "plan.json").write_bytes(encode_plan(make_plan(chain, make_plan(chain, 2**60).plain_peak_bytes)))
    machine = {"num_ranks": 4, "memory_bytes": 16 * 2**30, "link_bytes_per_second": 12e9}
    plan = api.plan_pipeline(str(EXAMPLES / "pipeline" / "graph.txt"), **machine)
    (path / "pipeline.json").write_bytes(encode_pipeline(plan))
    one = made_prediction(run)
    (path / "prediction.json").write_bytes(msgspec.json.encode(one))
    classes = tuple(RankClass(ranks=(rank,), traced=(rank,), why="made", prediction=one) for rank in range(2))
    ranks = RankPredictions(target="gpt", device="cpu", num_ranks=2, classes=classes)
    (path / "ranks.json").write_bytes(msgspec.json.encode(ranks))
    (path / "grid.json").write_bytes(msgspec.json.encode(made_grid()))
    write_snapshot(path)
    return path


def made_prediction(run: Path) -> Prediction:
    """A prediction whose timeline is that of a made run."""
    figure = Figure(value=4 * MIB, unit="bytes", source="predicted", method="made", low=3 * MIB, high=5 * MIB)
    alive = AtPeak(
        event=5, step=1, phase="backward", by_category=SHARES, by_module=SHARES, by_phase=(), by_line=SHARES,
        by_operator=SHARES,
    )  # fmt: skip
    return Prediction(
        target="other.py", device="cpu", route="fake cpu", torch_version="2.13", num_steps=2, at_peak=alive,
        levels=(Level(name="tensors", figure=figure, meaning="live tensors"),),
        timeline=read_run(run).ledger_facts[0].timeline,
    )  # fmt: skip


def made_grid() -> Grid:
    """A cell that was predicted and measured, and one without numbers."""
    size = Figure(value=4 * MIB, unit="bytes", source="measured")
    seconds = Figure(value=0.5, unit="seconds", source="measured")
    unknown = Figure(value=None, unit="joules", reason="made")
    figures = CellFigures(
        tensors=size, peak=size, level="tensors", needed=size, first_step=size, steady=size, average=size, host=size,
        step_time=seconds, epoch_time=seconds, energy=unknown, at_peak=SHARES,
    )  # fmt: skip
    done = GridCell(
        optimizer="adam", technique="plain", state="done", predicted=figures, measured=figures, why="made",
        code=("torch.optim.Adam(...)",),
    )  # fmt: skip
    nothing = GridCell(optimizer="adam", technique="bf16", state="contradictory", reason="made")
    return Grid(
        target="gpt", device="cpu", engine="fake tensors", level="tensors", optimizers=("adam",),
        base=("adam", "plain"), techniques=("plain", "bf16"), cells=(done, nothing),
    )  # fmt: skip


def write_snapshot(folder: Path) -> None:
    before = Path.cwd()
    os.chdir(folder)
    try:
        runpy.run_path(str(EXAMPLES / "replay" / "make_snapshot.py"))
    finally:
        os.chdir(before)


@pytest.fixture(scope="module")
def served(serving: Callable[[Path], Served], folder: Path) -> Served:
    return serving(folder)


@pytest.mark.parametrize("look", LOOKS)
def test_every_page_fits_its_screen(browser, served: Served, look: str, tmp_path: Path):
    """A screenshot of each is kept where MEMFIT_SCREENSHOTS says, for eyes."""
    width, scheme = LOOKS[look]
    kept = Path(os.environ.get("MEMFIT_SCREENSHOTS", tmp_path))
    tab = Watched(browser, width, scheme)
    for place in PLACES:
        tab.open(address(served, place))
        assert tab.page.locator("#error").count() == 0, place
        name = "".join(letter if letter.isalnum() else "-" for letter in place)
        tab.page.screenshot(path=kept / f"{name}-{look}.png", full_page=True)
        wide = tab.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"{place} is {wide} pixels too wide"
    assert tab.problems == []
    tab.context.close()


@pytest.mark.parametrize("place", [place for place in PLACES if place not in ("list", "run/a?against=b")])
def test_every_chart_is_saved_as_a_picture_and_as_numbers(browser, served: Served, place: str):
    tab = Watched(browser)
    tab.open(address(served, place))
    charts = tab.page.eval_on_selector_all(
        "section.card", "all => all.filter((one) => !one.hidden && one.querySelector('canvas')).map((one) => one.id)"
    )
    for card in charts or ["grid"]:
        assert tab.saved(card, "PNG").read_bytes().startswith(b"\x89PNG"), card
        assert read_csv(tab.saved(card, "CSV")), card
    assert tab.problems == []
    tab.context.close()


def test_a_snapshot_that_is_dropped_is_shown_and_the_list_is_one_key_away(browser, served: Served, folder: Path):
    tab = Watched(browser)
    tab.open(address(served, "list"))
    tab.page.set_input_files("#snapshot-file", str(folder / "snapshot.pickle"))
    tab.page.wait_for_selector("#segments canvas")
    assert tab.page.evaluate("location.hash") == "#/dropped/snapshot.pickle"
    tab.page.keyboard.press("g")
    tab.page.wait_for_selector("#snapshot-file")
    assert (tab.problems, tab.leaving()) == ([], [])
    tab.context.close()
