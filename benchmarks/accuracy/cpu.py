"""Is the predicted CPU peak the real one: tensors to the byte, the process within its promise?

  python -m benchmarks.accuracy.cpu [--quick] [--only WORKLOAD]

Every case runs in processes of its own: one traces it on fake tensors with probes and runs it for real under the
allocator's own log; another runs it for real with malloc's mmap threshold pinned and reads the kernel's high-water
mark.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

from benchmarks.accuracy.torch_cpu_case import resident_peak, tensor_peaks
from memfit.predict.levels.cpu import process_level
from memfit.units import MIB

Case = tuple[str, dict[str, Any]]
CASES: list[Case] = [
    *(
        ("mlp", {"batch_size": 256, "optimizer": name})
        for name in ("sgd", "adam", "adamw-foreach", "adam-fused", "adafactor")
    ),
    ("mlp", {"batch_size": 2048, "optimizer": "sgd"}),
    ("mlp", {"batch_size": 256, "accumulate": 4, "clip": 1.0}),
    ("cnn", {"batch_size": 256, "optimizer": "sgd-momentum"}),
    ("cnn", {"batch_size": 128, "channels_last": True}),
    ("gan", {"batch_size": 64}),
    ("lstm", {"batch_size": 16}),
    ("resnet18", {"batch_size": 8}),
    ("resnet50", {"batch_size": 4}),
    ("resnet50", {"batch_size": 4, "checkpoint": True}),
    ("resnet50", {"batch_size": 4, "precision": "bf16"}),
    ("gpt", {"batch_size": 8, "width": 512}),
    ("gpt", {"batch_size": 8, "width": 512, "checkpoint": True}),
    ("gpt", {"batch_size": 8, "width": 512, "precision": "bf16"}),
    ("gpt", {"batch_size": 4, "dropout": 0.1, "optimizer": "adamw-foreach"}),
]


def in_child(part: str, case: Case) -> dict[str, Any]:
    """Run one part of one case in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.accuracy.cpu", "--part", part, "--case", json.dumps(case)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def compare(case: Case) -> tuple[int, float]:
    """Print one line; returns the tensor error in bytes and the process error as a ratio."""
    tensors, process = in_child("tensors", case), in_child("resident", case)
    predicted, real = tensors["predicted_bytes"], tensors["real_bytes"]
    level = process_level(
        predicted,
        process["baseline_bytes"],
        pinned=True,
        num_operators=tensors["num_operators"],
        untouched_bytes=tensors["untouched_bytes"],
    )
    predicted = level.figure.value or 0
    ratio = predicted / process["resident_bytes"] - 1
    name = f"{case[0]} " + " ".join(f"{key}={value}" for key, value in case[1].items())
    print(
        f"{name:<58} {predicted / MIB:9.2f} {real / MIB:9.2f} {predicted - real:+9d} B   "
        f"{predicted / MIB:8.1f} {process['resident_bytes'] / MIB:8.1f} {ratio:+.1%}",
        flush=True,
    )
    return predicted - real, ratio


def main() -> None:
    """All cases, or one part of one of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="every fourth case")
    parser.add_argument("--part", choices=["tensors", "resident"])
    parser.add_argument("--case")
    parser.add_argument("--only", default="", help="cases of this workload")
    options = parser.parse_args()
    if options.part:
        name, settings = json.loads(options.case)
        work = tensor_peaks if options.part == "tensors" else resident_peak
        print(json.dumps(work(name, settings)))
        return
    print(f"{'case':<58} {'tensors':>9} {'real':>9} {'off':>11}   {'process':>8} {'real':>8}  MiB")
    chosen = [case for case in CASES[:: 4 if options.quick else 1] if options.only in case[0]]
    results = [compare(case) for case in chosen]
    exact = sum(off == 0 for off, _ in results)
    within = sum(abs(ratio) <= 0.03 for _, ratio in results)
    print(f"tensors equal to the byte: {exact} of {len(results)}; process within 3 %: {within} of {len(results)}")


if __name__ == "__main__":
    main()
