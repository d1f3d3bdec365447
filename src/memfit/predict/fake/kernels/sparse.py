"""Sparse tensors (COO) on fake tensors: the operators for which torch 2.13 has no fake kernel.

A sparse tensor has no storage of its own: it holds indices and values, which are followed in its place. How many there
are depends on data: where the values are known they are counted, a diagonal matrix has no more than its diagonal, else
the largest possible number is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import cast

import torch
from torch._ops import OpOverload
from torch.utils import _pytree
from torch.utils._python_dispatch import _disable_current_modes

from memfit.predict.child.messages import UNSEEN
from memfit.predict.fake.values.most_nonzero import most_nonzero
from memfit.predict.observe.arguments import Arguments, Keywords, integer_at, several, tensor_at
from memfit.predict.observe.known_values import keep_shadow, shadow_of

aten = torch.ops.aten
MADE_BY = {aten._sparse_coo_tensor_with_dims_and_tensors.default, aten._to_sparse.default, aten._to_sparse.sparse_dim}
"""After one of these there are sparse tensors."""
TO_SPARSE = (aten._to_sparse.default, aten._to_sparse.sparse_dim)
PRODUCTS = (aten.mm.default, aten.addmm.default, aten._sparse_addmm.default)
"""Products whose first matrix may be sparse; what is added stands before it in the last two."""
ANSWERED = {*TO_SPARSE, *PRODUCTS}
AS_THEY_ARE = {
    aten._indices.default, aten._values.default, aten.indices.default, aten.values.default, aten.detach.default,
    aten.alias.default, aten._nnz.default, aten.is_coalesced.default, aten.sparse_dim.default, aten.dense_dim.default,
    aten._coalesced_.default, aten._sparse_coo_tensor_with_dims_and_tensors.default,
}  # fmt: skip
"""Operators for which fake tensors do."""
MOST_MADE_UP = 1 << 25
"""Elements up to which an operator is run on made-up entries."""
INSIDE = "what operators on sparse tensors take inside, to sort and to join entries, is not in the figures"
BAG_BACKWARD = aten._embedding_bag_backward.default
BAGS = "what the backward of an EmbeddingBag with sparse gradients takes inside, to number bags, is not in the figures"
Most = Callable[[int, str], int]


def answers(
    most: Most,
    keep: Callable[[object, int], None],
    note: Callable[[str, str], None],
    note_inside: Callable[[OpOverload, Arguments], None],
) -> dict[OpOverload, Callable[..., object]]:
    """What to call instead of each operator; `most(num_possible, name)` is asked for an unknown size.

    `keep` gets the number of elements of a result that can differ from zero,
    `note_inside` every call on sparse tensors that takes something inside.
    """

    def noted(answer: Callable[..., object]) -> Callable[..., object]:
        def call(func: OpOverload, args: Arguments, kwargs: Keywords, real: object) -> object:
            result = answer(func, args, kwargs, real)
            if any(each.layout is torch.sparse_coo for each in (result, *args) if isinstance(each, torch.Tensor)):
                note_inside(func, args)
            return result

        return call

    def to_sparse(func: OpOverload, args: Arguments, kwargs: Keywords, real: object) -> object:
        given, layout = tensor_at(args, 0), kwargs.get("layout")
        if given.layout is not torch.strided or layout not in (None, torch.sparse_coo):
            return func(*args, **kwargs)
        num_sparse = integer_at(args, 1) if len(args) > 1 else given.dim()
        return _made_sparse(given, num_sparse, _num_nonzero(given, num_sparse, most))

    def diagonal(func: OpOverload, args: Arguments, kwargs: Keywords, real: object) -> object:
        result = func(*args, **kwargs)
        keep(result, tensor_at(args, 0).numel())
        return result

    def bag_backward(func: OpOverload, args: Arguments, kwargs: Keywords, real: object) -> object:
        if not args[9]:
            return func(*args, **kwargs)
        note(UNSEEN, BAGS)
        return _rows_of_bags(tensor_at(args, 0), tensor_at(args, 1), integer_at(args, 6))

    return {
        BAG_BACKWARD: bag_backward,
        aten.diag_embed.default: diagonal,
        **dict.fromkeys(TO_SPARSE, noted(to_sparse)),
        **dict.fromkeys(PRODUCTS, noted(_product)),
    }


def _rows_of_bags(gradient: torch.Tensor, indices: torch.Tensor, num_rows: int) -> torch.Tensor:
    """A row for every index of every bag; torch's fake kernel takes the bags to be empty (torch 2.13)."""
    values = gradient.new_empty((indices.numel(), gradient.shape[1]))
    places, shape = indices.reshape(1, -1), (num_rows, gradient.shape[1])
    return torch.sparse_coo_tensor(places, values, shape, check_invariants=False, is_coalesced=False)


def _num_nonzero(tensor: torch.Tensor, num_sparse: int, most: Most) -> int:
    known = shadow_of(tensor)
    if known is None:
        return most(min(math.prod(tensor.shape[:num_sparse]), most_nonzero(tensor)), "to_sparse")
    with _disable_current_modes():
        return known.to_sparse(num_sparse)._nnz()


def _made_sparse(like: torch.Tensor, num_sparse: int, count: int) -> torch.Tensor:
    indices = like.new_empty((num_sparse, count), dtype=torch.int64)
    values = like.new_empty((count, *like.shape[num_sparse:]))
    return torch.sparse_coo_tensor(indices, values, like.shape, check_invariants=False, is_coalesced=True)


def has_sparse(args: object) -> bool:
    """Whether a sparse tensor is among the arguments."""
    leaves = _pytree.tree_leaves(args)
    return any(leaf.layout is torch.sparse_coo for leaf in leaves if isinstance(leaf, torch.Tensor))


