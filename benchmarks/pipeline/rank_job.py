"""Training script of one rank, as a user would start it with `torchrun`: DDP, FSDP2, tensor parallelism or a pipeline.

    torchrun --nproc-per-node 2 rank_job.py --way fsdp

Nothing of memfit is in it: `ranks.py` starts it in real processes (gloo) and predicts the same file.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

WIDTH, BLOCKS, BATCH = 256, 8, 512
DEVICE = os.environ.get("RANK_JOB_DEVICE", "cpu")


class Block(nn.Module):
    """LayerNorm, two layers and a residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    """Blocks between an input and an output layer."""

    def __init__(self, width: int = WIDTH, num_blocks: int = BLOCKS) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(width) for _ in range(num_blocks)])
        self.head = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.l1_loss(output, target)


def data_parallel(model: nn.Module) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model)


def data_parallel_views(model: nn.Module) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True, bucket_cap_mb=4)


def fully_sharded(model: nn.Module, *, gather_again: bool = True) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(DEVICE, (dist.get_world_size(),))
    for layer in model.layers:  # pyright: ignore[reportGeneralTypeIssues]
        fully_shard(layer, mesh=mesh, reshard_after_forward=gather_again)
    fully_shard(model, mesh=mesh, reshard_after_forward=gather_again)
    return model


def gathered_once(model: nn.Module) -> nn.Module:
    return fully_sharded(model, gather_again=False)


def tensor_parallel(model: nn.Module) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh(DEVICE, (dist.get_world_size(),))
    for layer in model.layers:  # pyright: ignore[reportGeneralTypeIssues]
        parallelize_module(layer, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


def sequence_parallel(model: nn.Module) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    mesh = init_device_mesh(DEVICE, (dist.get_world_size(),))
    for layer in model.layers:  # pyright: ignore[reportGeneralTypeIssues]
        plan = {
            "norm": SequenceParallel(sequence_dim=0),
            "up": ColwiseParallel(input_layouts=Shard(0)),
            "down": RowwiseParallel(output_layouts=Shard(0), use_local_output=False),
        }
        parallelize_module(layer, mesh, plan)  # pyright: ignore[reportArgumentType]
    inputs = PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Shard(0), use_local_output=False)
    parallelize_module(model, mesh, inputs)
    parallelize_module(model.head, mesh, ColwiseParallel(input_layouts=Shard(0), output_layouts=Replicate()))  # pyright: ignore[reportArgumentType]
    return model


WAYS = {
    "ddp": data_parallel, "ddp-views": data_parallel_views, "zero1": data_parallel, "zero2": gathered_once,
    "fsdp": fully_sharded, "tp": tensor_parallel, "sp": sequence_parallel,
}  # fmt: skip
SCHEDULES = {
    "gpipe": ("ScheduleGPipe", 1), "1f1b": ("Schedule1F1B", 1), "interleaved-1f1b": ("ScheduleInterleaved1F1B", 2),
    "looped-bfs": ("ScheduleLoopedBFS", 2), "interleaved-zero-bubble": ("ScheduleInterleavedZeroBubble", 2),
    "zbv-zero-bubble": ("ScheduleZBVZeroBubble", 2), "dualpipev": ("ScheduleDualPipeV", 2),
}  # fmt: skip
V_SHAPED = ("zbv-zero-bubble", "dualpipev")


def train_pipeline(way: str, num_steps: int, static: bool) -> None:
    """A pipeline of equal stages under one of torch's schedules."""
    from torch.distributed import pipelining
    from torch.distributed.pipelining import PipelineStage

    rank, size = dist.get_rank(), dist.get_world_size()
    name, per_rank = SCHEDULES[way]
    num_stages, num_micro_batches = size * per_rank, 2 * size * per_rank
    own = [rank + size * index for index in range(per_rank)]
    if way in V_SHAPED:
        own = [rank, num_stages - 1 - rank]
    micro = BATCH // num_micro_batches
    example = torch.zeros(micro, WIDTH, requires_grad=True, device=DEVICE)
    blocks = BLOCKS // num_stages
    modules = [nn.Sequential(*[Block(WIDTH) for _ in range(blocks)]).to(DEVICE) for _ in own]
    shapes: Any = {"input_args": (example,), "output_args": (example,)} if static else {}
    stages = [
        PipelineStage(module, index, num_stages, torch.device(DEVICE), **shapes)
        for module, index in zip(modules, own, strict=True)
    ]
    schedule_class = getattr(pipelining.schedules, name)
    schedule = schedule_class(stages[0] if per_rank == 1 else stages, num_micro_batches, loss_fn=loss_of)
    parameters = [parameter for module in modules for parameter in module.parameters()]
    optimizer = torch.optim.Adam(parameters)
    x, target = torch.randn(BATCH, WIDTH, device=DEVICE), torch.randn(BATCH, WIDTH, device=DEVICE)
    for _ in range(num_steps):
        losses: list[torch.Tensor] = []
        arguments = (x,) if 0 in own else ()
        schedule.step(*arguments, target=target if num_stages - 1 in own else None, losses=losses)
        optimizer.step()
        optimizer.zero_grad()


def train(way: str, num_steps: int) -> None:
    """A model under one kind of data or tensor parallelism."""
    model = WAYS[way](Net().to(DEVICE))
    optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters())
    if way == "zero1":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam)
    for _ in range(num_steps):
        x, target = torch.randn(BATCH, WIDTH, device=DEVICE), torch.randn(BATCH, WIDTH, device=DEVICE)
        loss = loss_of(model(x), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def main() -> None:
    """Some steps of this rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--way", choices=[*WAYS, *SCHEDULES], default="fsdp")
    parser.add_argument("--num-steps", type=int, default=3)
    parser.add_argument("--dynamic", action="store_true", help="let the stages of a pipeline find their shapes out")
    arguments = parser.parse_args()
    dist.init_process_group("gloo" if DEVICE == "cpu" else "nccl")
    if DEVICE != "cpu":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(int(os.environ["RANK"]))
    if arguments.way in SCHEDULES:
        train_pipeline(arguments.way, arguments.num_steps, not arguments.dynamic)
    else:
        train(arguments.way, arguments.num_steps)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
