"""Child process to try counters on: resets its own high-water mark, reports its readings, waits to be read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

CHILD_PROGRAM = """
import json, mmap, sys, time

BLOCK = 32 << 20

def high_water():
    with open("/proc/self/status") as stream:
        return next(int(line.split()[1]) * 1024 for line in stream if line.startswith("VmHWM:"))

def tell():
    block = mmap.mmap(-1, BLOCK)
    for offset in range(0, BLOCK, mmap.PAGESIZE):
        block[offset] = 1
    block.close()
    before = high_water()
    started = time.perf_counter_ns()
    with open("/proc/self/clear_refs", "w") as stream:
        stream.write("5")
    cost = time.perf_counter_ns() - started
    return {"before_bytes": before, "after_bytes": high_water(), "block_bytes": BLOCK, "reset_ns": cost}

try:
    answer = tell()
except Exception as error:
    answer = {"error": f"{type(error).__name__}: {error}"}
print(json.dumps(answer), flush=True)
sys.stdin.read()
"""


class ProbeChild:
    """The running child; `report` holds its readings."""

    FILES = ("statm", "status", "smaps_rollup", "smaps")

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self.report: dict[str, Any] = {}

    @property
    def pid(self) -> int:
        """Its process number."""
        return self._process.pid if self._process else 0

    def __enter__(self) -> ProbeChild:
        command = [sys.executable, "-I", "-S", "-c", CHILD_PROGRAM]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            assert self._process.stdout is not None
            self.report = json.loads(self._process.stdout.readline())
        except (OSError, ValueError) as error:
            self.report = {"error": f"a small Python process could not be started: {error}"}
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.communicate(input="")
            self._process = None

    def closed_files(self) -> list[tuple[str, OSError]]:
        """The files of the child that this process may not read, each with the error."""
        closed = []
        for name in self.FILES:
            try:
                with open(f"/proc/{self.pid}/{name}", "rb") as stream:
                    os.read(stream.fileno(), 64)
            except OSError as error:
                closed.append((name, error))
        return closed
