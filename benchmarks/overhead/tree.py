"""How right is the peak of a whole process tree, when data workers were forked and share most of their memory?"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.overhead.options import Options
from benchmarks.overhead.paired import estimate
from benchmarks.overhead.report import Finding, Part, mebibytes, ratio_text
from benchmarks.overhead.samplers import HERE
from benchmarks.overhead.whole_runs import environment
from memfit.runfolder.reader import read_run

MOST_ERROR = 0.02
MEMFIT = "memfit"
METHOD = (
    "The MLP fed by two forked DataLoader workers that read a list of Python objects (and so copy it page by "
    "page). The truth is summed PSS, read by a separate process for a fifth of the time, during the very run the "
    "tool measures ({num_rounds} rounds, shuffled). 1.000 is right."
)


def measure(options: Options) -> Part:
    """Every tool with the truth beside it."""
    draw = random.Random(options.seed)
    quotients: dict[str, list[float]] = {name: [] for name in TOOLS}
    truths: list[dict[str, Any]] = []
    num_rounds = options.count(quick=1, full=3)
    for _ in range(num_rounds):
        for name in draw.sample(list(TOOLS), len(TOOLS)):
            options.quiet.wait()
            with tempfile.TemporaryDirectory(prefix="memfit-bench-") as folder:
                reported_bytes, truth = TOOLS[name](Path(folder), options.count(quick=100, full=300))
            quotients[name].append(reported_bytes / truth["proportional_bytes"])
            truths.append(truth)
    return _judge(quotients, truths, METHOD.format(num_rounds=num_rounds), options.seed)


def _run(command: list[str], folder: Path, num_batches: int) -> dict[str, Any]:
    """Run the job under a tool and read the truth beside it."""
    pid_file, output = folder / "pid", folder / "truth.json"
    job = [sys.executable, str(HERE / "torch_worker_job.py"), str(pid_file), str(num_batches)]
    with subprocess.Popen([*command, *job], cwd=folder, env=environment(), stdout=subprocess.DEVNULL) as running:
        while not (pid_file.exists() and pid_file.read_text()):
            if running.poll() is not None:
                raise RuntimeError(f"{command[:4]} ended with code {running.returncode} before the job began")
            time.sleep(0.02)
        subprocess.run([sys.executable, str(HERE / "pss_reader.py"), pid_file.read_text(), str(output)], check=True)
    if running.returncode:
        raise RuntimeError(f"{command[:4]} ended with code {running.returncode}")
    return json.loads(output.read_text())


def _memfit(folder: Path, num_batches: int) -> tuple[float, dict[str, Any]]:
    command = [sys.executable, "-m", "memfit", "measure", "-q", "--no-report", "-o", str(folder / "run"), "--"]
    truth = _run(command, folder, num_batches)
    return read_run(folder / "run").peak.value or 0.0, truth


def _mprof(folder: Path, num_batches: int) -> tuple[float, dict[str, Any]]:
    command = [sys.executable, "-m", "mprof", "run", "-C", "-T", "0.1", "-o", "mprof.dat"]
    truth = _run(command, folder, num_batches)
    lines = (folder / "mprof.dat").read_text().splitlines()
    return max(float(line.split()[1]) for line in lines if line.startswith("MEM ")) * 1024**2, truth


TOOLS: dict[str, Callable[[Path, int], tuple[float, dict[str, Any]]]] = {
    MEMFIT: _memfit,
    "mprof -C (summed RSS)": _mprof,
}


def _judge(quotients: dict[str, list[float]], truths: list[dict[str, Any]], method: str, seed: int) -> Part:
    found = {name: estimate(values, seed) for name, values in quotients.items()}
    worst = max(abs(value - 1) for value in quotients[MEMFIT])
    rows = [
        (name, ratio_text(e), f"{100 * max(abs(v - 1) for v in quotients[name]):.1f} %") for name, e in found.items()
    ]
    true_bytes = [truth["proportional_bytes"] for truth in truths]
    rows.append(("true peak", f"{mebibytes(min(true_bytes)):.0f}-{mebibytes(max(true_bytes)):.0f} MiB", ""))
    finding = Finding(
        what="tree with forked workers, reported / true, worst run",
        peers=f"mprof -C {found['mprof -C (summed RSS)'].value:.2f}x",
        memfit=f"{100 * worst:.1f} % off",
        target="within 2 %",
        verdict="reached" if worst <= MOST_ERROR else "missed",
    )
    return Part(
        name="tree",
        title="A process tree",
        method=method,
        columns=("tool", "reported / true peak", "worst error"),
        rows=rows,
        findings=[finding],
        raw={"quotients": quotients, "truths": truths},
    )
