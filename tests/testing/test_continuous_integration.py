"""Does `.ci/run` run all parts to their end, and is a part that failed or could not run in its summary?"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "run"
MAKE = """#!/usr/bin/env bash
case "$1" in
    gpu-torch) [[ $BROKEN != fetch ]] || { echo "no such build"; exit 2; } ;;
    test-slow) echo "23 passed in 61.00s"; [[ $BROKEN != test-slow ]] ;;
    test) echo "2089 passed, 40 skipped in 361.00s"; [[ $BROKEN != test ]] ;;
    test-gpu) echo "70 passed, 6 skipped in 235.48s"; [[ $BROKEN != test-gpu ]] ;;
esac
"""
PYTEST = """#!/usr/bin/env bash
printf 'tests/phantom/test_a.py::test_one\ntests/phantom/test_a.py::test_two\n'
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The script beside programs that only say what the real ones would."""
    for name, text in (("programs/make", MAKE), (".venv/bin/pytest", PYTEST), (".ci/run", SCRIPT.read_text())):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
        path.chmod(0o755)
    return tmp_path


def run(checkout: Path, broken: str = "") -> tuple[int, list[str]]:
    """The exit code, and the lines of the summary."""
    programs = f"{checkout / 'programs'}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": programs, "BROKEN": broken}
    done = subprocess.run([str(checkout / ".ci" / "run")], env=environment, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout.partition("\nsummary\n")[2].splitlines()


pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="the script is written for bash")


def test_all_parts_are_in_the_summary_with_their_counts(checkout: Path):
    code, lines = run(checkout)
    assert code == 0
    assert "make test: ok, 2089 passed, 40 skipped" in lines[0]
    assert "longer tests (make test-slow): ok, 23 passed" in lines[1]
    assert "phantom GPU (make test-gpu): ok, 70 passed, 6 skipped" in lines[2]


@pytest.mark.parametrize(("broken", "line"), [("test", 0), ("test-slow", 1), ("test-gpu", 2)])
def test_a_part_that_fails_stops_no_other_and_fails_the_whole(checkout: Path, broken: str, line: int):
    code, lines = run(checkout, broken)
    assert code == 1
    assert len(lines) == 3
    assert ": FAILED, " in lines.pop(line)
    assert all(": ok, " in other for other in lines)


def test_a_part_that_cannot_run_is_counted_in_the_summary(checkout: Path):
    _, lines = run(checkout, "fetch")
    assert "NOT RUN, 2 tests: the CUDA build of torch could not be installed" in lines[2]
