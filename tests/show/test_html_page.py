"""Is the page complete, small, safe and offline?"""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import numpy as np
import pytest

from memfit import api
from memfit.runfolder.reader import read_run
from memfit.show.page.data import PAGE_ROWS, PAGE_STEPS, unpack
from memfit.show.page.run_page import page_html
from memfit.show.views.run import build_view
from memfit.testing.made_records.runs import Ending, MadeRun, write_made_run

HOSTILE = (
    "python",
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "]]>",
    "\u2028",
    '"><img src=x onerror=alert(2)>',
)


class Page(HTMLParser):
    """Collects elements, their attributes and the text of scripts and styles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: dict[str, list[str]] = {"script": [], "style": [], "title": []}
        self.inside = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag in self.texts:
            self.inside = tag
            self.texts[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        self.inside = "" if tag == self.inside else self.inside

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.texts[self.inside][-1] += data

    def attributes(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]


def page_of(folder: Path, plan: MadeRun | None = None) -> str:
    return page_html(build_view(read_run(write_made_run(folder, plan)), max_rows=PAGE_ROWS, max_steps=PAGE_STEPS))


def data_of(html: str) -> dict:
    return msgspec.json.decode(Page(html).texts["script"][0])


def test_a_hostile_command_line_cannot_break_out_of_its_element(tmp_path: Path):
    html = page_of(tmp_path, MadeRun(command=HOSTILE))
    page = Page(html)
    assert len(page.attributes("script")) == 2
    assert page.attributes("img") == []
    assert data_of(html)["run"]["command"] == list(HOSTILE)
    assert "alert(1)" in page.texts["title"][0]


def test_the_policy_allows_exactly_the_script_and_style_inside_and_no_network(tmp_path: Path):
    page = Page(page_of(tmp_path))
    policy = next(a["content"] for a in page.attributes("meta") if a.get("http-equiv") == "Content-Security-Policy")
    for kind, text in (("script", page.texts["script"][1]), ("style", page.texts["style"][0])):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert "connect-src" not in policy
    assert "http" not in policy


def test_the_page_names_no_address_outside_of_itself(tmp_path: Path):
    html = page_of(tmp_path)
    page = Page(html)
    for _, attributes in page.elements:
        for name in ("src", "href", "action", "data", "poster"):
            assert attributes.get(name, "#").startswith(("#", "data:"))
    assert not re.search(r"https?://|@import|url\(|fetch\(|XMLHttpRequest|WebSocket|innerHTML|eval\(", html)


def test_the_curves_in_the_page_carry_the_true_peak(tmp_path: Path):
    run = read_run(write_made_run(tmp_path, MadeRun(num_workers=1)))
    html = page_html(build_view(run, max_rows=100))
    tree = next(curve for curve in data_of(html)["run"]["curves"] if curve["role"] == "tree")
    assert {float(unpack(level.get("high_bytes", level["low_bytes"])).max()) for level in tree["levels"]} == {
        float(run.tree.tree_bytes.max())
    }


def test_a_record_of_one_hour_makes_a_page_below_three_megabytes_with_its_peak_intact(tmp_path: Path):
    folder = write_made_run(tmp_path, MadeRun(seconds=3600, num_workers=3, step_seconds=0.1))
    run = read_run(folder)
    assert len(run.samples) > 1_400_000
    html = page_html(api.view_run(run, fine=True))
    assert len(html.encode()) < 3 * 10**6
    data = data_of(html)["run"]
    tree = next(curve for curve in data["curves"] if curve["role"] == "tree")
    assert unpack(tree["levels"][0]["high_bytes"]).max() == run.tree.tree_bytes.max()
    assert unpack(data["steps"]["peak_bytes"]).max() == run.steps.peak_bytes.max()
    assert data["steps"]["steps_per_row"] == 3


def test_missing_phases_are_missing_in_the_page_and_not_zero(tmp_path: Path):
    folder = write_made_run(tmp_path)
    marks = folder / "marks-4711.txt"
    marks.write_text("\n".join(line for line in marks.read_text().splitlines() if not line.startswith("B ")) + "\n")
    steps = data_of(page_html(build_view(read_run(folder))))["run"]["steps"]
    assert np.isnan(unpack(steps["backward_us"])).all()
    assert np.isnan(unpack(steps["backward_peak_bytes"])).all()


def test_a_second_run_and_its_comparison_lie_in_the_same_page(tmp_path: Path):
    first, second = (read_run(write_made_run(tmp_path / name, MadeRun(seed=ord(name)))) for name in "ab")
    (path,) = api.write_report(first, html=tmp_path / "both.html", over=second)
    data = data_of(path.read_text(encoding="utf-8"))
    assert data["other"]["run_id"] == second.header.run_id
    assert data["comparison"]["differences"][0]["name"] == "peak"


@pytest.mark.parametrize("ending", ["lost", "over the limit", "out of memory"])
def test_a_run_that_ended_badly_has_a_page_that_says_so(tmp_path: Path, ending: Ending):
    data = data_of(page_of(tmp_path, MadeRun(ending=ending)))["run"]
    assert data["headline"]["outcome"]["kind"] == ending
    assert data["headline"]["good"] is False


def test_every_interactive_element_of_the_page_can_be_reached_by_keyboard(tmp_path: Path):
    page = Page(page_of(tmp_path))
    assert all(attributes.get("tabindex") == "0" for attributes in page.attributes("canvas"))
    assert all(attributes.get("type") == "button" for attributes in page.attributes("button"))
    assert page.attributes("html") == [{"lang": "en"}]