def is_made_anew(func: OpOverload, result: object) -> bool:
    """Whether this is a sparse tensor with indices and values of its own, where a plain one would be a view."""
    return isinstance(result, torch.Tensor) and result.layout is torch.sparse_coo and func not in AS_THEY_ARE


def is_stolen(func: OpOverload) -> bool:
    """Whether a gradient is copied only because a dispatch mode holds on to it: the engine would keep it as it is."""
    node = torch._C._current_autograd_node() if func is aten.clone.default else None
    return node is not None and node.name() == "torch::autograd::AccumulateGrad"


def answer_by_example(func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
    """Any other operator on sparse tensors: run on entries that are known, or made up, to see how many there are."""
    if is_stolen(func):
        return _of_the_same_parts(tensor_at(args, 0))
    given = [leaf for leaf in _pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    parts = [part for tensor in given for part in parts_of(tensor)]
    if func is aten.detach.default:
        return _of_the_same_parts(given[0])
    if func in AS_THEY_ARE or sum(part.numel() for part in parts) > MOST_MADE_UP:
        return LARGE[func](tensor_at(args, 0), kwargs) if func in LARGE else func(*args, **kwargs)
    examples = [_example(tensor) for tensor in given]
    device = cast("torch.device | None", kwargs.get("device")) or given[0].device
    with _disable_current_modes(), torch.no_grad():
        by_identity = {id(tensor): example for tensor, example in zip(given, examples, strict=True)}
        swapped = _pytree.tree_map(lambda leaf: by_identity.get(id(leaf), leaf), (args, {**kwargs, "device": None}))
        plain = {name: value for name, value in swapped[1].items() if name in kwargs and name != "device"}
        result = func(*swapped[0], **plain)
    is_known = all(shadow_of(part) is not None for part in parts)
    return _pytree.tree_map(lambda leaf: _fake_of(leaf, device, is_known), result)


def _of_the_same_parts(tensor: torch.Tensor) -> torch.Tensor:
    """The same entries once more: a CPU-only build has no `detach` of a sparse tensor on a GPU."""
    indices, values = parts_of(tensor)
    is_coalesced = tensor.is_coalesced()
    return torch.sparse_coo_tensor(indices, values, tensor.shape, check_invariants=False, is_coalesced=is_coalesced)


def _none_joined(tensor: torch.Tensor, kwargs: object) -> torch.Tensor:
    """A copy with as many entries: where there are many, all are taken to stand at places of their own."""
    indices, values = (part.new_empty(part.shape) for part in parts_of(tensor))
    return torch.sparse_coo_tensor(indices, values, tensor.shape, check_invariants=False, is_coalesced=True)


def _moved(tensor: torch.Tensor, kwargs: Mapping[str, torch.device | torch.dtype | None]) -> torch.Tensor:
    """The same entries on another device or in another type."""
    device = kwargs.get("device") or tensor.device
    indices, values = (part.to(device, copy=True) for part in parts_of(tensor))
    values = values.to(kwargs.get("dtype") or values.dtype)
    is_coalesced = tensor.is_coalesced()
    return torch.sparse_coo_tensor(indices, values, tensor.shape, check_invariants=False, is_coalesced=is_coalesced)


LARGE: dict[OpOverload, Callable[..., torch.Tensor]] = {
    aten._coalesce.default: _none_joined,
    aten._to_copy.default: _moved,
}
"""What is done with more entries than are made up."""


def _example(tensor: torch.Tensor) -> torch.Tensor:
    """A real tensor of the same geometry, with the values that are known."""
    if tensor.layout is not torch.sparse_coo:
        known = shadow_of(tensor)
        with _disable_current_modes():
            return torch.ones(tuple(tensor.shape), dtype=tensor.dtype) if known is None else known
    indices, values, is_coalesced = tensor._indices(), tensor._values(), tensor.is_coalesced()
    shape, num_sparse = tuple(tensor.shape), indices.shape[0]
    known = shadow_of(indices)
    values = _example(values)
    with _disable_current_modes():
        if known is None:
            places = torch.arange(values.shape[0]) % max(1, math.prod(shape[:num_sparse]))
            known = torch.stack(torch.unravel_index(places, shape[:num_sparse]))
        made = torch.sparse_coo_tensor(known, values, shape, check_invariants=False)
        return made._coalesced_(is_coalesced)


def _fake_of(real: object, device: torch.device | str, is_known: bool) -> object:
    """A fake tensor like this real one, with its values where they follow from known ones."""
    if not isinstance(real, torch.Tensor):
        return real
    if real.layout is not torch.sparse_coo:
        made = torch.empty_strided(real.size(), real.stride(), dtype=real.dtype, device=device)
        keep_shadow(made, real if is_known else None)
        return made
    with _disable_current_modes():
        parts, is_coalesced = (real._indices(), real._values()), real.is_coalesced()
    indices, values = several([_fake_of(part, device, is_known or number == 0) for number, part in enumerate(parts)])
    return torch.sparse_coo_tensor(
        indices, values, tuple(real.shape), check_invariants=False, is_coalesced=is_coalesced
    )


def _product(func: OpOverload, args: Arguments, kwargs: Keywords, real: object) -> object:
    """A sparse matrix times a dense one is dense."""
    place = 0 if func is aten.mm.default else 1
    first, second = tensor_at(args, place), tensor_at(args, place + 1)
    if first.layout is not torch.sparse_coo or second.layout is not torch.strided:
        return answer_by_example(func, args, kwargs) if has_sparse(args) else func(*args, **kwargs)
    return second.new_empty((first.shape[0], second.shape[1]))


def parts_of(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors whose storages hold this one."""
    if tensor.layout is torch.sparse_coo:
        yield from (tensor._indices(), tensor._values())
    else:
        yield tensor
