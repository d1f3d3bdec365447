"""The training process as the benchmark sees it: send an order, get the times of a block."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from typing import Any

MODEL_NAMES = ("mlp", "transformer", "conv net")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The times of one block of steps."""

    cpu_seconds: list[float]
    wall_seconds: list[float]
    warm_cpu_seconds: list[float]
    switch_cpu_seconds: float
    """CPU time of switching the tool on and off, the loop apart."""
    traced_steps: list[int]
    """Steps, counted from 1 with the warm ones, that a probe found to be traced."""


class Trainer:
    """A process that trains one of the models when told to; use it as a context manager."""

    def __init__(self, model: str) -> None:
        environment = dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
        command = [sys.executable, "-m", "benchmarks.overhead.torch_blocks", model]
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in __exit__
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, env=environment
        )
        self.pid = self._process.pid
        self.step_seconds: float = self._read()["step_seconds"]
        """What a step takes with nothing switched on, about."""

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    def block(self, inside: str, folder: str, num_warm: int, num_steps: int) -> Block:
        """Run one block with a tool switched on inside of the process ('off' for none)."""
        order = {"inside": inside, "folder": folder, "num_warm": num_warm, "num_steps": num_steps}
        facts = self._ask(order)
        return Block(
            cpu_seconds=facts["cpu"],
            wall_seconds=facts["wall"],
            warm_cpu_seconds=facts["warm_cpu"],
            switch_cpu_seconds=facts["start_cpu"] + facts["stop_cpu"],
            traced_steps=facts["traced_steps"],
        )

    def train_for(self, seconds: float, inside: str = "off", folder: str = "") -> int:
        """Train without a pause, a tool switched on inside of the process or none; returns the number of steps."""
        return self._ask({"train_seconds": seconds, "inside": inside, "folder": folder})["num_steps"]

    def _ask(self, order: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            found = self._errors.read()[-2000:]
            raise RuntimeError(f"the training process ended early with code {self._process.wait()}:\n{found}")
        return json.loads(line)
