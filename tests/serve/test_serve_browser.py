"""Does a real browser draw every page without an error or the network, and do its charts do what they promise?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from served import Served
from watched_browser import IN_A_BROWSER, Watched, address, read_csv

from memfit import api
from memfit.records.pipeline import encode_pipeline
from memfit.records.study import Study
from memfit.testing.made_records.runs import MadeRun, write_made_run
from memfit.testing.made_records.studies import add_trials, made_mixed_study, write_made_study

pytestmark = IN_A_BROWSER


@pytest.fixture(scope="module")
def study() -> Study:
    return made_mixed_study(400)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, study: Study) -> Path:
    """A study with the runs of some trials, two runs with hostile names, and whatever else is at hand."""
    path = tmp_path_factory.mktemp("records")
    write_made_study(path / "study", study, runs_of=(0, 1, *best_numbers(study)[:3]))
    hostile = ("python", "</script><script>document.title='owned'</script>", "<img src=x onerror=alert(1)>")
    write_made_run(path / "a", MadeRun(seconds=6.0, ledger=True, limit_bytes=2**29, command=hostile))
    write_made_run(path / "b", MadeRun(seconds=6.0, seed=3, num_workers=2, gpu=True))
    graph = Path(__file__).parents[2] / "examples" / "pipeline" / "graph.txt"
    machine = {"num_ranks": 4, "memory_bytes": 16 * 2**30, "link_bytes_per_second": 12e9}
    (path / "pipeline.json").write_bytes(encode_pipeline(api.plan_pipeline(str(graph), **machine)))
    return path


def best_numbers(study: Study) -> list[int]:
    done = [trial for trial in study.trials if trial.metric is not None]
    return [trial.number for trial in sorted(done, key=lambda trial: trial.metric or 0.0)]


@pytest.fixture(scope="module")
def served(serving: Callable[[Path], Served], folder: Path) -> Served:
    return serving(folder)


def test_a_study_is_filtered_followed_compared_and_saved(browser, served: Served, study: Study):
    tab = Watched(browser)
    tab.open(address(served, "study/study"))
    assert tab.count() == len(study.trials)
    tab.page.click("[data-top='1']")
    tab.page.wait_for_timeout(400)
    best = best_numbers(study)
    assert tab.count() == -(-len(best) // 100)
    lines = tab.page.locator("#trials tr[data-row]")
    assert int(lines.first.locator("td").nth(1).inner_text()) == best[0]
    tab.page.select_option("#by", "peak")
    tab.page.wait_for_timeout(300)
    smallest = min((t for t in study.trials if t.kind == "done"), key=lambda trial: trial.peak.value or 0)
    assert int(lines.first.locator("td").nth(1).inner_text()) == smallest.number
    tab.page.keyboard.press("1")
    tab.drag(0.5, 1.0, "metric")
    brushed = tab.count()
    expected = metric_above_middle(study)
    assert abs(brushed - expected) <= 4
    rows = read_csv(tab.saved("trials", "CSV"))
    assert len(rows) == brushed
    assert tab.saved("parallel", "PNG").read_bytes().startswith(b"\x89PNG")
    before = tab.page.evaluate("location.hash")
    tab.page.reload()
    tab.settle()
    assert (tab.page.evaluate("location.hash"), tab.count()) == (before, brushed)
    tab.page.keyboard.press("x")
    tab.page.select_option("#by", "metric")
    follow_and_compare(tab, best)
    assert (tab.problems, tab.leaving()) == ([], [])
    tab.context.close()


def metric_above_middle(study: Study) -> int:
    known = [trial.metric for trial in study.trials if trial.metric is not None]
    middle = (min(known) + max(known)) / 2
    return sum(metric >= middle for metric in known)


def follow_and_compare(tab: Watched, best: list[int]) -> None:
    """Open the best trial, see its timeline, pin it and another, see both, and go to its run."""
    tab.page.wait_for_timeout(300)
    tab.page.click(f"#trials button[title='Open trial {best[0]}']")
    tab.page.wait_for_selector("#trial canvas")
    assert "Memory over time" in tab.page.inner_text("#trial")
    for number in best[:2]:
        tab.page.click(f"#trials button[title='Compare trial {number}']")
        tab.page.wait_for_timeout(300)
    tab.page.wait_for_timeout(600)
    assert tab.page.inner_text("#trial .legend").count("peak") == 2
    assert tab.page.locator("#trial .differs").count() > 4
    tab.page.click("#trial a")
    tab.settle()
    assert tab.page.evaluate("location.hash").startswith("#/run/study/trials/")
    assert tab.page.locator("#timeline canvas").count() == 1


def test_a_study_is_live_while_it_runs(browser, serving: Callable[[Path], Served], tmp_path: Path):
    whole = made_mixed_study(60, num_wanted=60)
    part = made_mixed_study(20, num_wanted=60)
    path = write_made_study(tmp_path / "study", part)
    tab = Watched(browser)
    tab.open(address(serving(tmp_path), "study/study"))
    assert tab.count() == 20
    tab.page.wait_for_function("() => document.querySelector('#live').textContent === 'stopped'", timeout=90_000)
    tab.page.click("[data-top='20']")
    add_trials(path, whole.trials[20:])
    tab.page.wait_for_function("() => document.querySelector('.count').textContent.includes('of 60')", timeout=90_000)
    assert "20" in tab.page.get_attribute("[aria-pressed=true]", "data-top")
    assert tab.problems == []
    tab.context.close()


def test_what_drives_memory_is_worked_out_again_while_a_study_goes_on(
    browser, serving: Callable[[Path], Served], tmp_path: Path
):
    """It stayed at '5 trials: too few' beside '15 done' until the study had ended."""
    whole = made_mixed_study(60, num_wanted=60)
    path = write_made_study(tmp_path / "study", made_mixed_study(20, num_wanted=60))
    tab = Watched(browser)
    tab.open(address(serving(tmp_path), "study/study"))
    tab.page.wait_for_selector("#findings .finding", timeout=90_000)
    before = tab.page.inner_text("#findings .hint >> nth=0")
    add_trials(path, whole.trials[20:40])
    changed = "(before) => document.querySelector('#findings .hint').textContent !== before"
    tab.page.wait_for_function(changed, arg=before, timeout=20_000)
    assert tab.problems == []
    tab.context.close()


def test_a_run_is_live_while_it_is_measured(browser, serving: Callable[[Path], Served], tmp_path: Path):
    run = write_made_run(tmp_path / "records" / "a", MadeRun(seconds=8.0, ending="lost"))
    ended = write_made_run(tmp_path / "ended", MadeRun(seconds=8.0))
    samples = (run / "samples.bin").read_bytes()
    (run / "samples.bin").write_bytes(samples[: len(samples) // 56 * 28])
    tab = Watched(browser)
    tab.open(address(serving(tmp_path / "records"), "run/a?from=1.00000&to=3.00000"))
    assert "So far the job took" in tab.page.inner_text(".sentence")
    tab.page.evaluate("window.scrollTo(0, 150)")
    (run / "samples.bin").write_bytes(samples)
    tab.page.wait_for_function("() => document.querySelector('#live').textContent === 'live'", timeout=90_000)
    tab.page.wait_for_function("() => Number(document.documentElement.dataset.updates) >= 1", timeout=90_000)
    assert tab.page.evaluate("[window.scrollY, location.hash.includes('from=1.0')]") == [150, True]
    assert tab.page.locator("#timeline canvas").count() == 1
    (run / "events.jsonl").write_bytes((ended / "events.jsonl").read_bytes())
    tab.page.wait_for_function("() => document.querySelector('#live').textContent === ''", timeout=90_000)
    assert "The job took" in tab.page.inner_text(".sentence")
    assert tab.problems == []
    tab.context.close()


def test_a_run_zooms_and_keeps_its_view_and_two_runs_lie_over_each_other(browser, served: Served):
    tab = Watched(browser)
    tab.open(address(served, "run/a"))
    assert "owned" not in tab.page.title() or "<script>" in tab.page.title()
    assert tab.page.locator("main img").count() == 0
    assert "fits into the limit" in tab.page.inner_text(".sentence")
    assert tab.page.locator(".change").count() == 3
    tab.page.click("text=Zoom to the peak")
    tab.page.wait_for_function("() => document.documentElement.dataset.zooms === '1'")
    state = tab.page.evaluate("location.hash")
    assert "from=" in state
    tab.page.select_option("select[aria-label='Compare with another run']", "b")
    tab.page.wait_for_selector("#differs")
    assert "peak" in tab.page.inner_text("#differs")
    tab.page.reload()
    tab.settle()
    assert tab.page.locator("#differs").count() == 1
    heads = read_csv(tab.saved("timeline", "CSV"))
    assert {row[0] for row in heads} == {"A: job", "B: whole tree"}
    assert (tab.problems, tab.leaving()) == ([], [])
    tab.context.close()


def test_a_pipeline_is_drawn_and_all_its_charts_are_saved(browser, served: Served):
    tab = Watched(browser)
    tab.open(address(served, "pipeline/pipeline.json"))
    assert "ranks idle" in tab.page.inner_text(".sentence")
    for card, heads in (("schedule", 6), ("heat", 4), ("ranks", 3)):
        assert tab.saved(card, "PNG").read_bytes().startswith(b"\x89PNG")
        assert {len(row) for row in read_csv(tab.saved(card, "CSV"))} == {heads}
    assert tab.page.locator("#ranks .budget-row").count() == 4
    assert tab.problems == []
    tab.context.close()


@pytest.mark.parametrize("card", ["budget", "ledger-0"])
def test_bars_are_saved_as_a_picture_and_as_numbers(browser, served: Served, card: str):
    from PIL import Image

    tab = Watched(browser)
    tab.open(address(served, "run/a"))
    rows = read_csv(tab.saved(card, "CSV"))
    with Image.open(tab.saved(card, "PNG")) as picture:
        assert picture.width == 2000
        assert len(picture.convert("RGB").getcolors(2**24) or ()) > 20
    assert rows
    assert tab.problems == []
    tab.context.close()


def test_a_report_is_the_same_page_in_one_small_file(browser, folder: Path, study: Study, tmp_path: Path):
    file = api.report_folder(folder, tmp_path / "page.html")
    tab = Watched(browser)
    tab.open(f"file://{file}")
    assert tab.page.locator("#list-run a").count() == 2
    tab.open(f"file://{file}#/study/study?top=5&by=peak")
    tab.settle()
    done = [trial for trial in study.trials if trial.kind == "done"]
    assert tab.count() == -(-5 * len(done) // 100)
    assert (tab.problems, [url for url in tab.requests if not url.startswith(("file:", "data:", "blob:"))]) == ([], [])
    tab.context.close()
    big = api.report_folder(write_made_study(tmp_path / "big", made_mixed_study(1000)), tmp_path / "big.html")
    assert big.stat().st_size < 3e6


def test_a_run_with_its_plan_is_one_story_on_one_page(browser, tmp_path: Path):
    from random import Random

    from memfit.plan.planners import make_plan
    from memfit.records.plan import encode_plan
    from memfit.testing.made_records.chains import rough_chain

    write_made_run(tmp_path / "run", MadeRun(seconds=4.0, ledger=True))
    chain = rough_chain(Random(3), 8)
    plan = make_plan(chain, make_plan(chain, 2**60).plain_peak_bytes)
    (tmp_path / "plan.json").write_bytes(encode_plan(plan))
    tab = Watched(browser)
    tab.open(f"file://{api.report_folder(tmp_path, tmp_path / 'page.html')}")
    assert tab.page.evaluate("location.hash") == "#/story/"
    assert "with the plan" in tab.page.inner_text("#budget")
    assert tab.page.locator("#schedule canvas").count() == 1
    assert tab.problems == []
    tab.context.close()
