"""DistributedDataParallel on fake tensors: torch's own reducer and buckets (read in torch 2.13).

Three things of DDP need memory or another rank. The comparison of shapes at the start: all ranks have the same model.
The sum over all ranks: each bucket stands for it, by a communication hook where the job has none of its own. The order
of the buckets, which is agreed on after the first backward through small tensors of integers that C++ writes to: for
these, real tensors are handed out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as distributed
from torch._ops import OpOverload
from torch.nn.parallel import distributed as data_parallel
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from memfit.predict.observe.arguments import Arguments, Keywords, integers_at
from memfit.predict.observe.storage_tracker import tensors_in

EMPTY = torch.ops.aten.empty.memory_format


class _RealIntegers(TorchDispatchMode):
    """Within, new tensors of 32-bit integers are real ones on the CPU, and operators on real tensors run for real."""

    def __torch_dispatch__(
        self, func: OpOverload, types: tuple[type, ...], args: Arguments = (), kwargs: Keywords | None = None
    ) -> object:
        kwargs = kwargs or {}
        if func is EMPTY and kwargs.get("dtype") is torch.int32:
            with _disable_current_modes():
                return torch.empty(integers_at(args, 0), dtype=torch.int32)
        tensors = list(tensors_in((args, kwargs)))
        if tensors and all(type(tensor) is torch.Tensor for tensor in tensors):
            with _disable_current_modes():
                return func(*args, **kwargs)
        return func(*args, **kwargs)


@contextlib.contextmanager
def data_parallel_on_fakes() -> Iterator[None]:
    """Within, DDP runs with its own reducer."""
    reducer_class: Any = vars(distributed)["Reducer"]
    logger_class: Any = vars(distributed)["Logger"]
    rebuild = reducer_class._rebuild_buckets
    before_forward: Any = data_parallel.DistributedDataParallel._pre_forward

    def rebuilt(reducer: object) -> object:
        with _RealIntegers():
            return rebuild(reducer)

    def with_own_sums(self: data_parallel.DistributedDataParallel, *args: object, **kwargs: object) -> object:
        if not self._comm_hooks:
            self.register_comm_hook(None, _take_itself)
        return before_forward(self, *args, **kwargs)

    with (
        patch.object(reducer_class, "_rebuild_buckets", rebuilt),
        patch.object(data_parallel.DistributedDataParallel, "_pre_forward", with_own_sums),
        patch.object(data_parallel, "_verify_param_shape_across_processes", _agreed),
        patch.object(logger_class, "set_runtime_stats_and_log", _agreed),  # it asks for a timer of the GPU
    ):
        yield


def _take_itself(state, bucket):  # DDP checks annotations, and knows only its own as objects
    """The bucket, as if it were the sum over all ranks."""
    summed: Any = torch.futures.Future()
    summed.set_result(bucket.buffer())
    return summed


def _agreed(*args: object, **kwargs: object) -> None:
    """All ranks have the same model."""
