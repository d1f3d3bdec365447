"""What does the sampler take of a core in every mode? python -m benchmarks.overhead.sampler_modes

One process and a tree of three, each with and without `--ledger`, by the sampler's own CPU clock (its start-up apart),
as the summary of every run prints it, and the part of it that page walks took.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.overhead.report import print_table
from benchmarks.overhead.samplers import HERE
from memfit.measure.sampler.shared_pages import ALONE_ALLOWANCE_US, ALONE_COST_SHARE, TREE_ALLOWANCE_US, TREE_COST_SHARE
from memfit.runfolder.reader import read_run

JOB = str(HERE / "torch_ledger_job.py")
NUM_STEPS = "1500"
MODES: dict[str, tuple[list[str], str]] = {
    "one process": ([], "steady"),
    "one process, --ledger": (["--ledger"], "steady"),
    "tree of three": ([], "fork"),
    "tree of three, --ledger": (["--ledger"], "fork"),
}
COLUMNS = ("mode", "seconds", "sampler, of a core", "page walks", "their CPU", "their budget", "kept")


def measure_mode(name: str, folder: Path) -> tuple[str, ...]:
    """Run the job once in this mode."""
    options, job = MODES[name]
    command = [sys.executable, "-m", "memfit", "measure", "-q", "--no-report", *options, "-o", str(folder), "--"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NUM_STEPS": NUM_STEPS}
    subprocess.run([*command, sys.executable, JOB, job], check=True, env=environment)
    run = read_run(folder)
    assert run.sampler is not None
    spent_seconds = run.sampler.cpu_seconds - run.sampler.start_cpu_seconds
    walk_seconds = sum(reading.cost_seconds for reading in run.tree_readings)
    longest_seconds = max((reading.cost_seconds for reading in run.tree_readings), default=0.0)
    is_tree = len(run.processes) > 1
    share, allowance_us = (TREE_COST_SHARE, TREE_ALLOWANCE_US) if is_tree else (ALONE_COST_SHARE, ALONE_ALLOWANCE_US)
    budget_seconds = run.duration_seconds * share + allowance_us / 1e6
    kept = walk_seconds <= budget_seconds + longest_seconds
    return (
        name,
        f"{run.duration_seconds:.1f}",
        f"{100 * spent_seconds / run.duration_seconds:.2f} %",
        str(len(run.tree_readings)),
        f"{1000 * walk_seconds:.0f} ms",
        f"{1000 * budget_seconds:.0f} ms and the last walk",
        "yes" if kept else "no",
    )


def main() -> int:
    """Every mode once; 1 when page walks took more than their budget."""
    rows = []
    for name in MODES:
        with tempfile.TemporaryDirectory(prefix="memfit-bench-") as folder:
            rows.append(measure_mode(name, Path(folder) / "run"))
            print("  ".join(rows[-1]), flush=True)
    print_table("The sampler in every mode", COLUMNS, rows)
    return 0 if all(row[-1] == "yes" for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
