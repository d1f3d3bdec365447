"""FSDP2 and DTensor on fake tensors: of a parameter's parts only this rank's is made and filled (read in torch 2.13).

torch cuts every parameter into as many views as there are ranks, empty ones where rows run out, and takes one of them.
Over 512 ranks these views, which are no memory, are nearly all that a prediction spends its time on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import ModuleType
from unittest.mock import patch

import torch

from memfit.predict.child.after_import import after_import

PARAMETERS = "torch.distributed.fsdp._fully_shard._fsdp_param"
OPERATORS = "torch.distributed.tensor._dispatch"


class OneByOne:
    """The parts of a tensor as `torch.chunk` cuts it, each made when it is asked for."""

    def __init__(self, tensor: torch.Tensor, num_chunks: int, dim: int) -> None:
        self._tensor, self._count, self._dim = tensor, num_chunks, dim

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (self[index] for index in range(self._count))

    def __getitem__(self, index: int) -> torch.Tensor:
        if not 0 <= index < self._count:
            raise IndexError(index)
        rows = self._tensor.size(self._dim)
        part = -(-rows // self._count)
        if not part or index * part >= rows:
            return self._tensor.new_empty(0)
        return self._tensor.narrow(self._dim, index * part, min(part, rows - index * part))


@contextlib.contextmanager
def sharding_one_by_one() -> Iterator[None]:
    """Within, parameters are cut into the parts that are asked for, and drawn without a look at the generator."""
    with contextlib.ExitStack() as stack:

        def replace(name: str, stand_in: object) -> Callable[[ModuleType], None]:
            def act(module: ModuleType) -> None:
                if hasattr(module, name):
                    stack.enter_context(patch.object(module, name, stand_in))

            return act

        with (
            after_import(PARAMETERS, replace("_chunk_with_empty", OneByOne)),
            after_import(OPERATORS, replace("run_dtensor_rng_op", _drawn_at_once)),
        ):
            yield


def _drawn_at_once(start: int, end: int, operator: Callable[..., object], *args: object, **kwargs: object) -> object:
    """The random operator on this rank's part; which numbers it draws does not matter."""
    return operator(*args, **kwargs)
