"""How many allocator events does the simulation run each second?

    python -m benchmarks.speed.allocator

The trace is that of a transformer's training (parameters, activations, temporaries, gradients, foreach optimizer),
made here; real snapshots beside this repository are run as well, repeated to a fair length. Processor time is
counted, so that other programs on the machine do not blur the figure.
"""

from __future__ import annotations

import time
from pathlib import Path

from memfit.predict.allocator.play import make_allocator, play, simulate
from memfit.predict.allocator.settings import parse_allocator_settings
from memfit.predict.snapshot.reader import read_snapshot
from memfit.predict.snapshot.report import requests_of

TRUTH = Path(__file__).resolve().parents[3] / "shared" / "truth" / "cuda_snapshots"
SETTINGS = ("", "expandable_segments:True", "max_split_size_mb:128", "roundup_power2_divisions:8")
GOAL_PER_SECOND = 500_000


class Trace:
    """Builds a list of events."""

    def __init__(self) -> None:
        self.events: list[int] = []
        self.count = 0

    def take(self, num_bytes: int) -> int:
        """Allocate; the number of the allocation is returned."""
        self.events.append(num_bytes)
        self.count += 1
        return self.count - 1

    def give(self, number: int) -> None:
        """Free."""
        self.events.append(-1 - number)


def training_trace(num_steps: int = 40, num_layers: int = 24, width: int = 1024, tokens: int = 2048) -> list[int]:
    """Steps of a decoder-only transformer in float32 with Adam."""
    trace = Trace()
    weights = [4 * width * width * factor for _ in range(num_layers) for factor in (3, 1, 4, 4)]
    weights += [4 * width for _ in range(num_layers * 6)]
    for size in weights:
        trace.take(size)
    states = []
    for step in range(num_steps):
        saved = [_forward(trace, width, tokens) for _ in range(num_layers)]
        gradients = _backward(trace, saved, width, tokens, weights)
        if step == 0:
            states = [trace.take(size) for size in weights for _ in range(2)]
        scratch = [trace.take(size) for size in weights]
        for number in (*scratch, *gradients):
            trace.give(number)
    assert states
    return trace.events


def _forward(trace: Trace, width: int, tokens: int) -> list[int]:
    row = 4 * tokens * width
    saved = []
    for factor in (1, 3, 1, 1, 4, 4, 1):
        scratch = trace.take(row * factor)
        small = trace.take(4 * tokens)
        saved += [trace.take(row * factor), small]
        trace.give(scratch)
    return saved


def _backward(trace: Trace, saved: list[list[int]], width: int, tokens: int, weights: list[int]) -> list[int]:
    gradients, left = [], list(weights)
    for layer in reversed(saved):
        for number in reversed(layer):
            scratch = trace.take(4 * tokens * width)
            trace.give(number)
            trace.give(scratch)
        gradients += [trace.take(left.pop()) for _ in range(min(10, len(left)))]
    return gradients + [trace.take(size) for size in left]


def events_per_second(events: list[int], text: str, repeats: int = 3) -> float:
    """The best of a few runs."""
    best = 0.0
    for _ in range(repeats):
        allocator = make_allocator(parse_allocator_settings(text))
        started = time.process_time()
        play(events, allocator)
        best = max(best, len(events) / (time.process_time() - started))
    return best


def main() -> int:
    """Print one line for each trace and setting; 1 when the goal is missed with default settings."""
    events = training_trace()
    speeds = {text: events_per_second(events, text) for text in SETTINGS}
    for text, speed in speeds.items():
        print(f"training, {len(events)} events, {text or 'default':32}{speed:>12,.0f} events/s")
    for path in sorted(TRUTH.glob("*training*")):
        requests = requests_of(read_snapshot(path).devices[0])
        speed = events_per_second(requests.events, "", repeats=10)
        print(f"{path.name.split('.')[0]}, {len(requests.events)} events{speed:>12,.0f} events/s")
    started = time.process_time()
    run = simulate(events, smallest=True, max_points=1000)
    print(f"record with state at the peak and least memory: {time.process_time() - started:.2f} s ", end="")
    print(f"(reserved {run.peak_reserved_bytes >> 20} MiB, runs on {(run.smallest_device_bytes or 0) >> 20} MiB)")
    return 0 if speeds[""] >= GOAL_PER_SECOND else 1


if __name__ == "__main__":
    raise SystemExit(main())
