"""The fake engine's half of the grid: reads a job per line, writes its prediction per line; torch is loaded once."""

from __future__ import annotations

import sys

import msgspec

from benchmarks.accuracy.grid_jobs import GridJob
from memfit.errors import MemfitError
from memfit.job.description import describe_job
from memfit.predict.child.fork_server import ForkServer
from memfit.predict.devices.parse import parse_device
from memfit.testing.engines import on_fake_tensors


class Failed(msgspec.Struct, frozen=True):
    """Why there is no prediction."""

    failed: str


def main() -> None:
    """Answer until the input ends."""
    with ForkServer(600) as server:
        for line in sys.stdin:
            job = msgspec.json.decode(line, type=GridJob)
            described = describe_job(job.model, dict(job.settings))
            try:
                answer = on_fake_tensors(described, parse_device(job.device), fork_server=server, with_smallest=False)
            except MemfitError as error:
                answer = Failed(f"{error.what}; {error.found}")
            print(msgspec.json.encode(answer).decode(), flush=True)


if __name__ == "__main__":
    main()
