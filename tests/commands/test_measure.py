"""Does the command line refuse bad requests with one clear line, the right exit code and nothing left behind?"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

MEMFIT = [sys.executable, "-m", "memfit"]


def memfit(*words: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, **environment}
    return subprocess.run([*MEMFIT, *words], capture_output=True, text=True, cwd=cwd, env=variables, check=False)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("measure",), "there is no command to measure"),
        (("measure", "--"), "there is no command to measure"),
        (("measure", "--", "no-such-command"), "there is no command 'no-such-command'"),
        (("measure", "--interval", "0", "--", "true"), "above zero"),
        (("measure", "--interval", "0.1ms", "--", "true"), "between 1ms and 1h"),
        (("measure", "--interval", "2h", "--", "true"), "between 1ms and 1h"),
        (("measure", "--interval", "soon", "--", "true"), "not a duration"),
        (("measure", "--limit", "2", "--", "true"), "has no unit"),
        (("measure", "--limit", "-2GiB", "--", "true"), "at least one byte"),
        (("measure", "--ledger", "--no-marks", "--", "true"), "--ledger needs the marks"),
        (("measure", "--ledger-every", "0", "--", "true"), "0 is not in the range"),
        (("measure", "--assume-watts", "0", "--", "true"), "not in the range"),
        (("measure", "--no-such-option", "--", "true"), "No such option"),
        (("mesure", "--", "true"), "did you mean 'measure'?"),
        (("train.py",), "memfit measure -- train.py"),
    ],
)
def test_a_wrong_request_is_exit_code_2_and_one_clear_line(tmp_path: Path, words: tuple[str, ...], says: str):
    run = memfit(*words, cwd=tmp_path)
    assert run.returncode == 2
    assert says in run.stderr
    assert "Traceback" not in run.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_pid_that_is_gone_is_exit_code_1(tmp_path: Path):
    gone = subprocess.Popen(["true"])
    gone.wait()
    run = memfit("attach", str(gone.pid), cwd=tmp_path)
    assert run.returncode == 1
    assert f"there is no process {gone.pid}" in run.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("verb", ["measure", "attach", "show", "diff", "export", "doctor"])
def test_every_verb_has_help_with_an_example(tmp_path: Path, verb: str):
    run = memfit(verb, "--help", cwd=tmp_path)
    assert run.returncode == 0
    assert "Example" in run.stdout
    assert f"memfit {verb}" in run.stdout


def test_the_default_folder_is_named_after_the_script_and_dated(tmp_path: Path):
    (tmp_path / "train.py").write_text("print('hello')")
    run = memfit("measure", "-q", "--no-report", "--", sys.executable, "train.py", cwd=tmp_path)
    assert run.returncode == 0
    assert run.stdout == "hello\n"
    (folder,) = (tmp_path / "memfit-runs").iterdir()
    assert folder.name.startswith("train-20")


def test_json_prints_the_record_alone_on_standard_output(tmp_path: Path):
    run = memfit("measure", "--json", "--no-report", "-o", "r", "--", "true", cwd=tmp_path)
    record = json.loads(run.stdout)
    assert record["headline"]["outcome"]["kind"] == "done"
    assert run.stderr == ""


def test_a_run_writes_page_and_pictures_beside_the_record(tmp_path: Path):
    run = memfit("measure", "-o", "r", "--", sys.executable, "-c", "import time; time.sleep(.3)", cwd=tmp_path)
    assert run.returncode == 0
    assert "Peak" in run.stdout
    names = {path.name for path in (tmp_path / "r").iterdir()}
    assert {"run.json", "samples.bin", "events.jsonl", "report.html", "timeline.png", "timeline.svg"} <= names


def test_an_unwritable_place_is_one_clear_line(tmp_path: Path):
    (tmp_path / "file").write_text("")
    run = memfit("measure", "-o", "file/r", "--", "true", cwd=tmp_path)
    assert run.returncode == 1
    assert "cannot be written" in run.stderr
    assert "Traceback" not in run.stderr


def test_no_colour_codes_leak_into_a_pipe(tmp_path: Path):
    run = memfit("measure", "--no-report", "-o", "r", "--", "true", cwd=tmp_path)
    assert "\x1b" not in run.stdout + run.stderr
