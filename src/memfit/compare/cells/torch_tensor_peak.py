"""Peak and curve of torch's CPU allocator over two real steps; reads the job from standard input, prints JSON."""

from __future__ import annotations

import gc
import itertools
import json
import sys

import msgspec
import numpy as np
import torch

from memfit.job.description import JobDescription
from memfit.job.load import build_job
from memfit.job.training import as_training, plain_step
from memfit.predict.fake.probe.real_run import memory_events, peak_of_events

NUM_STEPS = 2
MOST_POINTS = 400
FIRST_STEP = "memfit: the first step begins"


def main() -> None:
    """Build the job of standard input and run it under the allocator's record."""
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=JobDescription)
    gc.collect()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        step = plain_step(as_training(build_job(job, "cpu"), job.target))
        with torch.profiler.record_function(FIRST_STEP):
            pass
        for _ in range(NUM_STEPS):
            step()
    events = memory_events(profiler)
    print(json.dumps({"peak_bytes": peak_of_events(events), "curve": _curve(events, _first_step_ns(profiler))}))


def _first_step_ns(profiler: torch.profiler.profile) -> int:
    assert profiler.profiler is not None
    assert profiler.profiler.kineto_results is not None
    events = profiler.profiler.kineto_results.events()
    return next(event.start_ns() for event in events if event.name() == FIRST_STEP)


def _curve(events: list[tuple[int, int]], begin_ns: int) -> list[tuple[float, float]]:
    """Live bytes from the first step on, by the share of events that are over; the largest of every stretch is kept."""
    live = np.cumsum([change for _, change in events])
    live = live[sum(at < begin_ns for at, _ in events) :]
    if not len(live):
        return []
    edges = np.unique(np.linspace(0, len(live), min(len(live), MOST_POINTS) + 1).astype(int))
    return [(float(low) / len(live), float(live[low:high].max())) for low, high in itertools.pairwise(edges)]


if __name__ == "__main__":
    main()
