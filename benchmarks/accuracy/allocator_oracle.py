"""Is the simulated CUDA allocator the real one? Random requests are given to both, and every address, block and
statistic compared.

    python -m benchmarks.accuracy.allocator_oracle --python CUDA_PYTHON [--phantom FOLDER] [--events 2000] [--rounds 3]

CUDA_PYTHON is an interpreter whose torch was built with CUDA. Without a GPU, FOLDER is a built phantom GPU (a
stand-in for the driver, whose device is address space), so the allocator's own code runs on any machine. With
--golden PATH the answers of the real allocator are kept, for tests on machines that have neither.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from memfit.predict.allocator.caching import CachingAllocator, OutOfDeviceMemory
from memfit.predict.allocator.driver import ChunkedMemory
from memfit.predict.allocator.play import make_allocator
from memfit.predict.allocator.settings import parse_allocator_settings
from memfit.units import GIB, KIB, MIB

CHECK_EVERY = 25
CONTEXT_MIB = 100


@dataclass(frozen=True, kw_only=True)
class Case:
    """One way to set up the allocator."""

    settings: str
    device_mib: int = 65536

    @property
    def name(self) -> str:
        """For the table."""
        return f"{self.settings or 'default'} on {self.device_mib} MiB"


CASES = [
    Case(settings=settings, device_mib=mib)
    for mib in (65536, 2000, 501)
    for settings in (
        "",
        "expandable_segments:True",
        "max_split_size_mb:32",
        "max_split_size_mb:64,max_non_split_rounding_mb:40",
        "roundup_power2_divisions:4",
        "roundup_power2_divisions:[1:2,8:4,64:8,>:16]",
        "garbage_collection_threshold:0.4,per_process_memory_fraction:0.5",
        "garbage_collection_threshold:0.2,per_process_memory_fraction:0.9,max_split_size_mb:100",
        "per_process_memory_fraction:0.3",
        "large_segment_size_mb:44",
        "expandable_segments:True,per_process_memory_fraction:0.4",
        "expandable_segments:True,roundup_power2_divisions:8",
        "expandable_segments:True,max_split_size_mb:40",
        "expandable_segments:True,large_segment_size_mb:32",
        "expandable_segments:True,garbage_collection_threshold:0.3,per_process_memory_fraction:0.6",
    )
]


class RealAllocator:
    """The worker process with the real allocator."""

    def __init__(self, python: str, phantom: str | None, case: Case) -> None:
        variables = os.environ | {
            "PYTORCH_CUDA_ALLOC_CONF": case.settings,
            "PHANTOM_FOLDER": phantom or "",
            "PHANTOM_MEM_MB": str(case.device_mib),
            "PHANTOM_CONTEXT_MB": str(CONTEXT_MIB),
        }
        worker = str(Path(__file__).with_name("oracle_worker.py"))
        self.process = subprocess.Popen(
            [python, worker], env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True,
        )  # fmt: skip
        self.hello = self._read()

    def play(self, operations: list) -> dict:
        """Send a sequence, wait for what it gave."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"operations": operations, "check_every": CHECK_EVERY}) + "\n")
        self.process.stdin.flush()
        return self._read()

    def _read(self) -> dict:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(
                "the worker died: its torch has no CUDA, or the phantom GPU is not built; run oracle_worker.py by hand"
            )
        return json.loads(line)

    def close(self) -> None:
        """End the worker."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def random_operations(chance: random.Random, num_events: int, budget_bytes: int, first_name: int) -> list:
    """A sequence as training makes them: many sizes, few of them distinct, phases of growth and of decay."""
    menu = [random_size(chance) for _ in range(chance.choice((8, 40, 200)))]
    live: dict[int, int] = {}
    operations: list = []
    growing, name = True, first_name
    while len(operations) < num_events:
        if chance.random() < 0.02:
            growing = not growing
        kind = chance.random()
        if kind < 0.003:
            operations.append(["empty"])
        elif kind < 0.02 and live:
            chosen = chance.choice(list(live))
            operations.append(["record", chosen, chance.randrange(2)])
        elif live and (sum(live.values()) > budget_bytes or chance.random() < (0.25 if growing else 0.7)):
            chosen = chance.choice(list(live)[-chance.choice((1, 5, 1000)) :])
            del live[chosen]
            operations.append(["free", chosen])
        else:
            live[name] = chance.choice(menu)
            operations.append(["allocate", name, live[name], int(chance.random() < 0.15)])
            name += 1
    return operations + [["free", left] for left in live]


def random_size(chance: random.Random) -> int:
    """From bytes to hundreds of MiB, and often near a limit of the allocator's rules."""
    kind = chance.random()
    if kind < 0.25:
        return chance.randrange(1, 4 * KIB)
    if kind < 0.4:
        return chance.randrange(4 * KIB, MIB)
    if kind < 0.75:
        return chance.randrange(MIB, 24 * MIB)
    if kind < 0.9:
        near = chance.choice((MIB, 2 * MIB, 10 * MIB, 20 * MIB, 32 * MIB, 64 * MIB))
        return near + chance.choice((-513, -512, -1, 0, 1, 511, 512, 513, MIB, MIB + 512))
    return chance.randrange(24 * MIB, 200 * MIB)


