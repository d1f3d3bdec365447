"""Which part of the recipe makes xMem's convolutional jobs come out as they were measured?

  python -m benchmarks.accuracy.phantom_recipes FOLDER [--cudnn FOLDER]

The same jobs as in `phantom_truth`, with one part of the recipe changed at a time: how the loop frees and zeroes, TF32,
cuDNN. Run it with several releases of torch; `--cudnn` names a folder in which pip put another cuDNN (`pip install
--no-deps --target FOLDER nvidia-cudnn-cu12==9.8.0.87`). Half a minute for each card.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.accuracy.xmem import CARDS, HELD_OUT
from memfit.units import MIB

RECIPES = ("as published", "batch freed", "zeroed late", "no TF32", "no cuDNN")
BESIDE_MIB = 38
"""Beside the allocator: from the language models, see `phantom_truth`."""
Rows = list[dict[str, str]]
Found = dict[str, int | None]


def convolutional(folder: Path) -> Rows:
    """The rows of both tables that ran."""
    rows: Rows = []
    for path in (folder / "xmem" / "xmem_points.csv", HELD_OUT):
        with open(path, encoding="utf-8") as stream:
            rows += list(csv.DictReader(stream))
    return [row for row in rows if "/" not in row["model"] and row["real_oom"] == "False"]


def ask(card: str, cudnn: str, rows: Rows) -> tuple[str, list[Found]]:
    """Every recipe of every row on one card, and with what."""
    command = [sys.executable, "-m", "benchmarks.accuracy.torch_xmem_recipes", CARDS[card], cudnn]
    text = json.dumps({"rows": rows, "recipes": RECIPES})
    done = subprocess.run(command, input=text, stdout=subprocess.PIPE, text=True, check=True)
    first, *answers = [json.loads(line) for line in done.stdout.splitlines()]
    return f"torch {first['torch']}, cuDNN {first['cudnn']}", answers


def error_of(row: dict[str, str], reserved_bytes: int | None) -> float | None:
    """Relative to what was measured; None where it does not fit."""
    if reserved_bytes is None:
        return None
    return (reserved_bytes / MIB + BESIDE_MIB) / (int(row["ground_nvml_delta_bytes"]) / MIB) - 1


def show(rows: Rows, answers: list[Found]) -> dict[str, list[float]]:
    """A line for each row; errors by recipe."""
    errors: dict[str, list[float]] = {recipe: [] for recipe in RECIPES}
    for row, found in zip(rows, answers, strict=True):
        name = f"{row['model']} {row['optimizer']} {row['batch_size']} {row['gpu']}"
        cells = []
        for recipe in RECIPES:
            reserved, error = found[recipe], error_of(row, found[recipe])
            cells.append("fails" if reserved is None else f"{reserved / MIB:.0f} {error:+.1%}")
            errors[recipe] += [] if error is None else [abs(error)]
        real = int(row["ground_nvml_delta_bytes"]) / MIB
        print(f"{name:<38}{real:7.0f}  " + "".join(f"{cell:>15}" for cell in cells), flush=True)
    return errors


def main() -> None:
    """The table, then the spread of each recipe."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cudnn", default="", help="a folder with another cuDNN")
    asked = parser.parse_args()
    rows, answers, used = convolutional(asked.folder), list[Found](), ""
    rows.sort(key=lambda row: row["gpu"])
    for card in CARDS:
        used, found = ask(card, asked.cudnn, [row for row in rows if row["gpu"] == card])
        answers += found
    print(f"{used}; MiB reserved, and the error with {BESIDE_MIB} MiB beside the allocator")
    print(f"{'':<38}{'real':>7}  " + "".join(f"{recipe:>15}" for recipe in RECIPES))
    for recipe, errors in show(rows, answers).items():
        print(f"  {recipe:<14} median {statistics.median(errors):.1%}, worst {max(errors):.1%} of {len(errors)}")


if __name__ == "__main__":
    main()
