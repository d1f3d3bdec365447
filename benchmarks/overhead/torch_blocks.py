"""The process that trains: for each line it is sent it runs a block of steps, and answers with the time of each.

{"inside": "marks", "folder": "...", "num_warm": 3, "num_steps": 25}   ->   {"cpu": [...], "wall": [...], ...}
{"inside": "kept marks", "folder": "...", "train_seconds": 20}         ->   {"num_steps": 3100}
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from benchmarks.overhead.torch_models import Training
from benchmarks.overhead.torch_tools import INSIDE, Off


def main() -> None:
    """Serve blocks until the input closes."""
    training = Training(sys.argv[1])
    for _ in range(20):
        training.step()
    _answer({"step_seconds": training.step_seconds()})
    for line in sys.stdin:
        order = json.loads(line)
        _answer(_train_for(training, order) if "train_seconds" in order else _block(training, order))


def _answer(facts: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def _train_for(training: Training, order: dict[str, Any]) -> dict[str, Any]:
    tool = INSIDE[order["inside"]](training, order["folder"])
    tool.start()
    end_seconds, num_steps = time.monotonic() + order["train_seconds"], 0
    while time.monotonic() < end_seconds:
        tool.before()
        training.step()
        tool.after()
        num_steps += 1
    tool.stop()
    return {"num_steps": num_steps}


def _block(training: Training, order: dict[str, Any]) -> dict[str, Any]:
    """Switch on, warm up, time every step, switch off."""
    tool = INSIDE[order["inside"]](training, order["folder"])
    start_seconds = _timed(tool.start)
    warm = _steps(training, tool, order["num_warm"])
    timed = _steps(training, tool, order["num_steps"])
    stop_seconds = time.process_time()
    traced = tool.stop()
    stop_seconds = time.process_time() - stop_seconds
    return {
        "cpu": [cpu for cpu, _ in timed],
        "wall": [wall for _, wall in timed],
        "warm_cpu": [cpu for cpu, _ in warm],
        "start_cpu": start_seconds,
        "stop_cpu": stop_seconds,
        "traced_steps": traced,
    }


def _timed(action: Any) -> float:
    before = time.process_time()
    action()
    return time.process_time() - before


def _steps(training: Training, tool: Off, num_steps: int) -> list[tuple[float, float]]:
    """CPU and wall seconds of each step, without gaps: a step's end is the next one's beginning."""
    times = []
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(num_steps):
        tool.before()
        training.step()
        tool.after()
        now_cpu, now_wall = time.process_time(), time.perf_counter()
        times.append((now_cpu - cpu, now_wall - wall))
        cpu, wall = now_cpu, now_wall
    return times


if __name__ == "__main__":
    main()
