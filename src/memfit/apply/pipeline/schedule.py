"""Schedules of torch.distributed.pipelining by memfit's names, and custom orders through the runtime's own loader.

The loader (`_PipelineScheduleRuntime._load_csv`, read in torch 2.13) takes one row per rank with cells such as '0F3';
it puts the transfers in, takes the ranks of the stages from the file and checks the order.
"""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.pipelining.schedules import (
    _PipelineScheduleRuntime,  # pyright: ignore[reportPrivateUsage]
)

from memfit.apply.pipeline.cut import StageModule, StageParts
from memfit.errors import UsageError

CLASSES = {
    "gpipe": "ScheduleGPipe", "1f1b": "Schedule1F1B", "interleaved-1f1b": "ScheduleInterleaved1F1B",
    "looped-bfs": "ScheduleLoopedBFS", "interleaved-zero-bubble": "ScheduleInterleavedZeroBubble",
    "zbv-zero-bubble": "ScheduleZBVZeroBubble", "dualpipev": "ScheduleDualPipeV",
}  # fmt: skip
SINGLE = ("gpipe", "1f1b")
"""Schedules of one stage per rank."""

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def make_stages(model: torch.nn.Module, parts: StageParts, own: Sequence[int], device: str) -> list[PipelineStage]:
    """The stages of this rank, with the shapes that they get and return, so that none is run to find them out."""
    return [
        PipelineStage(
            StageModule(model, parts, index), index, parts.num_stages, torch.device(device),
            input_args=(_example(parts.inputs[index], index > 0),),
            output_args=(_example(_output_of(parts, index), True),),
        )
        for index in own
    ]  # fmt: skip


def _output_of(parts: StageParts, index: int) -> torch.Tensor:
    return parts.inputs[index + 1] if index + 1 < parts.num_stages else parts.output


def _example(tensor: torch.Tensor, with_grad: bool) -> torch.Tensor:
    """The shape of a tensor that is sent; floating ones have a gradient that is sent back."""
    return torch.empty_like(tensor, device="meta").requires_grad_(with_grad and tensor.is_floating_point())


def make_schedule(
    stages: list[PipelineStage],
    *,
    name: str,
    num_micro_batches: int,
    loss: Loss,
    orders: Sequence[Sequence[str]] = (),
) -> schedules._PipelineSchedule:
    """A schedule of torch, or the given order of every rank."""
    if orders:
        return _custom_schedule(stages, num_micro_batches, loss, orders)
    if name not in CLASSES:
        raise UsageError(f"there is no schedule {name!r}", hint=", ".join(CLASSES))
    if name in SINGLE and len(stages) != 1:
        hint = "interleaved-1f1b, or as many stages as ranks"
        raise UsageError(f"{name} has one stage on each rank", found=f"{len(stages)} stages", hint=hint)
    chosen = getattr(schedules, CLASSES[name])
    return chosen(stages[0] if name in SINGLE else stages, num_micro_batches, loss_fn=loss)


def _custom_schedule(
    stages: list[PipelineStage], num_micro_batches: int, loss: Loss, orders: Sequence[Sequence[str]]
) -> schedules._PipelineSchedule:
    schedule = _PipelineScheduleRuntime(stages, num_micro_batches, loss_fn=loss)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "order.csv"
        with open(path, "w", newline="") as file:
            csv.writer(file).writerows(orders)
        schedule._load_csv(str(path))
    return schedule


def ranks_of_stages(name: str, num_stages: int, num_ranks: int) -> list[int]:
    """On which rank each stage lies in a schedule of torch: in a loop, or there and back."""
    if name in ("zbv-zero-bubble", "dualpipev"):
        return [min(index, num_stages - 1 - index) for index in range(num_stages)]
    return [index % num_ranks for index in range(num_stages)]
