"""The fake engine's half of the grid: reads a job per line, writes its prediction per line; torch is loaded once."""

from __future__ import annotations

import sys

import msgspec

from benchmarks.accuracy.grid_jobs import GridJob
from memfit.errors import MemfitError
from memfit.job.description import describe_job
from memfit.predict.child.parent import Nursery
from memfit.predict.devices.parse import parse_device
from memfit.predict.engine import ForecastOptions, forecast


class Failed(msgspec.Struct, frozen=True):
    """Why there is no prediction."""

    failed: str


def main() -> None:
    """Answer until the input ends."""
    with Nursery(600) as nursery:
        for line in sys.stdin:
            job = msgspec.json.decode(line, type=GridJob)
            options = ForecastOptions(nursery=nursery, with_smallest=False)
            described = describe_job(job.model, dict(job.settings))
            try:
                answer = forecast(described, parse_device(job.device), options)
            except MemfitError as error:
                answer = Failed(f"{error.what}; {error.found}")
            print(msgspec.json.encode(answer).decode(), flush=True)


if __name__ == "__main__":
    main()
