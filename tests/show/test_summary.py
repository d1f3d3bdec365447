"""Is the summary the same text as before, at every width, with every ending, with and without colour?

The expected texts are in tests/golden; `MEMFIT_REGENERATE=1 pytest tests/show/test_summary.py` writes them anew.
"""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from memfit.explain.run.difference import diff_runs
from memfit.explain.run.ledger import explain_peak
from memfit.explain.run.noise import noise_interval
from memfit.records.run import RunRecord
from memfit.runfolder.reader import read_run
from memfit.show.terminal.difference import comparison_text
from memfit.show.terminal.run import summary_text
from memfit.show.terminal.sparkline import timeline_text
from memfit.show.text_output import writable, write_text
from memfit.show.views.run import RunView, build_view
from memfit.testing.made_records.runs import MadeRun, write_made_run
from memfit.units import MIB

GOLDEN = Path(__file__).parents[1] / "golden"
CASES = {
    "one_process": MadeRun(stable=True),
    "tree": MadeRun(num_workers=2, energy="measured", gpu=True, ledger=True),
    "over_the_limit": MadeRun(ending="over the limit", limit_bytes=440 * MIB, seconds=6.0),
    "lost": MadeRun(ending="lost", energy="assumed"),
    "no_marks": MadeRun(marks=False, seconds=4.0),
}


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Paths in the texts are relative, so that they are the same on every machine."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_of(plan: MadeRun, name: str = "run") -> RunRecord:
    return read_run(write_made_run(name, plan))


def view_of(plan: MadeRun) -> RunView:
    run = run_of(plan)
    return build_view(run, ledgers=explain_peak(run), noise=noise_interval(run))


def check_golden(name: str, text: str) -> None:
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("MEMFIT_REGENERATE"):
        path.write_text(text, encoding="utf-8")
    assert path.exists(), f"no {path.name}; MEMFIT_REGENERATE=1 writes it"
    assert text == path.read_text(encoding="utf-8"), (
        "the text changed; if it should, MEMFIT_REGENERATE=1 writes it anew"
    )


@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("in_folder")
def test_the_summary_is_the_expected_text(case: str):
    check_golden(f"summary_{case}", summary_text(view_of(CASES[case]), width=80))


@pytest.mark.usefixtures("in_folder")
def test_the_comparison_is_the_expected_text():
    first, second = (
        run_of(MadeRun(stable=True), "a"),
        run_of(MadeRun(stable=True, seed=5, step_rise_bytes=170 * MIB), "b"),
    )
    check_golden("comparison", comparison_text(diff_runs(first, second), width=80))


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("in_folder")
def test_no_line_is_wider_than_the_terminal(case: str, width: int):
    text = summary_text(view_of(CASES[case]), width=width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "\x1b" not in text


@pytest.mark.usefixtures("in_folder")
def test_colour_adds_codes_and_changes_no_word():
    view = view_of(CASES["tree"])
    plain, colored = (summary_text(view, width=80, color=color) for color in (False, True))
    assert "\x1b[" in colored
    stripped = "".join(part.partition("m")[2] if n else part for n, part in enumerate(colored.split("\x1b[")))
    assert [line.rstrip() for line in stripped.splitlines()] == plain.splitlines()


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def widths_and_colors(stream: io.StringIO) -> tuple[int, bool]:
    seen: list[tuple[int, bool]] = []

    def compose(width: int, color: bool) -> str:
        seen.append((width, color))
        return "text\n"

    write_text(compose, stream)
    return seen[0]


def test_colour_is_for_terminals_and_never_with_no_color(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "97")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert widths_and_colors(Terminal()) == (97, True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert widths_and_colors(Terminal()) == (97, False)
    monkeypatch.delenv("COLUMNS")
    assert widths_and_colors(io.StringIO()) == (80, False)


@pytest.mark.usefixtures("in_folder")
def test_a_stream_that_knows_only_ascii_gets_only_ascii():
    text = writable(summary_text(view_of(CASES["tree"]), width=80), "ascii")
    text.encode("ascii")
    assert "#" in text
    assert "+/-" in text
    assert "?" not in text.replace("machine?", "")


@pytest.mark.usefixtures("in_folder")
def test_the_highest_letter_of_the_sparkline_stands_where_the_peak_is():
    run = run_of(MadeRun())
    view = build_view(run)
    tree = view.curves[0].levels[0]
    text = timeline_text(tree, end_seconds=run.duration_seconds, width=80).plain.splitlines()
    at = int(tree.time_seconds[tree.high.argmax()] / run.duration_seconds * (80 - len("460.4 MiB") - 4))
    assert text[0].partition("│")[2][at] == "█"


def test_a_hostile_command_line_stays_text(in_folder: Path):
    run = run_of(MadeRun(command=("python", "[red]x[/red]", "\x1b[31mred", ":smile:")))
    text = summary_text(build_view(run), width=120)
    assert "[red]x[/red]" in text
    assert ":smile:" in text
    assert "\x1b" not in text
