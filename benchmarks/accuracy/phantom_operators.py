"""Single operators on both engines of `memfit predict`: what they allocate inside on a GPU, and what fake tensors show.

    python -m benchmarks.accuracy.phantom_operators [--fake-python PYTHON] [--only TEXT]

Run with a CUDA build of torch; `--fake-python` names an interpreter with a CPU build and memfit. Some 450 calls as
scripts write them (phantom_operators_job.py), each forward, forward with gradients, and backward. Prints how many parts
agree in every request and release, how many in their peak, and every one that does not; and how many operators the
fake engine lists as not followed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.accuracy.phantom_operators_job import CALLS
from benchmarks.accuracy.phantom_scratch import parts_of
from memfit.job.description import describe_job
from memfit.predict.child.messages import UNSEEN
from memfit.predict.devices.parse import parse_device
from memfit.records.timeline import Timeline
from memfit.testing.engines import on_fake_tensors, on_phantom
from memfit.units import MIB

GPU = "cuda:a100-40gb"
JOB = f"{Path(__file__).with_name('phantom_operators_job.py')}:calls"
PARTS = ("forward", "forward with gradients", "backward")
SMALL_BYTES = 64 * 1024


def rounded_parts(timeline: Timeline) -> list[list[int]]:
    """Requests of each part in order, rounded as the allocator does, releases negative."""
    return [[_rounded(request) for request in part] for part in parts_of(timeline)[1::2]]


def _rounded(num_bytes: int) -> int:
    size = max(1, -(-abs(num_bytes) // 512)) * 512
    return size if num_bytes > 0 else -size


def peak_of(requests: Sequence[int]) -> int:
    """The most that is alive beside what was there before."""
    live = peak = 0
    for request in requests:
        live += request
        peak = max(peak, live)
    return peak


def answer() -> None:
    """The fake engine's side, as JSON on the standard output."""
    found = on_fake_tensors(describe_job(JOB, {}), parse_device(GPU), num_steps=1)
    assert found.timeline is not None
    listed = {assumption.text for assumption in found.assumptions if assumption.kind == UNSEEN}
    print(json.dumps({"parts": rounded_parts(found.timeline), "not_followed": sorted(listed)}))


def main() -> None:
    """Compare, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--fake-python", default=sys.executable)
    parser.add_argument("--only", default="", help="calls with this text")
    parser.add_argument("--answer", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.answer:
        answer()
        return
    command = [options.fake_python, "-m", "benchmarks.accuracy.phantom_operators", "--answer"]
    fake = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    timeline = on_phantom(describe_job(JOB, {}), parse_device(GPU), num_steps=1).timeline
    assert timeline is not None
    _report(rounded_parts(timeline), fake["parts"], fake["not_followed"], options.only)


def _report(phantom: list[list[int]], fake: list[list[int]], not_followed: list[str], only: str) -> None:
    names = [(call, part) for call in CALLS for part in PARTS]
    assert len(phantom) == len(fake) == len(names), (len(phantom), len(fake), len(names))
    rows = [row for row in zip(names, phantom, fake, strict=True) if only in row[0][0]]
    differing = [(name, peak_of(left), peak_of(right)) for name, left, right in rows if peak_of(left) != peak_of(right)]
    same = sum(left == right for _, left, right in rows)
    small = [row for row in differing if abs(row[1] - row[2]) <= SMALL_BYTES]
    print(
        f"{len(rows)} parts of {len(rows) // len(PARTS)} calls: {same} equal in every event, "
        f"{len(rows) - same - len(differing)} in their peak, {len(small)} within {SMALL_BYTES // 1024} KiB, "
        f"{len(differing) - len(small)} further off; {len(not_followed)} operators are listed as not followed"
    )
    for (call, part), left, right in sorted(differing, key=lambda row: row[2] - row[1]):
        if abs(left - right) > SMALL_BYTES:
            print(f"  {(right - left) / MIB:+9.2f} MiB of {left / MIB:.2f}: {call[:80]}, {part}")


if __name__ == "__main__":
    main()
