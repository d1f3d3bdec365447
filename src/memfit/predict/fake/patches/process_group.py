"""Process group of one process that acts as rank R of N (`torch.distributed`), on fake tensors.

torch's own fake process group (read in torch 2.13, `torch.testing._internal.distributed.fake_pg`): collectives return
at once and allocate what they would. DDP, FSDP2, tensor, context and pipeline parallelism run their own code on it, so
buckets, shards, gathered parameters and receive buffers appear in the trace as they are. What needs another rank's
values is answered here: small integers arrive as if all ranks were alike, and the objects of `torch.distributed`
likewise (`distributed_works.py`, `data_parallel.py`, `pipelining.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as distributed
import torch.multiprocessing
from torch.utils._python_dispatch import _disable_current_modes

from memfit.predict.fake.patches.data_parallel import data_parallel_on_fakes
from memfit.predict.fake.patches.distributed_works import owning_works
from memfit.predict.fake.patches.fully_sharded import sharding_one_by_one
from memfit.predict.ranks.environment import Ranks, environment_of
from memfit.predict.ranks.torch_pipelining import pipelining_on_fakes
from memfit.predict.ranks.torch_rank_listener import RankFacts
from memfit.predict.sandbox.processes import variables_set

Note = Callable[[str, str], None]


@contextlib.contextmanager
def _shapes_worked_out_unseen() -> Iterator[None]:
    """A sharded tensor works out shapes on fake tensors of full size, which are no memory: keep them out of the log."""
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    original: Any = ShardingPropagator._propagate_tensor_meta_non_cached

    def unseen(self: ShardingPropagator, *args: object, **kwargs: object) -> object:
        with _disable_current_modes():
            return original(self, *args, **kwargs)

    with patch.object(ShardingPropagator, "_propagate_tensor_meta_non_cached", unseen):
        yield


@contextlib.contextmanager
def pretending_ranks(ranks: Ranks, note: Note, facts: RankFacts) -> Iterator[None]:
    """Within, `init_process_group` joins a group of N ranks of which only this one exists."""
    if not distributed.is_available():
        yield
        return

    def join(*args: object, world_size: int | None = None, **kwargs: object) -> None:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        size = ranks.count if ranks.count > 1 else max(world_size or 1, 1)
        note("ranks", f"the process group is rank {ranks.rank} of {size}, without the others (--ranks)")
        with _disable_current_modes():
            original("fake", rank=ranks.rank, world_size=size, store=FakeStore())

    def spawn(
        function: Callable[..., None], args: tuple[object, ...] = (), nprocs: int = 1, *rest: object, **kwargs: object
    ) -> None:
        index = ranks.rank % max(nprocs, 1)
        note("ranks", f"of {nprocs} spawned processes number {index} was run, in this one")
        function(index, *args)

    original = distributed.init_process_group
    try:
        with contextlib.ExitStack() as stack:
            for module in (distributed, distributed.distributed_c10d, distributed.device_mesh):
                if hasattr(module, "init_process_group"):
                    stack.enter_context(patch.object(module, "init_process_group", join))
            for name in ("spawn", "start_processes"):
                stack.enter_context(patch.object(torch.multiprocessing, name, spawn))
            stack.enter_context(variables_set(environment_of(ranks, own_node=torch.cuda.is_available())))
            stack.enter_context(_shapes_worked_out_unseen())
            stack.enter_context(owning_works(note, facts))
            stack.enter_context(data_parallel_on_fakes())
            stack.enter_context(sharding_one_by_one())
            if ranks.count > 1:
                stack.enter_context(pipelining_on_fakes(facts))
                stack.enter_context(facts.listening())
            yield
    finally:
        if distributed.is_initialized():
            distributed.destroy_process_group()
