"""Classes of tensors that a library makes of plain ones: pictures of torchvision's transforms, MONAI's and fastai's.

`tensor.as_subclass(Image)` gives the same memory another Python class; torch refuses a fake tensor, whose own class is
what makes it fake. Here the result is of a class that is both: an `Image` by everything a library asks (its methods,
its attributes, its `__torch_function__`), and a fake tensor for torch; operators get it as a fake tensor only. Read in
torch 2.13. Not followed: classes whose tensors have no memory of their own (`_make_wrapper_subclass`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from functools import cache
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from memfit.predict.fake.values.copies import is_own


class UsersAttributes(MutableMapping[str, object]):
    """The `__dict__` of such a tensor as its library sees it: without what makes it a fake tensor."""

    def __init__(self, attributes: dict[str, object]) -> None:
        self._attributes = attributes

    def __getitem__(self, name: str) -> object:
        if is_own(name):
            raise KeyError(name)
        return self._attributes[name]

    def __setitem__(self, name: str, value: object) -> None:
        if not is_own(name):
            self._attributes[name] = value

    def __delitem__(self, name: str) -> None:
        if is_own(name):
            raise KeyError(name)
        del self._attributes[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name in list(self._attributes) if not is_own(name))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def copy(self) -> dict[str, object]:
        """As that of a dict."""
        return dict(self)


def _seen_attributes(tensor: torch.Tensor) -> UsersAttributes:
    return UsersAttributes(torch.Tensor.__dict__["__dict__"].__get__(tensor))


def _set_attributes(tensor: torch.Tensor, given: Mapping[str, object]) -> None:
    seen = _seen_attributes(tensor)
    kept = dict(given)
    seen.clear()
    seen.update(kept)


@cache
def _fake_class_of(kind: type[torch.Tensor]) -> type[torch.Tensor]:
    """The class of fake tensors that are also of this one, asked before each function of torch as this one is.

    torch lets a class that has a `__torch_dispatch__` of its own, as a fake tensor's, be asked no longer; what stands
    in the class afterwards is heeded.
    """
    if issubclass(kind, FakeTensor):
        return kind
    own = {"__module__": kind.__module__, "__dict__": property(_seen_attributes, _set_attributes)}
    both: Any = (kind, _asked())
    made: Any = type(kind.__name__, both, own)
    if getattr(kind.__torch_function__, "__func__", None) is _default().__func__:
        made.__torch_function__ = _default()
    return made


@cache
def _asked() -> type[FakeTensor]:
    """A class of fake tensors in which `super().__torch_function__` finds that of any tensor."""
    made: Any = type("AskedFake", (FakeTensor,), {})
    made.__torch_function__ = _default()
    return made


def _default() -> classmethod[torch.Tensor, ..., object]:
    return torch.Tensor.__dict__["__torch_function__"]


def _viewed_as(tensor: torch.Tensor, kind: type[torch.Tensor]) -> torch.Tensor:
    """The memory of a fake tensor, and what autograd knows of it, under another class."""
    with torch._C.DisableTorchFunctionSubclass():
        made = torch.ops.aten.alias.default(tensor)
    made.__class__ = FakeTensor if kind is torch.Tensor else _fake_class_of(kind)
    return made


@contextlib.contextmanager
def classes_of_fakes(mode: FakeTensorMode, shadow: object) -> Iterator[None]:
    """Within, fake tensors can be given the classes of libraries."""
    as_subclass = torch.Tensor.as_subclass
    make_subclass: Callable[..., torch.Tensor] = torch.Tensor._make_subclass

    def given(self: torch.Tensor, cls: type[torch.Tensor]) -> torch.Tensor:
        return _viewed_as(self, cls) if isinstance(self, FakeTensor) else as_subclass(self, cls)

    def made(
        cls: type[torch.Tensor], data: torch.Tensor, require_grad: bool = False, *args: object, **kwargs: object
    ) -> torch.Tensor:
        if not isinstance(data, FakeTensor) or issubclass(cls, (FakeTensor, torch.nn.Parameter)):
            return make_subclass(cls, data, require_grad, *args, **kwargs)
        return _viewed_as(data.detach(), cls).requires_grad_(require_grad)

    with (
        patch.object(torch.Tensor, "as_subclass", given),
        patch.object(torch.Tensor, "_make_subclass", staticmethod(made)),
    ):
        yield
