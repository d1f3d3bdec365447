"""How long does the grid of DistilBERT take: 14 optimizers under 6 techniques, predicted?

  python -m benchmarks.compare.speed [--device cpu] [--repeats 1]

Beside it stands what one prediction of the same job takes, times the cells: what the grid would cost cell by cell.
Exit code 1 where a cell has no figure or the limit of 60 s is passed.
"""

from __future__ import annotations

import argparse
import sys
import time

from memfit import api

LIMIT_SECONDS = 60.0
SETTINGS = {"batch_size": 16, "length": 384}


def main() -> int:
    """Print the table; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", action="append", help="repeatable [default: cpu and cuda:a100-40gb]")
    options = parser.parse_args()
    print("| device | cells | with a figure | seconds | limit | one by one, about | ratio |")
    print("|---|---:|---:|---:|---:|---:|---:|", flush=True)
    is_within = True
    for device in options.device or ["cpu", "cuda:a100-40gb"]:
        started = time.perf_counter()
        api.predict_peak("distilbert", settings=SETTINGS, device=device, engine="fake")
        alone = time.perf_counter() - started
        grid = api.compare_recipes("distilbert", settings=SETTINGS, device=device, engine="fake")
        known = sum(cell.predicted is not None for cell in grid.cells)
        one_by_one = alone * len(grid.cells) / 2
        is_within = is_within and grid.took_seconds <= LIMIT_SECONDS and known == len(grid.cells)
        print(
            f"| {device} | {len(grid.cells)} | {known} | {grid.took_seconds:.1f} | {LIMIT_SECONDS:.0f} | "
            f"{one_by_one:.0f} | {one_by_one / grid.took_seconds:.1f} |",
            flush=True,
        )
        for cell in grid.cells:
            if cell.predicted is None:
                print(f"  {cell.optimizer}, {cell.technique}: {cell.state}: {cell.reason}", file=sys.stderr)
    return 0 if is_within else 1


if __name__ == "__main__":
    sys.exit(main())
