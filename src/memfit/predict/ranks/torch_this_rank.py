"""Job of a function or workload as one rank: joins the process group and puts `--shard` on the training."""

from __future__ import annotations

import torch.distributed as distributed

from memfit.job.sharding import check_sharding
from memfit.job.torch_shard import sharded_training
from memfit.job.training import Training
from memfit.predict.options import PredictOptions


def as_this_rank(options: PredictOptions, training: Training, origin: str) -> Training:
    """What a function built, wrapped as `--shard` says."""
    how = check_sharding(options.ranks, options.shard)
    if how is None:
        return training
    if not distributed.is_initialized():
        distributed.init_process_group()
    return sharded_training(training, how, origin)
