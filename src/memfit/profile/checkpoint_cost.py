"""Cost of checkpointing a call besides the second run itself.

It is Python: noting the state of modules and generators, a holder for every tensor, laying everything back. So it
depends on the number of calls and of saved tensors, and not on their sizes. Measured once in a process, with tiny
stages under the very frames that plans use; a stage then costs what its own calls and tensors come to. That loop finds
the caches of the processor full of what it needs, a step does not: what it measures is multiplied.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn.modules import module as torch_module

from memfit.apply.checkpoints import AppliedPlan, apply_nodes
from memfit.profile.meter.stage_times import seconds_now
from memfit.records.plan import Checkpoint, Keep, Stage

NUM_STAGES = 4
NUM_LAYERS = 8
"""Linear layers in each of the larger stages."""
NUM_ROUNDS, NUM_RUNS = 3, 8
WIDTH = 4
COLD = 2.0
"""In a step, whose operators go through megabytes in between, Python takes so many times the least of a tight loop."""


@dataclass(frozen=True, slots=True)
class CheckpointPrice:
    """Seconds for a call, and for each tensor that it saves."""

    call_seconds: float = 0.0
    tensor_seconds: float = 0.0

    def of(self, num_saved: Sequence[int]) -> float:
        """For calls that save so many tensors each."""
        return len(num_saved) * self.call_seconds + sum(num_saved) * self.tensor_seconds


@dataclass(frozen=True, slots=True)
class CheckpointCost:
    """What a checkpoint costs beside its second run; zero where it could not be measured."""

    first: CheckpointPrice = CheckpointPrice()
    """While its calls run for the first time."""
    again: CheckpointPrice = CheckpointPrice()
    """While they run for the second."""

    def seconds(self, num_saved: Sequence[int]) -> float:
        """Both, for a stage whose calls save so many tensors each."""
        return self.first.of(num_saved) + self.again.of(num_saved)


@functools.lru_cache(maxsize=1)
def _measured_cost() -> CheckpointCost:
    small, large = _Tiny(1), _Tiny(NUM_LAYERS)
    first = _price(small.num_saved, small.first_seconds, large.num_saved, large.first_seconds)
    again = _price(small.num_saved, small.again_seconds, large.num_saved, large.again_seconds)
    return CheckpointCost(first, again)


def checkpoint_cost() -> CheckpointCost:
    """What checkpoints cost in this process. Not measured while hooks of the user stand around every module."""
    return CheckpointCost() if torch_module._has_any_global_hook() else _measured_cost()


def _price(few: int, few_seconds: float, many: int, many_seconds: float) -> CheckpointPrice:
    """The line through two measurements; neither part of it is below zero."""
    per_tensor = max(0.0, (many_seconds - few_seconds) / max(1, many - few))
    return CheckpointPrice(max(0.0, few_seconds - few * per_tensor), per_tensor)


class _Tiny:
    """A chain of equal tiny stages, with what recomputing one of them costs."""

    def __init__(self, num_layers: int) -> None:
        with torch.random.fork_rng(devices=[]), torch.enable_grad(), torch.autocast("cpu", enabled=False):
            self.model = torch.nn.Sequential(*(_stage(num_layers) for _ in range(NUM_STAGES)))
            self.batch = torch.ones(WIDTH, WIDTH, device="cpu", dtype=torch.float32)
            self._measure()

    def _measure(self) -> None:
        stages = [
            Stage(name=str(i), forward_seconds=0.0, backward_seconds=0.0, output_bytes=0, saved_bytes=0)
            for i in range(NUM_STAGES)
        ]
        nodes = tuple(Checkpoint(inside=(Keep(stage=i),)) for i in range(NUM_STAGES))
        first, again = [], []
        for _ in range(NUM_ROUNDS):
            plain_forward, plain_step = _least(self._forward), _least(self._step)
            with apply_nodes(self.model, stages, nodes) as applied:
                forward, step = _least(self._forward), _least(self._step)
                self.num_saved = sum(saved_tensors(applied)[0])
            first.append((forward - plain_forward) / NUM_STAGES)
            again.append((step - plain_step - plain_forward) / NUM_STAGES - first[-1])
        self.first_seconds, self.again_seconds = COLD * statistics.median(first), COLD * statistics.median(again)

    def _forward(self) -> None:
        self.model(self.batch)

    def _step(self) -> None:
        self.model(self.batch).sum().backward()


def _stage(num_layers: int) -> torch.nn.Module:
    layers = [torch.nn.Linear(WIDTH, WIDTH, device="cpu", dtype=torch.float32) for _ in range(num_layers)]
    return torch.nn.Sequential(*layers)


def _least(run: Callable[[], None]) -> float:
    """The least seconds of some runs: whatever else runs on the machine only adds."""
    least = float("inf")
    for number in range(NUM_RUNS):
        start = seconds_now()
        run()
        least = min(least, seconds_now() - start) if number else least  # the first one warms up
    return least


def saved_tensors(applied: AppliedPlan) -> dict[int, list[int]]:
    """By stage, how many tensors each of its calls saved the last time."""
    found: dict[int, list[int]] = {}
    for call in applied.calls:
        if call.make.num_saved is not None:
            found.setdefault(call.member.stage, []).append(call.make.num_saved)
    return found
