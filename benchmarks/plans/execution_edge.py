"""Training at the edge: how much memory do ResNets take, what do checkpoints cost, and does it run in 2 GiB?

python -m benchmarks.plans.execution_edge tables
python -m benchmarks.plans.execution_edge run --size 500 --batch 8 --limit 2GiB --disk FOLDER
python -m benchmarks.plans.execution_edge worth --link-mbit 10 --images-per-day 5000
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
from memfit.units import GIB, format_bytes, format_seconds, parse_bytes

NETS = ("ResNet-18", "ResNet-34", "ResNet-50", "ResNet-101", "ResNet-152")
BATCHES, SIZES = (1, 2, 4, 8, 16, 32), (224, 350, 500, 650)
PROCESS_BYTES = 400 * 2**20
"""What Python, torch and the scratch of kernels take of the limit beside tensors."""


def main() -> None:
    """Run what is asked for."""
    options = _options()
    if options.what == "tables":
        print_tables(parse_bytes(options.limit))
    elif options.what == "run":
        run_under_limit(options)
    else:
        print_worth(options)


# ---- tables ------------------------------------------------------------------------------------------------------


def print_tables(limit_bytes: int) -> None:
    """Memory by batch and by image size, then the price of fitting into the limit."""
    from benchmarks.plans.execution_edge_torch import analytic_chain

    print("Memory of one step in GiB, everything kept: parameters, gradients, activations (no optimizer state)\n")
    _memory("by batch at 224x224", [(f"{b}", 224, b) for b in BATCHES], analytic_chain)
    _memory("by image size at batch 1", [(f"{s}", s, 1) for s in SIZES], analytic_chain)
    _memory("by image size at batch 8", [(f"{s}", s, 8) for s in SIZES], analytic_chain)
    print(f"Step time against the plain step within {format_bytes(limit_bytes)} at batch 8 (b = 2f)\n")
    print("| net | image | plain | sequential | revolve | optimal nested | smallest possible |")
    print("|---|---|---|---|---|---|---|")
    for net in NETS:
        for size in SIZES:
            _price(net, size, analytic_chain(net, size, 8), limit_bytes)


def _memory(title: str, cases: list[tuple[str, int, int]], chain_of: Any) -> None:
    print(f"| {title} | " + " | ".join(name for name, _, _ in cases) + " |")
    print("|---" * (len(cases) + 1) + "|")
    for net in NETS:
        peaks = [
            make_plan(chain_of(net, size, batch), 2**50, planner="keep all").peak_bytes for _, size, batch in cases
        ]
        print(f"| {net} | " + " | ".join(f"{peak / GIB:.2f}" for peak in peaks) + " |", flush=True)
    print()


def _price(net: str, size: int, chain: Chain, limit_bytes: int) -> None:
    plain = make_plan(chain, 2**50, planner="keep all").peak_bytes
    cells = [_factor(chain, limit_bytes, planner) for planner in ("equal segments", "revolve", "nested")]
    smallest = make_plan(chain, 2**50, planner="nested").smallest_budget_bytes
    print(
        f"| {net} | {size} | {plain / GIB:.2f} GiB | " + " | ".join(cells) + f" | {smallest / GIB:.2f} GiB |",
        flush=True,
    )


def _factor(chain: Chain, limit_bytes: int, planner: str) -> str:
    try:
        return f"x{make_plan(chain, limit_bytes, planner=planner).slowdown:.2f}"
    except DoesNotFit:
        return "does not fit"


# ---- a real step under a hard limit ------------------------------------------------------------------------------


def run_under_limit(options: argparse.Namespace) -> None:
    """Plain without a limit, plain with it, then each kind of plan within it; gradients by their digest."""
    from memfit.apply.disk_link import measure_disk

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


# ---- is it worth it ----------------------------------------------------------------------------------------------


def print_worth(options: argparse.Namespace) -> None:
    """Sending the data away against training where it is: hours and watt-hours of a day's images."""
    image_bytes = options.image_kb * 1000
    day_bytes = options.images_per_day * image_bytes
    send_hours = day_bytes * 8 / (options.link_mbit * 1e6) / 3600
    step_hours = (
        options.images_per_day * options.epochs * options.gflop_per_image * 3 * options.slowdown / options.gflops / 3600
    )
    print(f"One day of {options.images_per_day} images of {options.image_kb} kB ({day_bytes / 1e9:.2f} GB):")
    print(
        f"  sending them over {options.link_mbit} Mbit/s: {send_hours:.2f} h, "
        f"{send_hours * options.link_watts:.1f} Wh at {options.link_watts} W"
    )
    print(f"  training on them {options.epochs} times at {options.gflops} GFLOP/s: {step_hours:.2f} h, "
          f"{step_hours * options.device_watts:.1f} Wh at {options.device_watts} W")  # fmt: skip
    print("  " + _verdict(send_hours, step_hours))


def _verdict(send_hours: float, step_hours: float) -> str:
    if step_hours > 24:
        return "the device does not keep up with a day's images: fewer images, fewer passes or a smaller net"
    if send_hours > 24:
        return "the link does not keep up: train on the device"
    return "both keep up: the device is worth it where data may not leave or the link is needed for something else"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["tables", "run", "worth"])
    parser.add_argument("--limit", default="2GiB")
    parser.add_argument("--size", type=int, default=500)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--disk", default=tempfile.gettempdir())
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--link-mbit", type=float, default=10.0)
    parser.add_argument("--link-watts", type=float, default=2.0)
    parser.add_argument("--device-watts", type=float, default=10.0)
    parser.add_argument("--images-per-day", type=int, default=5000)
    parser.add_argument("--image-kb", type=float, default=250.0)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--gflop-per-image", type=float, default=21.0, help="one forward; ResNet-50 at 500x500")
    parser.add_argument("--gflops", type=float, default=20.0, help="what the device reaches")
    parser.add_argument("--slowdown", type=float, default=1.2, help="of the plan")
    return parser.parse_args()


if __name__ == "__main__":
    main()
