"""Are repeats interleaved, measured, kept, and taken up again where they stopped?"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from memfit import api
from memfit.errors import DamagedRecord, Interrupted, MemfitError, NewerFormat, NotARun, RunExists, UsageError
from memfit.measure.repeats import create_series, read_plan, run_series
from memfit.records.difference import PLAN_FILE, RepeatedCommand, RepeatPlan, RepeatProgress
from memfit.records.run import settings_for

HOLD = "import sys, time; held = bytearray(int(sys.argv[1]) << 20); print('held', len(held)); time.sleep(0.3)"


def side(*command: str, folder: Path) -> RepeatedCommand:
    settings = settings_for(None, marks=False)
    return RepeatedCommand(command=command, working_folder=str(folder), settings=settings)


def made_plan(folder: Path, first: tuple[str, ...], second: tuple[str, ...]) -> RepeatPlan:
    order = ("A", "B", "B", "A")
    return RepeatPlan(first=side(*first, folder=folder), second=side(*second, folder=folder), order=order)


@pytest.mark.slow
def test_two_commands_are_run_in_turn_and_a_real_difference_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    told: list[RepeatProgress] = []

    class Follower:
        def begin(self, plan: RepeatPlan, folder: Path) -> None:
            assert folder == Path("out")
            assert plan.first.command[-1] == "40"

        def show(self, progress: RepeatProgress) -> None:
            told.append(progress)

    commands = [[sys.executable, "-S", "-c", HOLD, size] for size in ("40", "50")]
    settings = settings_for(None, marks=False)
    comparison = api.repeat_commands(commands[0], commands[1], output="out", settings=settings, progress=Follower())
    assert comparison.order == ("A", "B", "B", "A", "A", "B", "B", "A")
    assert (comparison.first.num_runs, comparison.second.num_runs) == (4, 4)
    peak = next(row for row in comparison.differences if row.name == "peak")
    assert peak.verdict == "larger than the noise"
    assert peak.change.value == pytest.approx(10 * 2**20, rel=0.2)
    assert peak.resolves is not None
    ended = [progress for progress in told if progress.num_done]
    assert ended[-1].num_done == ended[-1].num_runs == 8
    assert ended[-1].seconds_left == 0
    assert (tmp_path / "out" / "b3.txt").read_text() == f"held {50 << 20}\n"


def test_what_is_done_is_not_done_again_and_what_is_torn_is(tmp_path: Path):
    first = (sys.executable, "-S", "-c", "open('log', 'a').write('A')")
    second = (sys.executable, "-S", "-c", "open('log', 'a').write('B')")
    plan = made_plan(tmp_path, first, second)
    create_series(tmp_path / "out", plan)
    run_series(tmp_path / "out", plan)
    assert (tmp_path / "log").read_text() == "ABBA"
    (tmp_path / "out" / "b1" / "events.jsonl").unlink()
    run_series(tmp_path / "out", read_plan(tmp_path / "out"))
    assert (tmp_path / "log").read_text() == "ABBAB"


def test_a_run_that_fails_stops_the_series_and_shows_its_last_words(tmp_path: Path):
    plan = made_plan(tmp_path, (sys.executable, "-c", "pass"), (sys.executable, "-c", "raise SystemExit('no data')"))
    create_series(tmp_path / "out", plan)
    with pytest.raises(MemfitError, match="run 2 of 4") as caught:
        run_series(tmp_path / "out", plan)
    assert "no data" in caught.value.found
    assert "b1.txt" in caught.value.hint


def test_a_signal_keeps_what_is_done_and_says_how_to_go_on(tmp_path: Path):
    job = "import time, os; time.sleep(0 if not os.path.exists('long') else 60)"
    script = (
        "import sys; from memfit.commands import main; "
        "main(['diff', '--repeat', '4', '-o', 'out', '--', sys.executable, '-c', sys.argv[1], '--', "
        "sys.executable, '-c', sys.argv[1]])"
    )
    command = [sys.executable, "-c", script, job]
    running = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        wait_for(tmp_path / "out" / "a1.txt")
        (tmp_path / "long").touch()
        time.sleep(1.0)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=60)
    finally:
        running.kill()
    if running.returncode == 0:
        pytest.fail(f"it was over before the signal: {out}")
    assert running.returncode == 130, err
    assert "go on with: memfit diff --resume out" in err
    (tmp_path / "long").unlink()
    comparison = api.resume_repeats(tmp_path / "out")
    assert comparison.first.num_runs == 4


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.02)


def test_recorded_commands_are_run_again_where_they_were_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    place = tmp_path / "place"
    place.mkdir()
    monkeypatch.chdir(place)
    code = "import os; print(os.getcwd())"
    for name in ("a", "b"):
        api.measure_command([sys.executable, "-c", code], output=tmp_path / name)
    monkeypatch.chdir(tmp_path)
    comparison = api.repeat_runs("a", "b", output="out", stable=True)
    assert (tmp_path / "out" / "a1.txt").read_text().strip() == os.path.realpath(place)
    again = api.read_run(tmp_path / "out" / "b4")
    assert again.header.settings.stable
    assert again.header.working_folder == os.path.realpath(place)
    assert next(row for row in comparison.differences if row.name == "peak").verdict == "within the noise"


def test_folders_that_hold_something_else_are_left_alone(tmp_path: Path):
    plan = made_plan(tmp_path, ("true",), ("true",))
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("precious")
    with pytest.raises(RunExists, match="holds no repeats"):
        create_series(other, plan, overwrite=True)
    assert (other / "thesis.txt").read_text() == "precious"
    create_series(tmp_path / "out", plan)
    with pytest.raises(RunExists, match="--resume"):
        create_series(tmp_path / "out", plan)
    create_series(tmp_path / "out", plan, overwrite=True)


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (None, NotARun),
        ("{", DamagedRecord),
        ("[]", DamagedRecord),
        (json.dumps({"format": "memfit-repeats", "format_version": 2}), NewerFormat),
        (json.dumps({"format": "memfit-repeats", "format_version": 1, "order": ["A", "C"]}), DamagedRecord),
        (" " * (1 << 21), DamagedRecord),
    ],
)
def test_a_plan_that_cannot_be_read_is_one_clear_error(tmp_path: Path, content: str | None, error: type[MemfitError]):
    if content is not None:
        (tmp_path / PLAN_FILE).write_text(content)
    with pytest.raises(error):
        read_plan(tmp_path)


def test_what_cannot_work_is_refused_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="at least 4"):
        api.repeat_commands(["true"], ["true"], 3, output="out")
    with pytest.raises(UsageError, match="no command 'nowhere'"):
        api.repeat_commands(["true"], ["nowhere"], output="out")
    gone = made_plan(tmp_path / "gone", ("true",), ("true",))
    with pytest.raises(UsageError, match="is gone"):
        create_series(tmp_path / "out", gone)
    assert not (tmp_path / "out").exists()


def test_an_interruption_has_the_exit_code_of_ctrl_c():
    assert Interrupted("x").exit_code == 130
