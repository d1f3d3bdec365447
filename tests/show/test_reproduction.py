"""Do tables, files and curves of a reproduced result show what its record holds, and gaps where nothing is known?"""

from __future__ import annotations

import csv
import io
import xml.etree.ElementTree as ET
from pathlib import Path

import msgspec
import pytest

from memfit.errors import StorageError
from memfit.records.plan import Candidate, Link
from memfit.records.reproduction import (
    Cell,
    EdgeTables,
    LinkSpeed,
    MemoryCell,
    Network,
    OffloadingExperiment,
    Panel,
    PlannerStanding,
    Price,
    Statement,
    Worth,
)
from memfit.show.export.reproduction_files import HEADS, offloading_csv, write_tables
from memfit.show.figures.reproduction import STYLES, draw_edge, draw_offloading
from memfit.show.progress.line import ShareLine, progress_line
from memfit.show.terminal.reproduction import edge_text, markdown, offloading_text, shown_cells
from memfit.units import GIB


def made_experiment() -> OffloadingExperiment:
    links = [Link(name="host", out_bytes_per_second=s, in_bytes_per_second=s) for s in (12e9, 25e9)]
    network = Network(
        name="vgg16", settings=("batch_size=64",), num_examples=64, num_stages=20, plain_peak_bytes=6 * GIB,
        plain_seconds=0.5, smallest_budget_bytes=2 * GIB,
    )  # fmt: skip

    def cell(budget_bytes: int) -> Cell:
        found = (
            Candidate(solver="combined", fits=True, peak_bytes=budget_bytes, seconds=0.625, moved_bytes=7),
            Candidate(solver="vDNN all", fits=False, peak_bytes=9 * GIB, seconds=None, reason="it needs more"),
        )
        return Cell(budget_bytes=budget_bytes, candidates=found)

    cells = tuple(cell(size * GIB) for size in (2, 3, 4, 5, 6))
    return OffloadingExperiment(
        device="cuda:v100-16gb",
        networks=(network,),
        panels=tuple(Panel(network="vgg16", link=link, cells=cells) for link in links),
        standings=(
            PlannerStanding(
                planner="combined", family="combined", num_cells=10, num_fits=10, num_best=10, mean_over_best=1.0
            ),
            PlannerStanding(planner="vDNN all", family="offload", num_cells=10, num_fits=0, num_best=0),
        ),
        statements=(
            Statement(
                says="moving takes away a third",
                source="somebody, 2021",
                published="a third",
                evidence=("it takes away 44%",),
                verdict="holds",
            ),
        ),
        took_seconds=12.0,
    )


def made_edge() -> EdgeTables:
    cell = MemoryCell(network="ResNet-50", image_size=500, batch_size=8, plain_bytes=3 * GIB, smallest_bytes=GIB)
    price = Price(
        network="ResNet-50", image_size=500, batch_size=8, budget_bytes=2 * GIB, plain_bytes=3 * GIB,
        smallest_bytes=GIB, sequential=None, revolve=1.33, nested=1.06, linear_slots=27, linear_sequential=1.17,
        linear_revolve=1.47,
    )  # fmt: skip
    more = msgspec.structs.replace(price, budget_bytes=3 * GIB, nested=1.0)
    worth = Worth(
        network="ResNet-50", image_size=500, images_per_day=5000, image_bytes=250_000, num_epochs=1,
        gflop_per_image=42.0, device_gflops=20.0, device_watts=10.0, link_watts=2.0, slowdown=1.06, train_hours=9.3,
        train_watt_hours=93.0,
        links=(LinkSpeed(mbit_per_second=10, send_hours=0.05, send_watt_hours=0.6, verdict="both keep up"),),
        most_images_per_day=12926, equal_mbit_per_second=0.3,
    )  # fmt: skip
    statement = Statement(
        says="recomputing divides it by 1.8", source="somebody, 2019", published="divided by 1.8",
        evidence=("divided by 1.5",), verdict="cannot tell", reason="the batch is not known",
    )  # fmt: skip
    return EdgeTables(
        budget_bytes=2 * GIB, by_batch=(cell,), by_size_alone=(cell,), by_size=(cell,), prices=(price,),
        curves=(price, more), statements=(statement,), worth=worth,
    )  # fmt: skip


def test_the_terminal_shows_the_ranking_and_the_slowdowns_with_gaps():
    text = offloading_text(made_experiment(), width=100, color=False)
    assert "10 of 10" in text
    assert "x1.000" in text
    assert "holds          moving takes away a third (somebody, 2021)" in text
    assert "it takes away 44%" in text
    assert "Sizes and times are predicted; nothing was run." in text
    rows = [line.split() for line in text.splitlines()]
    assert ["combined", *["1.25"] * 6] in rows
    assert ["vDNN", "all", *["-"] * 6] in rows


