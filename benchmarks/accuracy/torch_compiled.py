"""How far is a job under `torch.compile` from the same job without it, on the CPU, the steps that compile included?

  python -m benchmarks.accuracy.torch_compiled [--only WORKLOAD]

Predictions on fake tensors leave the compiler out: this is what that costs. Every figure is of a process of its own,
with an empty cache of the compiler: tensors by the allocator's own events, the process by the kernel's high-water mark.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from typing import Any

import torch

from memfit.job.training import Training, as_training, plain_step
from memfit.job.workloads.registry import build_workload
from memfit.predict.fake.probe.real_reference import real_tensor_peak
from memfit.units import MIB

Case = tuple[str, dict[str, Any]]
CASES: list[Case] = [
    ("mlp", {"batch_size": 2048, "optimizer": "sgd"}),
    ("cnn", {"batch_size": 64}),
    ("gpt", {"batch_size": 4}),
    ("gpt", {"batch_size": 4, "dropout": 0.1}),
    ("gpt", {"batch_size": 4, "checkpoint": True}),
]
NUM_STEPS = 3


def built(case: Case, is_compiled: bool) -> Training:
    """The training, its model compiled where that is asked for."""
    name, settings = case
    training = as_training(build_workload(name, dict(settings)), name)
    if is_compiled:
        training.model = torch.compile(training.model)
    return training


def in_this_process(case: Case, is_compiled: bool, measure: str) -> int:
    """One figure."""
    if measure == "tensors":
        return real_tensor_peak(lambda: built(case, is_compiled), NUM_STEPS)
    step = plain_step(built(case, is_compiled))
    for _ in range(NUM_STEPS):
        step()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def in_child(case: Case, is_compiled: bool, measure: str) -> int:
    """One figure of a fresh process that finds nothing compiled."""
    command = [sys.executable, "-m", __spec__.name, "--case", json.dumps([case, is_compiled, measure])]
    environment = os.environ | {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return int(done.stdout.splitlines()[-1])


def compare(case: Case) -> str:
    """One line of the table."""
    tensors, resident = (
        [in_child(case, is_compiled, measure) for is_compiled in (False, True)] for measure in ("tensors", "process")
    )
    more_mib = (resident[1] - resident[0]) / MIB
    words = " ".join([case[0], *(f"{name} {value}" for name, value in case[1].items())])
    share = tensors[1] / tensors[0] - 1
    return f"| {words} | {tensors[0] / MIB:.2f} | {tensors[1] / MIB:.2f} | {share:+.1%} | {more_mib:+.0f} MiB |"


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--case", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        case, is_compiled, measure = json.loads(options.case)
        print(in_this_process((case[0], case[1]), is_compiled, measure))
        return
    print("| job | tensors, MiB | compiled, MiB | off | process |\n|---|---|---|---|---|")
    for case in CASES:
        if options.only in case[0]:
            print(compare(case), flush=True)


if __name__ == "__main__":
    main()
