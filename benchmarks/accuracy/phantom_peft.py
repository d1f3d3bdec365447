"""Does the phantom GPU reserve what published fine-tunings of Llama-3.2-3B reserved on a real one?

    python -m benchmarks.accuracy.phantom_peft [CSV] [--longest TOKENS] [--only TEXT]

The rows are PEFT's own comparison of methods (torch 2.13, NVIDIA L40S): `max_memory_reserved` over 5,000 steps. The
recorded script empties the allocator's cache before the longest batch of every bucket comes. How long the longest of
all is was not published: texts are cut at 768 tokens, but those of more than 1,300 characters were left out before.
It is the same in all rows; the default is what one of them (lora/llama-3.2-3B-rank10-target-mlp) asks for, so that row
is no test and is not in the median. Needs a CUDA build of torch, transformers and PEFT; a row whose method this PEFT
does not have, or which is refused or too slow, is listed as such and is not in the median.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

from memfit.errors import MemfitError
from memfit.job.description import describe_job
from memfit.predict.devices.parse import parse_device
from memfit.predict.phantom.engine import predict_on_phantom
from memfit.units import MIB

TRUTH = Path(__file__).resolve().parents[3] / "shared" / "truth" / "peft" / "peft_runs.csv"
JOB = Path(__file__).with_name("phantom_peft_job.py")
MOST_SECONDS = 200
LONGEST, CALIBRATED_ON = 702, "lora/llama-3.2-3B-rank10-target-mlp"
"""Tokens of the longest batch, and the recorded run they were taken from."""
MODEL = "meta-llama/Llama-3.2-3B"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One recorded run against the phantom."""

    name: str
    real_bytes: int
    phantom_bytes: int | None
    reason: str = ""
    seconds: float = 0.0
    host_bytes: int = 0

    @property
    def error(self) -> float | None:
        """Relative difference."""
        return None if self.phantom_bytes is None else self.phantom_bytes / self.real_bytes - 1


def course_of(longest: int) -> str:
    """The lengths around the longest batch, as the recorded loop orders them; `-` empties the cache."""
    after = [longest * share // 100 for share in (70, 60, 50)]
    return ",".join(["400", "250", "-", str(longest), *map(str, after)])


def compare(recorded: dict[str, str], longest: int) -> Row:
    """Run the job of one row."""
    name, real_bytes = recorded["experiment"], int(recorded["mem_max"])
    settings = {"config": recorded["peft_config"], "lengths": course_of(longest)}
    try:
        prediction = predict_on_phantom(
            describe_job(f"{JOB}:fine_tune", settings),
            parse_device("cuda:l40s-48gb"),
            num_steps=sum(part != "-" for part in course_of(longest).split(",")),
            most_seconds=MOST_SECONDS,
        )
    except MemfitError as error:
        return Row(name=name, real_bytes=real_bytes, phantom_bytes=None, reason=f"{error.what}; {error.found}"[:160])
    reserved, cost = prediction.level("reserved"), prediction.cost
    assert reserved is not None
    assert cost is not None
    return Row(
        name=name, real_bytes=real_bytes, phantom_bytes=int(reserved.value or 0), seconds=cost.total_seconds,
        host_bytes=cost.host_peak_bytes,
    )  # fmt: skip


def line_of(row: Row) -> str:
    """One line of the table."""
    if row.phantom_bytes is None or row.error is None:
        return f"{row.name:52} {row.real_bytes / MIB:8.0f}        -         {row.reason}"
    return (
        f"{row.name:52} {row.real_bytes / MIB:8.0f} {row.phantom_bytes / MIB:8.0f} {row.error:+8.2%}  "
        f"{row.seconds:5.1f} s  {row.host_bytes / MIB:6.0f} MiB on the host"
    )


def main() -> int:
    """Print the table and the median error."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", nargs="?", type=Path, default=TRUTH)
    parser.add_argument("--longest", type=int, default=LONGEST)
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    if not asked.csv.exists():
        print(f"no measurements in {asked.csv}")
        return 2
    with open(asked.csv, encoding="utf-8", newline="") as file:
        recorded = [row for row in csv.DictReader(file) if row["model"] == MODEL and asked.only in row["experiment"]]
    print(f"{'experiment':52} real MiB  phantom    error")
    rows = []
    for one in recorded:
        rows.append(compare(one, asked.longest))
        print(line_of(rows[-1]), flush=True)
    judged = [row for row in rows if row.name != CALIBRATED_ON or asked.longest != LONGEST]
    errors = [abs(row.error) for row in judged if row.error is not None]
    if errors:
        print(
            f"{len(errors)} of {len(rows)} rows, median error {statistics.median(errors):.2%}, worst {max(errors):.2%}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
