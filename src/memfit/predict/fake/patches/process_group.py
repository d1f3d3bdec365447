"""Process group of one process that acts as rank 0 of N (`torch.distributed`), on fake tensors.

torch's own fake process group (read in torch 2.13, `torch.testing._internal.distributed.fake_pg`): collectives return
at once and allocate what they would. FSDP2 runs its own code on it, so sharded and gathered parameters appear in the
trace as they are. DDP's reducer is C++ that reads memory, so a module with its buckets stands in for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as distributed
import torch.multiprocessing
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from memfit.predict.sandbox.processes import variables_set

ENVIRONMENT = {"RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
BUCKET_BYTES, FIRST_BUCKET_BYTES = 25 * 1024**2, 1024**2


class GhostDistributedDataParallel(nn.Module):
    """Calls the module, and holds what DDP's reducer holds: flat buckets as large as all gradients."""

    def __init__(
        self, module: nn.Module, *args: Any, bucket_cap_mb: float | None = None, gradient_as_bucket_view: bool = False,
        **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        self.module = module
        cap = BUCKET_BYTES if bucket_cap_mb is None else int(bucket_cap_mb * 1024**2)
        # with gradients that are views of the buckets, the gradients themselves are the buckets
        self._buckets = [] if gradient_as_bucket_view else list(_buckets(module, cap))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As the module."""
        return self.module(*args, **kwargs)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Nothing is ever synchronised."""
        yield


def _buckets(module: nn.Module, cap: int) -> Iterator[torch.Tensor]:
    """One flat tensor per bucket, filled from the last parameter on; the first is smaller."""
    filled: list[nn.Parameter] = []
    limit = FIRST_BUCKET_BYTES
    for parameter in reversed([p for p in module.parameters() if p.requires_grad]):
        filled.append(parameter)
        if sum(p.nbytes for p in filled) >= limit:
            yield _flat(filled)
            filled, limit = [], cap
    if filled:
        yield _flat(filled)


def _flat(parameters: list[nn.Parameter]) -> torch.Tensor:
    first = parameters[0]
    return torch.empty(sum(p.numel() for p in parameters), dtype=first.dtype, device=first.device)


@contextlib.contextmanager
def _shapes_worked_out_unseen() -> Iterator[None]:
    """A sharded tensor works out shapes on fake tensors of full size, which are no memory: keep them out of the log."""
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    original = ShardingPropagator._propagate_tensor_meta_non_cached

    def unseen(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return original(self, *args, **kwargs)

    with patch.object(ShardingPropagator, "_propagate_tensor_meta_non_cached", unseen):
        yield


@contextlib.contextmanager
def pretending_ranks(num_ranks: int, note: Callable[[str, str], None]) -> Iterator[None]:
    """Within, `init_process_group` joins a group of N ranks of which only this one exists."""
    if not distributed.is_available():
        yield
        return

    def join(*args: Any, **kwargs: Any) -> None:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        size = num_ranks if num_ranks > 1 else max(kwargs.get("world_size", 1) or 1, 1)
        note("ranks", f"the process group is rank 0 of {size}, without the others (--ranks)")
        with _disable_current_modes():
            original("fake", rank=0, world_size=size, store=FakeStore())

    def spawn(function: Any, args: Any = (), nprocs: int = 1, *rest: Any, **kwargs: Any) -> None:
        note("ranks", f"of {nprocs} spawned processes the first was run, in this one")
        function(0, *args)

    original = distributed.init_process_group
    sizes = {"WORLD_SIZE": str(num_ranks), "LOCAL_WORLD_SIZE": str(num_ranks)}
    variables = {**ENVIRONMENT, **sizes} if num_ranks > 1 else {}
    try:
        with (
            patch.object(distributed, "init_process_group", join),
            patch.object(torch.multiprocessing, "spawn", spawn),
            patch.object(torch.multiprocessing, "start_processes", spawn),
            patch.object(nn.parallel, "DistributedDataParallel", GhostDistributedDataParallel),
            patch("torch.nn.parallel.distributed.DistributedDataParallel", GhostDistributedDataParallel),
            variables_set(variables),
            _shapes_worked_out_unseen(),
        ):
            yield
    finally:
        if distributed.is_initialized():
            distributed.destroy_process_group()
