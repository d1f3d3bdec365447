"""Are the charts of a study one selection, marked both ways, with all of it in the address?"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest
from served import Served
from watched_browser import IN_A_BROWSER, Watched, address

from memfit.testing.made_records.runs import MadeRun, write_made_run
from memfit.testing.made_records.studies import made_mixed_study, write_made_study

pytestmark = IN_A_BROWSER
NUM_TRIALS = 120


@pytest.fixture(scope="module")
def served(serving: Callable[[Path], Served], tmp_path_factory: pytest.TempPathFactory) -> Served:
    path = tmp_path_factory.mktemp("records")
    study = made_mixed_study(NUM_TRIALS)
    write_made_study(path / "study", study, runs_of=[trial.number for trial in study.trials[:6]])
    for number in range(14):
        write_made_run(path / f"run-{number}", MadeRun(seconds=2.0, command=("python", f"train_{number}.py")))
    return serving(path)


def opened(browser, served: Served, place: str) -> Watched:
    tab = Watched(browser)
    tab.open(address(served, place))
    return tab


def test_a_filter_keeps_its_values_when_its_axis_becomes_linear_and_after_a_reload(browser, served: Served):
    tab = opened(browser, served, "study/study")
    tab.drag(0.2, 0.7, "p.lr")
    filtered = tab.count()
    assert 0 < filtered < NUM_TRIALS
    x, top = tab.place("p.lr", 1.0)
    tab.page.mouse.click(x, top - 16)
    tab.page.wait_for_timeout(500)
    assert "log=p.lr" in tab.page.evaluate("decodeURIComponent(decodeURIComponent(location.hash))")
    assert tab.count() == filtered
    kept = tab.page.evaluate("location.hash")
    tab.page.reload()
    tab.settle()
    assert (tab.page.evaluate("location.hash"), tab.count()) == (kept, filtered)
    assert tab.problems == []
    tab.context.close()


def test_an_end_of_a_filter_is_dragged_and_the_strip_below_holds_what_is_not_set(browser, served: Served):
    tab = opened(browser, served, "study/study")
    tab.drag(0.3, 0.6, "p.lr")
    narrow = tab.count()
    tab.drag(0.6, 1.0, "p.lr")
    assert tab.count() > narrow
    tab.page.keyboard.press("x")
    tab.page.mouse.click(*tab.place("p.model/mlp/dropout", -1))
    tab.page.wait_for_timeout(500)
    rows = tab.page.locator("#trials tr[data-row]")
    assert 0 < tab.count() < NUM_TRIALS
    assert all("not set" in rows.nth(number).inner_text() for number in range(5))
    assert tab.problems == []
    tab.context.close()


def test_a_curve_or_timeline_under_the_mouse_marks_its_trial_in_the_table_and_a_click_opens_it(browser, served: Served):
    tab = opened(browser, served, "study/study")
    tab.page.wait_for_selector("#curves .u-over")
    number = marked_by(tab, "#curves")
    assert tab.page.locator("#trials tr.hovered").count() <= 1
    tab.page.mouse.down()
    tab.page.mouse.up()
    tab.page.wait_for_selector("#trial:not([hidden])")
    assert tab.page.inner_text("#trial h2") == f"Trial {number}"
    tab.page.evaluate("location.hash = location.hash.replace(/trial=\\d+/, 'trial=0') + '&pins=1,2'")
    tab.page.reload()
    tab.settle()
    tab.page.wait_for_selector("#trial .u-over")
    assert marked_by(tab, "#trial") in (0, 1, 2)
    assert tab.page.locator("#trial .tools button").count() == 2
    assert tab.problems == []
    tab.context.close()


def marked_by(tab: Watched, card: str) -> int:
    """Move down over a chart until a curve is near; the trial that the page then names."""
    tab.page.locator(f"{card} .u-over").scroll_into_view_if_needed()
    box = tab.page.locator(f"{card} .u-over").bounding_box()
    assert box is not None
    for share in range(3, 98, 2):
        tab.page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + box["height"] * share / 100)
        tab.page.wait_for_timeout(40)
        words = tab.page.inner_text("#parallel .read").split()
        if words[:1] == ["trial"]:
            return int(words[1])
    raise AssertionError(f"no curve of {card} is marked")


def test_records_are_found_by_words_of_their_command(browser, served: Served):
    tab = opened(browser, served, "list")
    assert tab.page.locator("#list-run tbody tr").count() == 14
    tab.page.fill(".list-filter", "train_7.py")
    assert tab.page.locator("#list-run tbody tr").count() == 1
    tab.page.reload()
    tab.settle()
    assert tab.page.inner_text("#list-run tbody a") == "run-7"
    assert tab.problems == []
    tab.context.close()


def test_ticks_of_time_say_what_they_are(browser):
    """Steps of 2.5 s are not rounded to 3, 5 and 8."""
    tab = Watched(browser)
    script = files("memfit.show.page").joinpath("assets", "numbers.js").read_text(encoding="utf-8")
    ticks = tab.page.evaluate(
        f"() => {{ {script}; return [[0, 2.5, 5], [0, 5, 10], [0, 0.02, 0.04]].map(clockTicks); }}"
    )
    assert ticks == [["0.0 s", "2.5 s", "5.0 s"], ["0 s", "5 s", "10 s"], ["0.00 s", "0.02 s", "0.04 s"]]
    tab.context.close()


def test_the_front_goes_from_the_least_memory_on(browser, served: Served):
    """So that a step of its line holds what can be had with less memory than the next trial takes."""
    tab = opened(browser, served, "study/study")
    front = json.loads(tab.page.get_attribute("#front [data-front]", "data-front") or "")
    assert len(front) > 2
    assert [peak for peak, _ in front] == sorted(peak for peak, _ in front)
    assert [metric for _, metric in front] == sorted((metric for _, metric in front), reverse=True)
    tab.context.close()


def test_what_was_found_comes_first_and_says_what_it_rests_on(browser, served: Served):
    tab = opened(browser, served, "study/study")
    tab.page.wait_for_selector(".finding")
    verdicts = tab.page.locator(".finding .verdict").all_inner_texts()
    order = ["found", "worth knowing", "does not matter", "cannot tell"]
    assert verdicts == sorted(verdicts, key=order.index)
    assert "found" in verdicts
    assert tab.page.locator(".finding .lines").first.is_hidden()
    tab.page.locator(".finding summary").first.focus()
    tab.page.keyboard.press("Enter")
    assert tab.page.locator(".finding .lines").first.is_visible()
    assert "Importance for being among the largest quarter" in tab.page.inner_text("#findings")
    tab.context.close()


def test_a_list_of_shares_adds_up_also_where_it_is_cut(browser):
    tab = Watched(browser)
    script = files("memfit.show.page").joinpath("app", "prediction.js").read_text(encoding="utf-8")
    many = "Array.from({ length: 30 }, (_, n) => ({ name: `${n}`, num_bytes: n, num_tensors: 1 }))"
    rows = tab.page.evaluate(f"() => {{ {script}; return largestShares({many}); }}")
    assert len(rows) == 21
    assert rows[-1] == {"name": "10 others", "num_bytes": sum(range(10)), "num_tensors": 10}
    assert sum(row["num_bytes"] for row in rows) == sum(range(30))
    tab.context.close()
