"""State of a running job, as the sampler tells it a few times a second; standard library only."""

from __future__ import annotations

from typing import NamedTuple


class LiveState(NamedTuple):
    """What is known of a job while it runs."""

    seconds: float
    """Since the run began."""
    tree_bytes: int
    """Memory of the job with all its processes, now."""
    peak_bytes: int
    num_ticks: int
    num_processes: int
    step: int | None
    """The training step that runs; None where the job counts none."""
    phase: str | None
    steps_per_second: float | None
