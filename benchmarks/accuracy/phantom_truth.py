"""How near is the phantom GPU to published measurements on real ones: single operators and xMem's jobs?

  python -m benchmarks.accuracy.phantom_truth FOLDER [--only operators|xmem]

FOLDER holds the collected truth. Run with a CUDA build of torch, from the root of the checkout. The jobs are those of
`gpu_truth` and `xmem`, which put the same questions to fake tensors; nothing is fitted but xMem's one constant, in the
same way. Every row is a child of its own, so this takes some minutes.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Literal

from benchmarks.accuracy.comparison import Row
from benchmarks.accuracy.gpu_truth import operator_cases
from benchmarks.accuracy.gpu_truth import report as report_rows
from benchmarks.accuracy.xmem import CARDS, HELD_OUT, beside_allocator, read_jobs, report
from memfit.job.description import describe_job
from memfit.predict.devices.parse import parse_device
from memfit.records.prediction import Prediction
from memfit.testing.engines import on_phantom
from memfit.units import MIB

JOBS = Path(__file__).with_name("phantom_truth_job.py")


def predict(function: str, settings: dict[str, Any], gpu: str, num_steps: int) -> Prediction:
    """One job on a phantom of the card it was measured on."""
    return on_phantom(describe_job(f"{JOBS}:{function}", settings), parse_device(gpu), num_steps=num_steps)


def peak_of(prediction: Prediction, level: Literal["allocated", "reserved"]) -> int:
    """One level of a prediction."""
    figure = prediction.level(level)
    assert figure is not None
    return int(figure.value or 0)


def operators(folder: Path) -> None:
    """A line for every operator, then the spread."""
    rows: list[Row] = []
    for case in operator_cases(folder):
        settings = {"name": case.name, "size": case.size, "config": case.config, "mode": case.mode}
        allocated = peak_of(predict("operator", settings, case.gpu, 3), "allocated")
        rows.append(Row(case.title, allocated, case.real_bytes))
        predicted, real = allocated / MIB, case.real_bytes / MIB
        print(f"  {case.title:44} {predicted:11.3f} for {real:11.3f} MiB  {predicted - real:+9.3f}", flush=True)
    report_rows("operators on the phantom GPU, allocated", rows)


def xmem_on_phantom(row: dict[str, str]) -> tuple[int, bool]:
    """Reserved bytes of one of xMem's jobs, and whether it runs out of memory."""
    settings = {"model": row["model"], "optimizer": row["optimizer"], "batch_size": int(row["batch_size"])}
    prediction = predict("xmem", settings, CARDS[row["gpu"]], 4)
    return peak_of(prediction, "reserved"), prediction.failed is not None


def xmem(folder: Path) -> None:
    """Both halves, as `benchmarks.accuracy.xmem` prints them."""
    near = read_jobs(folder / "xmem" / "xmem_points.csv", xmem_on_phantom)
    constant = beside_allocator(near)
    print(f"beside the allocator: {constant / MIB:.0f} MiB (median of the language models of FOLDER)\n")
    report("collected truth, phantom GPU", near, constant)
    report("held out, phantom GPU", read_jobs(HELD_OUT, xmem_on_phantom), constant)


def main() -> None:
    """Both parts, or one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", choices=["operators", "xmem"])
    asked = parser.parse_args()
    if asked.only in (None, "operators"):
        operators(asked.folder)
    if asked.only in (None, "xmem"):
        xmem(asked.folder)


if __name__ == "__main__":
    main()
