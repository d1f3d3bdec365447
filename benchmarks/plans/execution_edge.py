"""Training at the edge: does ResNet-50 really train within 2 GiB, and are its gradients the same?

The tables of memory and prices are those of `memfit reproduce edge`.

    python -m benchmarks.plans.execution_edge run --size 500 --batch 8 --limit 2GiB --disk FOLDER
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from memfit.errors import DoesNotFit
from memfit.plan.planners import make_plan
from memfit.records.plan import Chain, write_plan
from memfit.units import format_bytes, format_seconds, parse_bytes

PROCESS_BYTES = 400 * 2**20
"""What Python, torch and the scratch of kernels take of the limit beside tensors."""


def run_under_limit(options: argparse.Namespace) -> None:
    """Plain without a limit, plain with it, then each kind of plan within it; gradients by their digest."""
    from memfit.profile.link_speed import measure_disk

    limit_bytes = parse_bytes(options.limit)
    budget_bytes = limit_bytes - PROCESS_BYTES
    chain = _measured_chain(options)
    link = measure_disk(options.disk)
    print(f"ResNet-50 at {options.size}x{options.size}, batch {options.batch}; {options.limit} of anonymous memory,")
    print(f"of which {format_bytes(budget_bytes)} are planned for tensors;")
    speeds = f"{_speed(link.out_bytes_per_second)} out, {_speed(link.in_bytes_per_second)} in"
    print(f"disk {speeds} (measured)\n")
    print("| plan | planned peak | slower, promised | largest resident | step | loss, gradients, buffers |")
    print("|---|---|---|---|---|---|")
    reference = _step(options, None, None)
    _row("plain, no limit", "", "", reference, reference)
    _row(f"plain, {options.limit}", "", "", _step(options, None, limit_bytes), reference)
    for name, planner, with_link in (
        ("recompute (RAM only)", "nested", False),
        ("move (disk only)", "offload", True),
        ("both", "combined", True),
    ):
        try:
            plan = make_plan(chain, budget_bytes, link=link if with_link else None, planner=planner)
        except DoesNotFit as error:
            print(f"| {name} | does not fit: {error} | | | | |")
            continue
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "plan.json"
            write_plan(plan, path)
            answer = _step(options, str(path), limit_bytes)
        _row(name, format_bytes(plan.peak_bytes), f"{plan.slowdown:.2f}", answer, reference)


def _speed(bytes_per_second: float) -> str:
    return f"{bytes_per_second / 1e6:.0f} MB/s"


def _measured_chain(options: argparse.Namespace) -> Chain:
    import torch

    from benchmarks.plans.execution_edge_torch import profile_edge

    torch.set_num_threads(options.threads)
    return profile_edge(options.size, options.batch)


def _step(options: argparse.Namespace, plan: str | None, limit_bytes: int | None) -> dict[str, Any]:
    """One step in a process of its own; large blocks are given back to the system at once."""
    request = {
        "size": options.size, "batch": options.batch, "plan": plan, "disk": options.disk, "limit_bytes": limit_bytes,
        "threads": options.threads,
    }  # fmt: skip
    command = [sys.executable, "-m", "benchmarks.plans.execution_edge_torch", json.dumps(request)]
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode or not done.stdout.strip():
        return {"failed": (done.stderr.strip().splitlines() or ["no answer"])[-1][:120]}
    return json.loads(done.stdout.splitlines()[-1])


def _row(name: str, peak: str, promised: str, answer: dict[str, Any], reference: dict[str, Any]) -> None:
    if "failed" in answer:
        print(f"| {name} | {peak} | {promised} | | | fails: {answer['failed']} |", flush=True)
        return
    same = (
        "the reference"
        if answer is reference
        else ("bit-equal" if answer["digest"] == reference.get("digest") else "**differ**")
    )
    print(
        f"| {name} | {peak} | {promised} | {format_bytes(answer['resident_bytes'])} | "
        f"{format_seconds(answer['seconds'])} | {same} |",
        flush=True,
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["run"])
    parser.add_argument("--limit", default="2GiB")
    parser.add_argument("--size", type=int, default=500)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--disk", default=tempfile.gettempdir())
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    run_under_limit(_options())
