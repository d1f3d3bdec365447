"""Training wrapped in torch's own data parallelism: DDP, ZeroRedundancyOptimizer, or FSDP2's `fully_shard`.

`ddp` is DistributedDataParallel, `zero1` the same with ZeroRedundancyOptimizer, `zero2` `fully_shard` that keeps
gathered parameters from forward to backward, `zero3` and `fsdp` `fully_shard` that gathers them again. Blocks are the
outermost numbered modules (`layers.0`); what is left belongs to the whole model. The process group must be joined.
"""

from __future__ import annotations

import torch
import torch.distributed as distributed
from torch import nn

from memfit.errors import UsageError
from memfit.job.sharding import Sharding
from memfit.job.training import Training


def sharded_training(training: Training, how: Sharding, origin: str) -> Training:
    """The same training as one rank of the process group."""
    model = training.model
    if not isinstance(model, nn.Module) or training.optimizer is None:
        what = f"{origin} returned no model and optimizer to put --shard on"
        raise UsageError(what, hint="return (model, optimizer, loss, batch), or shard in the function and leave it out")
    if how in ("ddp", "zero1"):
        _put_ddp_on(training, model, origin)
        if how == "zero1":
            training.optimizer = _divided_optimizer(training.optimizer)
    else:
        _put_fsdp_on(training, model, origin, gather_again=how != "zero2")
    return training


def _put_ddp_on(training: Training, model: nn.Module, origin: str) -> None:
    if training.step is not None and training.options is None:
        what = f"{origin} has a step of its own, which calls the model that it was built with"
        raise UsageError(what, hint="wrap the model in DistributedDataParallel in the function, and leave --shard out")
    training.model = nn.parallel.DistributedDataParallel(model)


def _divided_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The same optimizer with its state divided among the ranks, parameter by parameter."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    groups = [{**group} for group in optimizer.param_groups]
    return ZeroRedundancyOptimizer(groups, type(optimizer), **optimizer.defaults)


def _put_fsdp_on(training: Training, model: nn.Module, origin: str, *, gather_again: bool) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    if training.optimizer.state:
        raise UsageError(f"the optimizer of {origin} has state already", hint="return it before its first step")
    kind = next(model.parameters()).device.type
    mesh = init_device_mesh(kind, (distributed.get_world_size(),))
    names = {parameter: name for name, parameter in model.named_parameters()}
    for block in blocks_of(model):
        fully_shard(block, mesh=mesh, reshard_after_forward=gather_again)
    fully_shard(model, mesh=mesh, reshard_after_forward=gather_again)
    parts = dict(model.named_parameters())
    for group in training.optimizer.param_groups:
        group["params"] = [parts[names[parameter]] for parameter in group["params"]]


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The outermost numbered modules that have parameters."""
    found: list[nn.Module] = []
    taken: list[str] = []
    for path, module in model.named_modules():
        is_inside = any(path.startswith(f"{block}.") for block in taken)
        if path.rpartition(".")[2].isdigit() and not is_inside and next(module.parameters(), None) is not None:
            found.append(module)
            taken.append(path)
    return found
