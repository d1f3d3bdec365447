"""Process group of one process that acts as rank R of N (`torch.distributed`), on the phantom GPU.

torch's own fake process group (`torch.testing._internal.distributed.fake_pg`, read in torch 2.10 to 2.15): collectives
are over at once and allocate what they would. FSDP2 and DDP run their own code, DDP with its real reducer and buckets.
Two things of DDP need another rank's values and are left out: the comparison of shapes at the start, and the result of
the sum, for which each bucket's own memory stands. Small integers arrive as if all ranks were alike
(`collectives.py`). What NCCL holds lies outside of torch's allocator and is not
counted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as distributed
from torch.nn.parallel import distributed as data_parallel

from memfit.predict.phantom.in_child.collectives import carrying_values
from memfit.predict.phantom.in_child.values import Values
from memfit.predict.ranks.environment import Ranks, environment_of
from memfit.predict.ranks.torch_pipelining import pipelining_on_fakes
from memfit.predict.ranks.torch_rank_listener import RankFacts
from memfit.predict.sandbox.processes import variables_set

Note = Callable[[str, str], None]


@contextlib.contextmanager
def one_of_ranks(ranks: Ranks, values: Values, note: Note, facts: RankFacts) -> Iterator[None]:
    """Within, `init_process_group` joins a group of N ranks of which only this one exists."""
    if not distributed.is_available():
        yield
        return
    original = distributed.init_process_group

    def join(*args: object, **kwargs: object) -> None:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        note("ranks", f"the process group is rank {ranks.rank} of {ranks.count}, without the others (--ranks)")
        original("fake", rank=ranks.rank, world_size=ranks.count, store=FakeStore())

    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(variables_set(environment_of(ranks, own_node=True)))
            stack.enter_context(carrying_values(values, note, facts))
            if ranks.count > 1:
                stack.enter_context(pipelining_on_fakes(facts))
                stack.enter_context(facts.listening())
            for module in (distributed, distributed.distributed_c10d, torch.distributed.device_mesh):
                if hasattr(module, "init_process_group"):
                    stack.enter_context(patch.object(module, "init_process_group", join))
            stack.enter_context(patch.object(data_parallel, "_verify_param_shape_across_processes", _agreed))
            stack.enter_context(patch.object(data_parallel.DistributedDataParallel, "__init__", _with_own_sums()))
            yield
    finally:
        if distributed.is_initialized():
            distributed.destroy_process_group()


def _agreed(*args: object, **kwargs: object) -> None:
    """All ranks have the same model."""


def _with_own_sums() -> Callable[..., None]:
    """DDP whose reducer takes each bucket itself as the sum over all ranks."""
    original: Callable[..., None] = data_parallel.DistributedDataParallel.__init__

    def take_itself(state, bucket):  # DDP checks annotations, and knows only its own as objects
        summed: Any = torch.futures.Future(devices=[bucket.buffer().device])
        summed.set_result(bucket.buffer())
        return summed

    def make(self: data_parallel.DistributedDataParallel, *args: object, **kwargs: object) -> None:
        original(self, *args, **kwargs)
        self.register_comm_hook(None, take_itself)

    return make
