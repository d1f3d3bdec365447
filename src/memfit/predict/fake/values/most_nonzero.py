"""Upper bounds of the elements of a tensor that differ from zero, where its values are unknown and its origin is not.

A matrix of neighbours is often made dense, scaled, and asked for its entries again (`dense.nonzero()`,
`dense[dense > 0]`): it has no more of them than the sparse matrix it was made of, a diagonal matrix no more than its
diagonal. That is kept beside the storage, carried through operators that leave zeros alone, and dropped when somebody
writes to it. Zero times a number stays zero: no number is infinite, as elsewhere.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch._ops import OpOverload

from memfit.predict.observe.arguments import Arguments, tensor_at
from memfit.predict.observe.known_values import covers_storage, storage_of

aten = torch.ops.aten
SCALES = {aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar}
"""Operators whose result is zero wherever the first argument is, and no larger than it if nothing is broadcast."""
LEAVES_ZERO = {
    aten._to_copy.default, aten.clone.default, aten.neg.default, aten.abs.default, aten.sqrt.default,
    aten.relu.default, aten.sign.default, *SCALES,
}  # fmt: skip
ABOVE = {aten.gt.Scalar: lambda bound: bound >= 0, aten.ge.Scalar: lambda bound: bound > 0}
BELOW = {aten.lt.Scalar: lambda bound: bound <= 0, aten.le.Scalar: lambda bound: bound < 0}
APART = {aten.ne.Scalar: lambda bound: bound == 0}
FALSE_OF_ZERO = {**ABOVE, **BELOW, **APART}
"""Comparisons with a number, and for which numbers zero does not pass."""


class MostNonzero:
    """The largest number of elements that differ from zero, by storage."""

    def __init__(self) -> None:
        self._counts: dict[int, tuple[weakref.ref[Any], int]] = {}

    def of(self, tensor: torch.Tensor) -> int | None:
        """That number; None where nothing is known."""
        storage = storage_of(tensor) if self._counts else None
        reference, count = self._counts.get(id(storage), (None, 0))
        return count if reference is not None and reference() is storage and covers_storage(tensor) else None

    def keep(self, tensor: object, count: int | None) -> None:
        """Remember it of a new tensor; None changes nothing."""
        storage = storage_of(tensor) if isinstance(tensor, torch.Tensor) and count is not None else None
        if storage is not None and count is not None:
            self._counts[id(storage)] = weakref.ref(storage), count

    def forget(self, tensor: torch.Tensor) -> None:
        """Somebody writes to it."""
        if self._counts:
            self._counts.pop(id(storage_of(tensor)), None)

    def follow(self, func: OpOverload, args: Arguments, result: object) -> None:
        """After an operator: its result has no more than its first argument, where zeros stay zeros."""
        if not self._counts or not isinstance(result, torch.Tensor):
            return
        passes = FALSE_OF_ZERO.get(func)
        if func not in LEAVES_ZERO and (passes is None or not passes(args[1])):
            return
        given = tensor_at(args, 0)
        if given.numel() == result.numel():
            self.keep(result, self.of(given))


NONZEROS = MostNonzero()
"""Of the job that is traced in this process."""


def most_nonzero(tensor: torch.Tensor) -> int:
    """The most elements that can differ from zero: all of them, unless less is known."""
    known = NONZEROS.of(tensor)
    return tensor.numel() if known is None else known
