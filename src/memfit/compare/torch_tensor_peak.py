"""Peak of torch's CPU allocator over two real steps of a job; reads the job from standard input, prints bytes."""

from __future__ import annotations

import sys
from functools import partial

import msgspec

from memfit.job.description import JobDescription
from memfit.job.load import build_job
from memfit.predict.fake.probe.real_run import real_tensor_peak


def main() -> None:
    """Build the job of standard input and run it under the allocator's record."""
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=JobDescription)
    print(real_tensor_peak(partial(build_job, job, "cpu")))


if __name__ == "__main__":
    main()