class Simulated:
    """The simulated allocator behind the same operations."""

    def __init__(self, case: Case, hello: dict) -> None:
        memory = ChunkedMemory(hello["total"], hello["total"] - hello["free"], first_address=2**46)
        self.allocator: CachingAllocator = make_allocator(parse_allocator_settings(case.settings), driver=memory)
        self.handles: dict[int, int] = {}
        self.shift: int | None = None

    def one(self, operation: list) -> object:
        """What the real player's `one` gives."""
        kind, rest = operation[0], operation[1:]
        if kind == "allocate":
            try:
                self.handles[rest[0]] = self.allocator.allocate(rest[1], rest[2])
            except OutOfDeviceMemory as error:
                return error.report.message
            return self.allocator.address(self.handles[rest[0]])
        if kind == "free" and rest[0] in self.handles:
            self.allocator.free(self.handles.pop(rest[0]))
        elif kind == "record" and rest[0] in self.handles:
            self.allocator.record_stream(self.handles[rest[0]], rest[1])
        elif kind == "empty":
            self.allocator.empty_cache()
        return None

    def differences(self, operations: list, answer: dict) -> Iterator[str]:
        """Where the real allocator did something else."""
        for number, (operation, real) in enumerate(zip(operations, answer["results"], strict=True)):
            mine = self.one(operation)
            if isinstance(real, int) and isinstance(mine, int):
                self.shift = real - mine if self.shift is None else self.shift
                mine += self.shift
            if isinstance(real, str):
                real = re.sub(r"\. If reserved but unallocated.*", ".", real, flags=re.DOTALL)
            if mine != real:
                yield f"event {number} {operation}: {mine!r} instead of {real!r}"
            if str(number) in answer["checks"]:
                yield from self.check(number, answer["checks"][str(number)])

    def check(self, number: int, real: dict) -> Iterator[str]:
        """Statistics and blocks after an event."""
        stats = self.allocator.stats
        for name, value in real["stats"].items():
            if stats.get(name) != value:
                yield f"after event {number}: {name} is {stats.get(name)} instead of {value}"
        shift = self.shift or 0
        states = {"allocated": "active_allocated", "awaiting free": "active_pending_free", "free": "inactive"}
        mine = [
            [s.address + shift, s.num_bytes, s.pool, s.is_expandable,
             [[b.address + shift, b.num_bytes, states[b.state]] for b in s.blocks]]
            for s in self.allocator.segments()
        ]  # fmt: skip
        if mine != real["segments"]:
            mine_but, real_but = (
                [m for m in mine if m not in real["segments"]],
                [r for r in real["segments"] if r not in mine],
            )
            yield f"after event {number}: the segments differ: {mine_but[:1]} instead of {real_but[:1]}"


def run_case(case: Case, arguments: argparse.Namespace, chance: random.Random, golden: list) -> tuple[int, str, str]:
    """(events, how often memory ran out, first difference)."""
    real = RealAllocator(arguments.python, arguments.phantom, case)
    simulated = Simulated(case, real.hello)
    num_events, first = 0, ""
    for _ in range(arguments.rounds):
        budget = min(6 * GIB, int((case.device_mib - CONTEXT_MIB) * MIB * chance.choice((0.5, 1.0, 1.6))))
        operations = random_operations(chance, arguments.events, budget, num_events)
        answer = real.play(operations)
        golden.append({"settings": case.settings, "hello": real.hello, "operations": operations, "answer": answer})
        first = next(simulated.differences(operations, answer), "")
        num_events += len(operations)
        if first:
            break
    real.close()
    stats = simulated.allocator.stats
    return num_events, f"{stats['num_alloc_retries']} retries, {stats['num_ooms']} failures", first


def write_golden(path: str, golden: list) -> None:
    """Keep addresses relative to the first one, messages, and the state at the end."""
    for case in golden:
        answer = case["answer"]
        base = next(result for result in answer["results"] if isinstance(result, int))
        answer["results"] = [result - base if isinstance(result, int) else result for result in answer["results"]]
        answer["stats"] = answer.pop("checks")[str(len(case["operations"]) - 1)]["stats"]
    with gzip.GzipFile(path, "wb", mtime=0) as file:
        file.write(json.dumps(golden, separators=(",", ":")).encode())


def main() -> int:
    """Every case, one line each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--python", required=True, help="an interpreter whose torch was built with CUDA")
    parser.add_argument("--phantom", help="the folder of a built phantom GPU")
    parser.add_argument("--events", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--golden", help="keep what the real allocator answered in this file (.json.gz)")
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    arguments = parser.parse_args()
    total, failed, started = 0, 0, time.perf_counter()
    golden: list = []
    for case in CASES:
        if arguments.only not in case.name:
            continue
        num_events, outs, first = run_case(case, arguments, random.Random(f"{arguments.seed} {case.name}"), golden)
        total, failed = total + num_events, failed + bool(first)
        print(f"{'equal' if not first else 'DIFFER':7}{num_events:>8} events, {outs}  {case.name}  {first}", flush=True)
    print(
        f"{total} events, {failed} cases differ, {time.perf_counter() - started:.0f} s; every address compared, ",
        end="",
    )
    print(f"all statistics and blocks after every {CHECK_EVERY} events")
    if arguments.golden:
        write_golden(arguments.golden, golden)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
