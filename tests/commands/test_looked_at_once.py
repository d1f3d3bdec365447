"""Is a run looked at once, however many pictures, pages and summaries are made of it?"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from memfit.commands import main
from memfit.explain.run import ledger, noise
from memfit.testing.made_records.runs import MadeRun, write_made_run


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the ledger and the noise of a run were computed."""
    counted: Counter[str] = Counter()

    def counting(name: str, function: Any) -> Any:
        def call(record: Any) -> Any:
            counted[name] += 1
            return function(record)

        return call

    monkeypatch.setattr(ledger, "explain_peak", counting("ledger", ledger.explain_peak))
    monkeypatch.setattr(noise, "noise_interval", counting("noise", noise.noise_interval))
    return counted


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as leaving:
        main(list(words))
    return int(leaving.value.code or 0)


def test_after_measure_the_page_the_picture_and_the_summary_share_one_look(tmp_path: Path, looks: Counter[str]):
    folder = tmp_path / "run"
    assert run("measure", "-o", str(folder), "--", sys.executable, "-c", "x = bytearray(10**7)") == 0
    assert (folder / "report.html").exists()
    assert looks == {"ledger": 1, "noise": 1}


def test_showing_two_runs_looks_at_each_once_also_for_their_comparison(tmp_path: Path, looks: Counter[str]):
    first, second = (write_made_run(tmp_path / name, MadeRun(seconds=1.0)) for name in ("a", "b"))
    page = str(tmp_path / "page.html")
    assert run("show", str(first), "--over", str(second), "--html", page, "--json") == 0
    assert looks == {"ledger": 2, "noise": 2}


def test_a_quiet_run_without_a_report_is_not_looked_at(tmp_path: Path, looks: Counter[str]):
    assert run("measure", "-q", "--no-report", "-o", str(tmp_path / "run"), "--", "true") == 0
    assert looks == {}
