"""Do the lines of the ledger add up to the headline, job by job? python -m benchmarks.overhead.ledger_sums

Every job runs under `memfit measure --ledger`, several times. The table says how much of the peak carries a name, what
is left, and by how much the lines miss the headline (never, or the exit code is 1).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.overhead.report import mebibytes, print_table
from benchmarks.overhead.samplers import HERE
from memfit.explain.run.ledger import explain_peak
from memfit.records.run import RunRecord
from memfit.records.run_parts.ledger import Ledger
from memfit.runfolder.reader import read_run

OWN_JOB = str(HERE / "torch_ledger_job.py")
COLUMNS = ("job", "peak", "explained", "rest", "total - headline", "explained step", "sampler, of a core")


def _workload(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "memfit.job.run", name, "-q", *arguments]


def _own(name: str) -> list[str]:
    return [sys.executable, OWN_JOB, name]


JOBS: dict[str, list[str]] = {
    "mlp": _workload("mlp", "--steps", "70", "--set", "batch_size=256"),
    "gan": _workload("gan", "--steps", "30", "--set", "width=24"),
    "accumulation": _own("accumulation"),
    "distilbert": _workload("distilbert", "--steps", "4", "--set", "batch_size=2", "--set", "length=64"),
    "resnet18": _workload("resnet18", "--steps", "6", "--set", "batch_size=4", "--set", "size=128"),
    "workers by fork": _own("fork"),
    "workers by spawn": _own("spawn"),
    "sklearn forest": _workload("forest", "--set", "examples=4000", "--set", "trees=30"),
    "evaluation": _own("evaluation"),
    "batch lengths": _own("lengths"),
}
ENVIRONMENT = {"OMP_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one run said."""

    job: str
    peak_bytes: int
    explained_ratio: float
    rest_bytes: int
    lowest_line_bytes: int
    surplus_bytes: int
    """Sum of the lines minus the headline."""
    step: str
    sampler_share: float

    @property
    def is_lawful(self) -> bool:
        """The lines add up to the headline and none is below zero."""
        return self.surplus_bytes == 0 and self.lowest_line_bytes >= 0


def measure_job(name: str, folder: Path, *, verbose: bool = False) -> Row:
    """Run one job under the ledger and read what it says."""
    command = [sys.executable, "-m", "memfit", "measure", "-q", "--no-report", "--ledger", "-f", "-o", str(folder)]
    done = subprocess.run(
        [*command, "--", *JOBS[name]], capture_output=True, text=True, env={**os.environ, **ENVIRONMENT}
    )
    if done.returncode:
        raise RuntimeError(f"{name} ended with code {done.returncode}:\n{done.stderr[-2000:]}")
    run = read_run(folder)
    ledgers = [ledger for ledger in explain_peak(run) if ledger.device == "host"]
    if not ledgers:
        raise RuntimeError(f"{name} has no ledger; notes: {'; '.join(run.notes)}")
    if verbose:
        _print_lines(ledgers[0])
    return row_of(name, run, ledgers[0])


def row_of(name: str, run: RunRecord, ledger: Ledger) -> Row:
    """The figures of one ledger."""
    headline_bytes, report = round(run.peak.value or 0), run.sampler
    cpu_seconds = report.cpu_seconds - report.start_cpu_seconds if report else 0.0
    return Row(
        job=name,
        peak_bytes=headline_bytes,
        explained_ratio=ledger.explained_ratio,
        rest_bytes=sum(line.num_bytes for line in ledger.lines if line.kind == "unexplained"),
        lowest_line_bytes=min(line.num_bytes for line in ledger.lines),
        surplus_bytes=sum(line.num_bytes for line in ledger.lines) - headline_bytes,
        step=f"{ledger.step}, {ledger.phase}",
        sampler_share=cpu_seconds / run.duration_seconds,
    )


def _print_lines(ledger: Ledger) -> None:
    for line in ledger.lines:
        print(f"    {line.kind:16} {line.name[:70]:70} {mebibytes(line.num_bytes):9.2f} MiB")


def cells(row: Row) -> tuple[str, ...]:
    """One row of the printed table."""
    return (
        row.job,
        f"{mebibytes(row.peak_bytes):.1f} MiB",
        f"{100 * row.explained_ratio:.1f} %",
        f"{mebibytes(row.rest_bytes):.1f} MiB",
        f"{row.surplus_bytes} B",
        row.step,
        f"{100 * row.sampler_share:.2f} %",
    )


def measure_all(names: list[str], num_repeats: int, *, verbose: bool) -> Iterator[Row]:
    """All jobs in turn, as often as asked for."""
    for _ in range(num_repeats):
        for name in names:
            with tempfile.TemporaryDirectory(prefix="memfit-bench-") as folder:
                yield measure_job(name, Path(folder) / "run", verbose=verbose)


def main() -> int:
    """Parse, run, show; 1 when a ledger did not add up."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overhead.ledger_sums", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(JOBS), default=list(JOBS), metavar="JOB", help="these jobs")
    parser.add_argument("--repeats", type=int, default=3, help="how often each job runs (3)")
    parser.add_argument("-v", "--verbose", action="store_true", help="print every line of every ledger")
    arguments = parser.parse_args()
    rows = []
    for row in measure_all(arguments.only, arguments.repeats, verbose=arguments.verbose):
        rows.append(row)
        print("  ".join(cells(row)), flush=True)
    rows.sort(key=lambda row: arguments.only.index(row.job))
    print_table("The ledger against the headline", COLUMNS, [cells(row) for row in rows])
    num_lawful = sum(row.is_lawful for row in rows)
    print(f"{num_lawful} of {len(rows)} runs: every line >= 0 and the total is the headline")
    return 0 if num_lawful == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
