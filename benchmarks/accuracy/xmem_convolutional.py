"""How near are predictions to convolutional jobs of xMem's evaluation, and does the stated 90 % range hold them?

  python -m benchmarks.accuracy.xmem_convolutional [--rows] [--quick]

xmem_convolutional.csv has 152 evaluation files of the public repository Stone-ResearchLife/xMem (paths below plot/data
there). A file may be read when the CRC-32 of its path is even; the odd ones stay unread, for acceptance. Of those it is
a tuning row when CRC-32 // 2 is even too, else a held-out one: decided by name, before anything was predicted. "held
out" was read and printed before the rules of today were chosen (nothing was chosen by it), "held out, new" after they
were. The 18 convolutional jobs read earlier (the collected truth, and xmem_held_out.csv, whose paths are of both kinds)
count as tuning when a folder is given with `--truth FOLDER`. What was chosen on tuning rows: everything that
`memfit.predict.gpu_rules.cudnn` says of workspaces, and its three shares.

The truth is what NVML shows above the start of the training; 38 MiB stand for kernels and handles, as in
`benchmarks.accuracy.xmem`. The loop frees the last batch before it moves the next one, and cuBLAS was told to take no
workspace.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.accuracy.torch_fake_gpu import predict_range_on_gpu
from benchmarks.accuracy.torch_xmem_loop import VISION, Habits, build
from benchmarks.accuracy.xmem import CARDS, HELD_OUT
from memfit.units import MIB

ROWS = Path(__file__).with_name("xmem_convolutional.csv")
BESIDE_BYTES = 38 * MIB
NUM_STEPS = 2
"""They ran four; the peak of reserved bytes is reached in the first two."""
ZEROES: dict[str, Literal["first", "late", "last"]] = {"": "first", "0": "first", "1": "late", "2": "last"}
"""Where gradients are zeroed, by the number in the file; without one it is not known (it moves nothing here)."""


@dataclass(frozen=True, slots=True)
class Job:
    """One measured job beside its predictions."""

    name: str
    part: str
    real_bytes: int
    ran_out: bool
    xmem_bytes: int
    xmem_says_out: bool
    predicted_bytes: int
    low_bytes: int
    high_bytes: int
    says_out: bool

    @property
    def is_covered(self) -> bool:
        """Whether the real peak lies in the stated range."""
        return self.low_bytes <= self.real_bytes <= self.high_bytes


def rows_of(truth: Path | None) -> Iterator[dict[str, str]]:
    """Rows of the table and, as tuning rows, those read earlier."""
    earlier = [HELD_OUT, truth / "xmem" / "xmem_points.csv"] if truth else []
    for path in (ROWS, *earlier):
        with open(path, encoding="utf-8") as stream:
            for row in csv.DictReader(stream):
                if row["model"] in VISION:
                    yield {"part": "tuning", "zero_grad_mode": "", "xmem_oom": "", **row}


def predicted(row: dict[str, str]) -> Job:
    """One row with the fake engine's answer."""
    model, optimizer, batch_size = row["model"], row["optimizer"], int(row["batch_size"])
    habits = Habits(zeroes=ZEROES[row["zero_grad_mode"]], frees_batch=True)
    point, (low, high), fails = predict_range_on_gpu(
        lambda: build(model, optimizer, batch_size, habits=habits),
        CARDS[row["gpu"]],
        NUM_STEPS,
        gemm_workspace_bytes=0,
    )
    return Job(
        name=f"{model} {optimizer} {batch_size} {row['gpu']}",
        part=row["part"],
        real_bytes=int(row["ground_nvml_delta_bytes"]),
        ran_out=row["real_oom"] == "True",
        xmem_bytes=int(row["xmem_est_bytes"]),
        xmem_says_out=row["xmem_oom"] == "True",
        predicted_bytes=point + BESIDE_BYTES,
        low_bytes=low + BESIDE_BYTES,
        high_bytes=high + BESIDE_BYTES,
        says_out=fails,
    )


def spread(errors: Sequence[float]) -> str:
    """Median, 90th percentile and worst of absolute errors, and the median of signed ones."""
    sizes = sorted(abs(error) for error in errors)
    p90 = sizes[-(-len(sizes) * 9 // 10) - 1]
    middle, bias = statistics.median(sizes), statistics.median(errors)
    return f"median {middle:.1%}, p90 {p90:.1%}, worst {sizes[-1]:.1%}, bias {bias:+.1%}"


def report(part: str, jobs: Sequence[Job]) -> None:
    """Errors of both tools, coverage and width of the range, and verdicts on what ran out of memory."""
    done = [job for job in jobs if not job.ran_out]
    if not done:
        return
    print(f"{part}: {len(done)} jobs that ran, {len(jobs) - len(done)} that ran out of memory")
    print(f"  memfit  {spread([job.predicted_bytes / job.real_bytes - 1 for job in done])}")
    print(f"  xMem    {spread([job.xmem_bytes / job.real_bytes - 1 for job in done])}")
    nearer = sum(abs(job.predicted_bytes - job.real_bytes) < abs(job.xmem_bytes - job.real_bytes) for job in done)
    print(f"  nearer  memfit in {nearer} of {len(done)}")
    width = statistics.median((job.high_bytes - job.low_bytes) / job.predicted_bytes for job in done)
    print(
        f"  range   holds {sum(job.is_covered for job in done) / len(done):.0%}, median width {width:.0%} of the point"
    )
    for name, said in (("memfit", [job.says_out for job in jobs]), ("xMem", [job.xmem_says_out for job in jobs])):
        right = sum(a == job.ran_out for a, job in zip(said, jobs, strict=True))
        print(f"  {name:<7} right about running out of memory in {right} of {len(jobs)}")


def show(job: Job) -> None:
    """One row."""
    ours, theirs = job.predicted_bytes / job.real_bytes - 1, job.xmem_bytes / job.real_bytes - 1
    end = f"{ours:+7.1%} xMem {theirs:+7.1%}{'' if job.is_covered else ' outside'}"
    end = "ran out of memory" if job.ran_out else end
    print(f"{job.part:<14}{job.name:<40}{job.real_bytes / MIB:7.0f} MiB {end}", flush=True)


def report_all(jobs: Sequence[Job]) -> None:
    """Every part, both held-out ones together, and all."""
    for part in ("tuning", "held out", "held out, new"):
        report(part, [job for job in jobs if job.part == part])
    report("held out, both", [job for job in jobs if job.part != "tuning"])
    report("all", jobs)


def main() -> None:
    """All parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--truth", type=Path, help="folder of the collected truth: adds the jobs read earlier")
    parser.add_argument("--rows", action="store_true", help="print every row")
    parser.add_argument("--quick", action="store_true", help="every fifth row")
    options = parser.parse_args()
    jobs: list[Job] = []
    for row in list(rows_of(options.truth))[:: 5 if options.quick else 1]:
        jobs.append(predicted(row))
        if options.rows:
            show(jobs[-1])
    report_all(jobs)


if __name__ == "__main__":
    main()
