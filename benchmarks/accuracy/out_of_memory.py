"""How well is "out of memory" predicted on cards of 8 to 80 GB, beside xMem, DNNMem, SchedTune, LLMem and MemTracker?

  python -m benchmarks.accuracy.out_of_memory FOLDER [--networks 60]

All truth with peaks is used: xMem's jobs (33, with the estimates of the other tools), fully connected networks on an
A100, transformer steps and single operators. A job counts as out of memory on a card when its real peak is larger
than the card; a job that really failed counts on cards up to its own. Others are judged only where their estimates
were published; PyTorch's MemTracker is run here, on the same fake tensors, with the same constant. A peak that was
reached with room to spare can be larger than what the job needs, because the allocator releases its cache before it
gives up: so this judges peaks, not the last byte.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from benchmarks.accuracy.comparison import Row, Verdicts, spread_of, verdicts_at
from benchmarks.accuracy.gpu_truth import network_rows, operator_rows, snapshot_rows, with_constant
from benchmarks.accuracy.torch_mem_tracker import tracked_peak_bytes
from benchmarks.accuracy.torch_xmem_loop import build
from benchmarks.accuracy.xmem import HELD_OUT, TOOLS, Job, beside_allocator, on_fake_tensors, read_jobs, rows_of_tool

LIMITS_GB = (8, 12, 16, 24, 40, 80)
GB = 10**9
MEM_TRACKER = "memtracker"
ENDLESS = float("inf")


def pairs_of(jobs: list[Job], constant: float, limit_bytes: float) -> list[tuple[float, float]]:
    """What memfit predicts and what is real, for the jobs whose truth is known at this size."""
    pairs = []
    for job in jobs:
        if job.ran_out and limit_bytes > job.card_bytes:
            continue
        predicted = ENDLESS if job.says_out and limit_bytes <= job.card_bytes else job.reserved_bytes + constant
        pairs.append((predicted, ENDLESS if job.ran_out else job.real_bytes))
    return pairs


def pairs_of_tool(jobs: list[Job], tool: str, limit_bytes: float) -> list[tuple[float, float]]:
    """The same for another tool."""
    pairs = []
    for job in jobs:
        if tool not in job.others or (job.ran_out and limit_bytes > job.card_bytes):
            continue
        refused = tool == "xmem" and job.xmem_says_out and limit_bytes <= job.card_bytes
        pairs.append((ENDLESS if refused else job.others[tool], ENDLESS if job.ran_out else job.real_bytes))
    return pairs


def with_mem_tracker(job: Job, constant: float) -> Job:
    """The job with MemTracker's peak among the estimates, where it can follow the job."""
    try:
        peak_bytes = tracked_peak_bytes(lambda: build(job.model, job.optimizer, job.batch_size))
    except Exception as error:  # whatever stops that tool is its answer
        print(f"MemTracker cannot follow {job.name}: {error}"[:160])
        return job
    return replace(job, others={**job.others, MEM_TRACKER: round(peak_bytes + constant)})


def line(name: str, verdicts: Verdicts) -> str:
    """One line of the table."""
    shares = ["    -" if value is None else f"{value:5.0%}" for value in (verdicts.precision, verdicts.recall)]
    return (
        f"{name:<24} {verdicts.num_rows:4d} rows, {verdicts.num_real:3d} out of memory, {verdicts.num_said:3d} "
        f"predicted, precision {shares[0]}, recall {shares[1]}"
    )


def other_rows(folder: Path, most: int) -> list[Row]:
    """The truth nobody else has published estimates for."""
    even, odd = network_rows(folder, most)
    _, networks = with_constant(even, odd)
    allocated, _ = snapshot_rows(folder)
    return [*networks, *allocated, *operator_rows(folder)]


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--networks", type=int, default=60, help="about how many networks; half of them are judged")
    options = parser.parse_args()
    near = read_jobs(options.folder / "xmem" / "xmem_points.csv", on_fake_tensors)
    constant = beside_allocator(near)
    jobs = [with_mem_tracker(job, constant) for job in [*near, *read_jobs(HELD_OUT, on_fake_tensors)]]
    print(f"memtracker, peaks of the jobs that ran: {spread_of(rows_of_tool(jobs, MEM_TRACKER))}")
    rest = [(row.predicted_bytes, row.real_bytes) for row in other_rows(options.folder, options.networks)]
    for limit_gb in LIMITS_GB:
        limit = limit_gb * GB
        print(f"{limit_gb} GB")
        ours = pairs_of(jobs, constant, limit)
        print("  " + line("memfit, xMem's jobs", verdicts_at(limit, ours)))
        for tool in (*TOOLS, MEM_TRACKER):
            print("  " + line(f"{tool}, xMem's jobs", verdicts_at(limit, pairs_of_tool(jobs, tool, limit))))
        print("  " + line("memfit, all truth", verdicts_at(limit, [*ours, *rest])))


if __name__ == "__main__":
    main()
