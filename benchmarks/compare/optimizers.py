"""The table of docs/optimizers.md: bytes per parameter of every optimizer, predicted and measured.

  python -m benchmarks.compare.optimizers [--only torch] [-o docs/optimizers.md]

Runs that a file keeps are not made again, so that an interrupted table goes on where it was.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.compare.optimizer_page import optimizer_page
from memfit.api.compare import optimizer_bytes
from memfit.show.export.compare_files import optimizers_csv
from memfit.show.terminal.optimizers import optimizers_text


def say(text: str) -> None:
    """Progress, on a line of its own."""
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Make the table, show it, and write what was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", help="only these optimizers")
    parser.add_argument("--only", default="", choices=["torch", "pytorch_optimizer", "torchao", "bitsandbytes"])
    parser.add_argument("--device", action="append", help="cpu and cuda unless given")
    parser.add_argument("--no-measure", action="store_true", help="predict only")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--kept-in", type=Path, default=Path("benchmark-results/optimizer_runs.jsonl"))
    parser.add_argument("--only-kept", action="store_true", help="show the runs that are kept, and make none")
    parser.add_argument("--csv", type=Path, help="write the table as CSV")
    parser.add_argument("-o", "--output", type=Path, help="write the page")
    options = parser.parse_args()
    options.kept_in.parent.mkdir(parents=True, exist_ok=True)
    table = optimizer_bytes(
        options.names,
        device=tuple(options.device or ("cpu", "cuda")),
        measure=not options.no_measure,
        only=options.only,
        num_processes=options.processes,
        kept_in=options.kept_in,
        only_kept=options.only_kept,
        tell=say,
    )
    if options.csv:
        options.csv.write_text(optimizers_csv(table), encoding="utf-8")
    if options.output:
        options.output.write_text(optimizer_page(table), encoding="utf-8")
    else:
        print(optimizers_text(table, width=120), end="")


if __name__ == "__main__":
    main()
