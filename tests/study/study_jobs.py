"""Trial scripts and small studies for the tests of the coordinator; everything they start, the tests see end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from memfit.records.study import Choice, SearchSpace, Span, Study, StudySettings, Tool
from memfit.study.options import StudyOptions
from memfit.study.session import SilentStudy, open_session

GOOD = """
import nni
x = nni.get_next_parameter()["x"]
for step in range(3):
    nni.report_intermediate_result(x * step)
nni.report_final_result(x * x)
"""
WAITS = """
import nni, os, time
x = nni.get_next_parameter()["x"]
nni.report_intermediate_result(x)
deadline = time.monotonic() + 60
while not os.path.exists("go") and time.monotonic() < deadline:
    time.sleep(0.02)
nni.report_final_result(x)
"""
PATIENCE_SECONDS = 60


def script(folder: Path, text: str, name: str = "trial.py") -> str:
    """Write a trial; returns the line that runs it."""
    (folder / name).write_text(text)
    return f"{sys.executable} {name}"


def settings_for(folder: Path, text: str, **changes: Any) -> StudySettings:
    """A random search over one number."""
    known: dict[str, Any] = {
        "name": "test",
        "space": SearchSpace(parameters=(Span(name="x", low=0.0, high=1.0),)),
        "command": script(folder, text),
        "code_folder": str(folder),
        "tuner": Tool(name="Random"),
        "max_trials": 1,
    }
    return StudySettings(**(known | changes))


def run(settings: StudySettings | None, folder: Path, **options: Any) -> tuple[Study, SilentStudy]:
    """Run one session in this process."""
    watcher, asked = SilentStudy(), StudyOptions(output=str(folder), **options)
    session = open_session(settings, asked, watcher)
    try:
        return session.run(watcher, asked), watcher
    finally:
        session.close()


def one_of(*options: Any) -> SearchSpace:
    """A space of one choice, x."""
    return SearchSpace(parameters=(Choice(name="x", options=options),))


def memfit_study(*words: str, cwd: Path) -> subprocess.Popen[str]:
    """`memfit study ...` as a process of its own."""
    command = [sys.executable, "-m", "memfit", "study", *words]
    return subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_until(is_so: Callable[[], Any], what: str) -> Any:
    """Wait, for as long as a loaded machine may need."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if found := is_so():
            return found
        time.sleep(0.02)
    raise AssertionError(f"waited {PATIENCE_SECONDS} s for {what}")


def carriers(text: str) -> list[int]:
    """Living processes with this text in their environment or command line, zombies and this process left out."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            stat = Path(f"/proc/{name}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
            seen = Path(f"/proc/{name}/environ").read_bytes() + Path(f"/proc/{name}/cmdline").read_bytes()
        except OSError:
            continue
        if int(name) != os.getpid() and stat != "Z" and text.encode() in seen:
            found.append(int(name))
    return found
