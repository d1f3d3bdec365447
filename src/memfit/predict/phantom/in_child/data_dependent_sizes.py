"""Operators whose result's size depends on values (nonzero, unique, ...): the number of elements they find.

Such an operator computes a count on the GPU, copies it to the host and allocates by it. The count lies in scratch
memory whose values are unknown, but it follows from the operator's inputs. Each function here yields the numbers in
the order in which torch's CUDA kernels copy them (read in torch 2.14).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

Numbers = Iterator[int]
MASKS = (torch.bool, torch.uint8)


def numbers_for(name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> Numbers:
    """The numbers that a call copies to the host; `args` are known tensors on the CPU."""
    counted = COUNTS.get(name)
    if counted is not None:
        yield from counted(*args, **kwargs)


def _number_of_true(mask: torch.Tensor, *args: object, **kwargs: object) -> Numbers:
    yield int(torch.count_nonzero(mask))


def _where(condition: torch.Tensor, *rest: object, **kwargs: object) -> Numbers:
    if not rest and not kwargs:
        yield from _number_of_true(condition)


def _masked_select(values: torch.Tensor, mask: torch.Tensor, **kwargs: object) -> Numbers:
    yield int(torch.count_nonzero(torch.broadcast_tensors(values, mask)[1]))


def _index(tensor: object, index: object, *args: object, **kwargs: object) -> Numbers:
    for part in index if isinstance(index, (tuple, list)) else (index,):
        if isinstance(part, torch.Tensor) and part.dtype in MASKS:
            yield from _number_of_true(part)


def _unique(values: torch.Tensor, *args: object, **kwargs: object) -> Numbers:
    dim = kwargs.get("dim")
    if values.dtype is torch.bool and dim is None:
        yield from _number_of_true(values)
        return
    found = torch.unique(values) if dim is None else torch.unique(values, dim=dim)
    yield found.shape[dim or 0]


def _unique_consecutive(values: object, *args: object, **kwargs: object) -> Numbers:
    found = torch.unique_consecutive(values, dim=kwargs.get("dim"))
    yield found.shape[kwargs.get("dim") or 0]


def _one_hot(values: torch.Tensor, num_classes: int = -1) -> Numbers:
    if num_classes == -1:
        yield int(values.max())


def _repeat_interleave(values: object, repeats: object = None, *args: object, **kwargs: object) -> Numbers:
    counts = values if repeats is None else repeats
    if isinstance(counts, torch.Tensor) and kwargs.get("output_size") is None:
        yield int(counts.sum())
        yield int(bool((counts >= 0).all()))


def _bincount(values: torch.Tensor, *args: object, **kwargs: object) -> Numbers:
    yield int(values.min())
    yield int(values.max())


COUNTS: dict[str, Callable[..., Numbers]] = {
    "nonzero": _number_of_true, "argwhere": _number_of_true, "where": _where, "masked_select": _masked_select,
    "__getitem__": _index, "__setitem__": _index, "index": _index, "index_put_": _index, "index_put": _index,
    "unique": _unique, "_unique2": _unique, "_return_output": _unique, "_return_inverse": _unique,
    "unique_consecutive": _unique_consecutive, "one_hot": _one_hot, "repeat_interleave": _repeat_interleave,
    "bincount": _bincount,
}  # fmt: skip
