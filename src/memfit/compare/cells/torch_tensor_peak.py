"""Peak and curve of torch's CPU allocator over two steps that update; a job on standard input, JSON as output."""

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
from memfit.job.training import Step, as_training, plain_step
from memfit.predict.fake.probe.real_reference import memory_events, peak_of_events

NUM_STEPS = 2
MOST_STEPS = 40
"""Steps in which a scaler of float16 has come down to where nothing overflows, or never will."""
MOST_POINTS = 400
FIRST_STEP = "memfit: the first step begins"


def main() -> None:
    """Build the job of standard input and run it under the allocator's record."""
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=JobDescription)
    torch.manual_seed(0)  # as in the measured run
    gc.collect()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        step = plain_step(as_training(build_job(job, "cpu"), job.target))
        with torch.profiler.record_function(FIRST_STEP):
            pass
        num_skipped = _step_twice(step)
    events = memory_events(profiler)
    found = {"peak_bytes": peak_of_events(events), "curve": _curve(events, _first_step_ns(profiler))}
    print(json.dumps({**found, "num_skipped": num_skipped}))


def _step_twice(step: Step) -> int | None:
    """Two steps that update; returns how many were skipped because float16 overflowed, or None where all were."""
    num_done = 0
    for num_tried in range(1, MOST_STEPS + 1):
        before = _scale(step)
        step()
        num_done += _scale(step) >= before  # a scaler that skipped a step has gone down
        if num_done == NUM_STEPS:
            return num_tried - num_done
    return None


def _scale(step: Step) -> float:
    scaler = getattr(step, "scaler", None)
    return 0.0 if scaler is None else scaler.get_scale()


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
