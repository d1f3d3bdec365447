"""Tensors made of lists that hold fake tensors: `torch.tensor([loss, 0.5])` reads a number out of each."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree
from torch.utils._python_dispatch import _disable_current_modes

from memfit.predict.observe.known_values import keep_shadow, shadow_of


def of_numbers(make: Callable[..., torch.Tensor], data: object, *args: object, **kwargs: object) -> torch.Tensor:
    """A tensor of a list in which fake tensors are numbers; unknown numbers make a tensor of unknown values."""
    leaves, nest = _pytree.tree_flatten(data if isinstance(data, (list, tuple)) else ())
    fakes = [leaf for leaf in leaves if isinstance(leaf, FakeTensor)]
    if not fakes:
        return make(data, *args, **kwargs)
    if any(fake.numel() != 1 for fake in fakes):
        raise ValueError("only one element tensors can be converted to Python scalars")
    numbers = [_number(leaf) if isinstance(leaf, FakeTensor) else leaf for leaf in leaves]
    if kwargs.get("dtype") is None:
        kwargs["dtype"] = _type_of(leaves)
    made = make(_pytree.tree_unflatten(numbers, nest), *args, **kwargs)
    if any(shadow_of(fake) is None for fake in fakes):
        keep_shadow(made, None)
    return made


def _number(fake: torch.Tensor) -> complex:
    known = shadow_of(fake)
    if known is None:
        return 0
    with _disable_current_modes():
        return known.detach().item()


def _type_of(leaves: list[object]) -> torch.dtype:
    """The type that torch takes for numbers beside tensors."""
    kinds = [leaf.dtype for leaf in leaves if isinstance(leaf, torch.Tensor)]
    kinds += [torch.get_default_dtype() for leaf in leaves if isinstance(leaf, float)]
    found = kinds[0]
    for kind in kinds[1:]:
        found = torch.promote_types(found, kind)
    return found
