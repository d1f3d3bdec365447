"""Are predicted cells the measured ones? Tensors of every cell, predicted and under torch's own record of allocations.

  python -m benchmarks.compare.cells [-o FOLDER] [--only WORKLOAD]

Three workloads, four optimizers, techniques that act on activations, gradients, state and the update. Finished cells
are kept in the folder, and the same command goes on with them. Exit code 1 where a cell differs or has no figure.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from memfit import api
from memfit.records.grid import Grid, GridCell
from memfit.units import format_bytes

WORKLOADS: dict[str, tuple[dict[str, object], tuple[str, ...]]] = {
    "mlp": ({"layers": 4, "hidden": 512}, ("plain", "bf16", "checkpoint", "step-in-backward", "accumulate=4")),
    "gpt": (
        {"layers": 2, "width": 128, "words": 4000},
        ("plain", "bf16+checkpoint", "lora=4", "pure-bf16", "clip+accumulate=2"),
    ),
    "resnet18": ({"batch_size": 4, "size": 64}, ("plain", "checkpoint", "keep-gradients", "batch=8")),
}
OPTIMIZERS = ("sgd", "adam", "adamw-fused", "adafactor")


def main() -> int:
    """Print the table; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmark-results/compare-cells"))
    parser.add_argument("--only", choices=list(WORKLOADS), action="append")
    options = parser.parse_args()
    print("| workload | optimizer | technique | predicted | measured | difference |")
    print("|---|---|---|---:|---:|---:|", flush=True)
    cells: list[GridCell] = []
    for name in options.only or WORKLOADS:
        grid = _grid(name, options.output / name)
        for cell in grid.cells:
            print(_row(name, cell), flush=True)
        cells += grid.cells
    equal = sum(cell.difference_bytes == 0 for cell in cells)
    print(f"\n{equal} of {len(cells)} cells equal to the byte")
    return 0 if equal == len(cells) else 1


def _grid(name: str, folder: Path) -> Grid:
    settings, techniques = WORKLOADS[name]
    return api.compare_recipes(
        name, settings=settings, optimizers=OPTIMIZERS, techniques=techniques, measure=True, num_steps=3, output=folder
    )


def _row(workload: str, cell: GridCell) -> str:
    figures = [cell.predicted, cell.measured]
    sizes = [None if each is None else each.tensors.value for each in figures]
    texts = ["-" if size is None else format_bytes(size) for size in sizes]
    difference = cell.difference_bytes
    why = cell.reason or cell.not_measured or (cell.measured.tensors.reason if cell.measured is not None else "")
    end = why if difference is None else "equal" if difference == 0 else f"{difference:+,} B"
    return f"| {workload} | {cell.optimizer} | {cell.technique} | {texts[0]} | {texts[1]} | {end} |"


if __name__ == "__main__":
    sys.exit(main())
