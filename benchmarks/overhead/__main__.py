"""python -m benchmarks.overhead: run every part, print the tables, write overhead.md and overhead.json."""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from benchmarks.overhead import always_on, ledger, one_core, own_cost, tree, whole_runs
from benchmarks.overhead.blocks import OthersWereAtWork
from benchmarks.overhead.options import Options
from benchmarks.overhead.quiet import Quiet
from benchmarks.overhead.report import SUMMARY_COLUMNS, Part, print_table, publish, summary_rows, write_files
from memfit.measure.counters.machine import describe_environment

PARTS: dict[str, Callable[[Options], Part]] = {
    "always_on": always_on.measure,
    "one_core": one_core.measure,
    "own_cost": own_cost.measure,
    "ledger": ledger.measure,
    "whole_runs": whole_runs.measure,
    "tree": tree.measure,
}
PEERS = ("torch", "psutil", "memory_profiler", "psrecord", "memray")


def main() -> None:
    """Parse, run, show."""
    arguments = _arguments()
    quiet = Quiet(arguments.patience if arguments.patience is not None else (5 if arguments.quick else 60))
    options = Options(quick=arguments.quick, seed=arguments.seed, quiet=quiet, minutes=arguments.minutes)
    started_seconds = time.monotonic()
    parts, missing = [], []
    for name in arguments.only or PARTS:
        try:
            part = PARTS[name](options)
        except OthersWereAtWork as error:  # what was measured before is not lost
            print(f"{name}: NOT MEASURED, {error}")
            missing.append(name)
            continue
        parts.append(part)
        print_table(part.title, part.columns, part.rows)
    print_table("Summary", SUMMARY_COLUMNS, summary_rows(parts))
    seconds = time.monotonic() - started_seconds
    page, data = write_files(arguments.output, _environment(arguments, quiet, seconds), parts)
    if arguments.publish and missing:
        raise SystemExit(f"not published, for these parts were not measured: {', '.join(missing)}; see {page}")
    if arguments.publish:
        publish(arguments.publish, page.read_text(encoding="utf-8"))
    print(f"written: {page} and {data}, after {seconds / 60:.1f} minutes")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overhead", description="What does measuring cost?")
    parser.add_argument("--quick", action="store_true", help="everything once, small: below 2 minutes when it is quiet")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), help="these parts alone")
    parser.add_argument("--seed", type=int, default=0, help="of the order of blocks and of the bootstrap")
    parser.add_argument("--patience", type=float, help="seconds to wait in all for other programs to become quiet")
    parser.add_argument(
        "--minutes", type=float, default=0, help="go on with always_on for so long, until its intervals are narrow"
    )
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmark-results"), help="folder for the results")
    parser.add_argument(
        "--publish", type=Path, metavar="PAGE", help="put the results into this page of the docs as well"
    )
    return parser.parse_args()


def _environment(arguments: argparse.Namespace, quiet: Quiet, seconds: float) -> dict[str, str]:
    """What a reader must know of the machine to judge the numbers."""
    facts = describe_environment(dict(os.environ))
    seen = quiet.seen_cores or [0.0]
    return {
        "machine": f"{facts['cpu']}, {facts['num_cores']} cores, {facts['system']}, {facts['libc']}",
        "transparent huge pages": str(facts["transparent_hugepages"]),
        "versions": ", ".join(f"{name} {metadata.version(name)}" for name in ("memfit", *PEERS)),
        "python": str(facts["python"]),
        "other programs": f"{statistics.median(seen):.1f} cores busy on median before a round, {max(seen):.1f} at most",
        "run": f"{'quick' if arguments.quick else 'full'}, seed {arguments.seed}, {seconds / 60:.1f} minutes",
    }


if __name__ == "__main__":
    main()
