"""Do the lines of a real run's ledger add up to its headline, in programs without torch, alone and in trees?"""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from memfit.explain.run.ledger import explain_peak
from memfit.runfolder.reader import read_run

PROGRAMS = {
    "python alone": "data = [bytearray(1 << 20) for _ in range(60)]; import time; time.sleep(0.4)",
    "forked workers": """
        import os, time
        data = [bytearray(1 << 20) for _ in range(60)]
        for _ in range(2):
            if os.fork() == 0:
                own = bytearray(b"x") * (20 << 20)
                time.sleep(0.8)
                os._exit(0)
        time.sleep(1.0)
    """,
    "a larger child": """
        import subprocess, sys
        subprocess.run([sys.executable, "-c", "x = bytearray(b'x') * (80 << 20); import time; time.sleep(0.5)"])
    """,
    "killed": "import os, time; data = bytearray(b'x') * (50 << 20); time.sleep(0.4); os.kill(os.getpid(), 9)",
}


def measured(folder: Path, program: str) -> dict:
    """Run a program under the ledger; what `memfit show --json` says of it."""
    memfit = [sys.executable, "-m", "memfit"]
    command = [*memfit, "measure", "-q", "--no-report", "--ledger", "-o", str(folder), "--", sys.executable, "-c"]
    subprocess.run([*command, textwrap.dedent(program)], capture_output=True, timeout=120)
    shown = subprocess.run([*memfit, "show", str(folder), "--json"], capture_output=True, text=True, timeout=120)
    return json.loads(shown.stdout)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_ledger_of_a_program_without_torch_adds_up_to_its_headline(tmp_path: Path, name: str):
    shown = measured(tmp_path / "run", PROGRAMS[name])
    run = read_run(tmp_path / "run")
    ledger = explain_peak(run)[0]
    assert ledger.peak_bytes == round(run.peak.value or 0) > 10 << 20
    assert sum(line.num_bytes for line in ledger.lines) == ledger.peak_bytes
    assert all(line.num_bytes >= 0 for line in ledger.lines)
    assert ledger.explained_ratio > 0.9, ledger.lines
    assert shown["ledgers"][0]["explained_ratio"] == ledger.explained_ratio
    assert shown["ledgers"][0]["peak_bytes"] == ledger.peak_bytes
