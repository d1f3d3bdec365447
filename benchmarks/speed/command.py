"""How long does a person wait for `memfit predict`: the whole command, fresh and from a warm cache?

  python -m benchmarks.speed.command [--repeats 5] [--fresh] [--engines cpu,fake,phantom]

A small script and a six-layer gpt; every command is a process of its own. *Fresh* means no bytecode and no library of
the phantom GPU (both in an empty folder), *warm* means that the command was run before. Beside the clock stand the
processor seconds of the whole tree of processes, and both over those of `python -c "import torch"`, run in turn with
it: on a busy machine the ratios say more. The phantom needs an interpreter whose torch has CUDA, `fake` one without.
Exit code 1 where a command failed or answered with another engine than asked for.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

SCRIPT = """
import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10)).to(device)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(10):
    x, y = torch.randn(64, 784, device=device), torch.randint(0, 10, (64,), device=device)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
"""
GPT = ("gpt", "--set", "layers=6", "--set", "width=384")
ENGINES = {
    "cpu": (),
    "fake": ("--device", "cuda:a100-40gb", "--engine", "fake"),
    "phantom": ("--device", "cuda:a100-40gb", "--engine", "phantom"),
}
ROUTES = {"cpu": "fake cpu", "fake": "fake cuda", "phantom": "phantom GPU"}
GOAL_SECONDS = {"cpu": 5.0, "fake": 5.0, "phantom": 8.0}
IMPORT = [sys.executable, "-c", "import torch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One command."""

    wall_seconds: float
    processor_seconds: float
    output: str


def cost_of(command: list[str], environment: dict[str, str]) -> Cost:
    """Run it to its end; processor time is that of the process and of all it started and waited for."""
    with tempfile.TemporaryFile() as output:
        started = time.perf_counter()
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.PIPE)
        errors = process.stderr.read() if process.stderr else b""
        _, status, usage = os.wait4(process.pid, 0)
        wall_seconds = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read().decode()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{errors.decode()[-800:]}")
    return Cost(wall_seconds=wall_seconds, processor_seconds=usage.ru_utime + usage.ru_stime, output=text)


def checked(cost: Cost, engine: str) -> Cost:
    """Refuse the time of a command that did not predict on the engine asked for."""
    route = json.loads(cost.output)["route"]
    if not route.startswith(ROUTES[engine]):
        raise SystemExit(f"asked for {engine}, answered by {route!r}")
    return cost


def line(title: str, costs: list[Cost], imports: list[Cost], goal_seconds: float | None) -> None:
    """One row of the table: medians, and ratios to the import that ran beside each."""
    wall = statistics.median(cost.wall_seconds for cost in costs)
    busy = statistics.median(cost.processor_seconds for cost in costs)
    pairs = list(zip(costs, imports, strict=True))
    by_clock = statistics.median(cost.wall_seconds / beside.wall_seconds for cost, beside in pairs)
    by_work = statistics.median(cost.processor_seconds / beside.processor_seconds for cost, beside in pairs)
    fastest = min(cost.wall_seconds for cost in costs)
    goal = f"{goal_seconds:.0f}" if goal_seconds is not None else ""
    row = f"{wall:.1f} | {fastest:.1f} | {busy:.1f} | {by_clock:.1f} | {by_work:.1f}"
    print(f"| {title} | {row} | {goal} |", flush=True)


def measure(title: str, command: list[str], engine: str, options: argparse.Namespace) -> None:
    """Fresh where asked for, then warm."""
    environment = dict(os.environ)
    if options.fresh:
        with tempfile.TemporaryDirectory(prefix="memfit-fresh-") as folder:
            fresh = environment | {"PYTHONPYCACHEPREFIX": f"{folder}/bytecode", "XDG_CACHE_HOME": f"{folder}/cache"}
            cost = checked(cost_of(command, fresh), engine)
        line(f"{title}, fresh", [cost], [cost_of(IMPORT, environment)], None)
    checked(cost_of(command, environment), engine)
    costs, imports = [], []
    for _ in range(options.repeats):
        imports.append(cost_of(IMPORT, environment))
        costs.append(checked(cost_of(command, environment), engine))
    line(f"{title}, warm", costs, imports, GOAL_SECONDS[engine])


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--fresh", action="store_true", help="also without bytecode, once")
    parser.add_argument("--engines", default="cpu,fake", help="of cpu, fake, phantom")
    options = parser.parse_args()
    head = "| command | seconds | fastest | processor seconds | seconds over import torch | processor likewise | goal |"
    print(f"{head}\n|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_text(SCRIPT)
        for engine in options.engines.split(","):
            for title, target in (("small script", (str(script),)), ("six-layer gpt", GPT)):
                command = [sys.executable, "-m", "memfit", "predict", *target, "--json", *ENGINES[engine]]
                measure(f"{title}, {engine}", command, engine, options)


if __name__ == "__main__":
    main()