def test_three_budgets_are_shown_or_as_many_as_there_are():
    panel = made_experiment().panels[0]
    assert [cell.budget_bytes // GIB for cell in shown_cells(panel)] == [3, 4, 5]
    assert len(shown_cells(msgspec.structs.replace(panel, cells=panel.cells[:2]))) == 2


def test_the_csv_has_a_row_for_every_answer_and_empty_cells_for_the_unknown():
    experiment = made_experiment()
    rows = list(csv.DictReader(io.StringIO(offloading_csv(experiment))))
    assert len(rows) == 2 * 5 * 2
    assert list(rows[0]) == list(HEADS)
    fits, fails = rows[0], rows[1]
    assert float(fits["examples_per_second"]) == 64 / 0.625
    assert float(fits["time_over_plain"]) == 1.25
    assert fails["seconds"] == fails["stall_seconds"] == fails["examples_per_second"] == ""
    assert fails["reason"] == "it needs more"


def test_the_files_of_a_folder_hold_the_record(tmp_path: Path):
    experiment, tables = made_experiment(), made_edge()
    written = [*write_tables(experiment, tmp_path / "new" / "one"), *write_tables(tables, tmp_path)]
    assert [path.name for path in written] == ["offloading.json", "offloading.csv", "edge.json", "edge.md"]
    assert msgspec.json.decode(written[0].read_bytes(), type=OffloadingExperiment) == experiment
    assert msgspec.json.decode(written[2].read_bytes(), type=EdgeTables) == tables
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be made"):
        write_tables(experiment, tmp_path / "file" / "below")


def test_curves_are_drawn_as_png_and_svg_and_again_the_same(tmp_path: Path):
    pytest.importorskip("matplotlib")
    experiment, tables = made_experiment(), made_edge()
    for draw in (lambda: draw_offloading(experiment, tmp_path), lambda: draw_edge(tables, tmp_path)):
        first = [path.read_bytes() for path in draw()]
        assert first[0].startswith(b"\x89PNG")
        assert ET.fromstring(first[1]).tag.endswith("svg")
        assert [path.read_bytes() for path in draw()] == first
    assert draw_edge(msgspec.structs.replace(made_edge(), curves=()), tmp_path) == ()


def test_every_curve_differs_from_the_others_by_colour_or_line():
    looks = [(color, line) for color, line, _, _ in STYLES.values()]
    assert len(set(looks)) == len(looks)


def test_the_edge_is_written_as_markdown_whose_rows_have_the_width_of_their_heads():
    text = edge_text(made_edge())
    widths: list[int] = []
    for line in text.splitlines():
        if line.startswith("|"):
            widths.append(line.count("|"))
            assert widths[-1] == widths[0], line
        else:
            widths = []
    assert "| ResNet-50 | 500 | 3.00 GiB | 27 | x1.17 | x1.47 | does not fit | x1.33 | x1.06 |" in text
    assert "- **cannot tell**: recomputing divides it by 1.8 (somebody, 2019)" in text
    assert "  - because the batch is not known" in text
    assert "3.0 min, 0.6 Wh at 2 W; both keep up" in text
    assert "x1.06): 9.3 h, 93.0 Wh at 10 W" in text
    without = edge_text(msgspec.structs.replace(made_edge(), worth=None, not_worth_because="it does not fit"))
    assert "Is it worth it? it does not fit" in without
    assert markdown(["a", "b"], [["1", "2"]]) == "| a | b |\n|---|---|\n| 1 | 2 |"


def test_progress_says_what_is_left_once_it_can_know_and_stays_silent_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch,
):
    assert progress_line("vgg16", 0.0, 3.0, 0.0) == "vgg16 | 0% | 3.00 s"
    assert progress_line("vgg16", 0.25, 50.0, 10.0).endswith("50.0 s | about 30.0 s left")
    monkeypatch.setenv("TERM", "xterm")
    quiet, loud = io.StringIO(), io.StringIO()
    loud.isatty = lambda: True  # type: ignore[method-assign]
    ticks = iter(range(100))
    for stream in (quiet, loud):
        progress = ShareLine(stream, clock=lambda: float(next(ticks)))
        progress.show("vgg16", 0.5)
        progress.close()
    assert quiet.getvalue() == ""
    assert "vgg16 | 50%" in loud.getvalue()
    assert loud.getvalue().endswith("\r\x1b[2K")
