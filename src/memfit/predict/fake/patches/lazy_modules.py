"""Uninitialised parameters on fake tensors (`nn.LazyLinear`): empty real tensors that become fake ones with a shape.

A parameter without a shape takes no memory wherever it is. It stays on the host and remembers where it was sent
(`model.to("cuda")` before the first batch), which is where it gets its shape (read in torch 2.13).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import parameter
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.utils._python_dispatch import _disable_current_modes

from memfit.predict.fake.patches.default_device import default_device_of
from memfit.predict.fake.values.values import Shadow

PLACE = "_memfit_place"
TYPES: Mapping[object, torch.dtype] = {
    torch.Tensor.half: torch.float16, torch.Tensor.float: torch.float32, torch.Tensor.double: torch.float64,
    torch.Tensor.bfloat16: torch.bfloat16, torch.Tensor.char: torch.int8, torch.Tensor.short: torch.int16,
    torch.Tensor.int: torch.int32, torch.Tensor.long: torch.int64,
}  # fmt: skip


@contextlib.contextmanager
def lazy_modules(mode: FakeTensorMode, shadow: Shadow) -> Iterator[None]:
    """Within, uninitialised parameters and buffers can be made, moved, copied and given a shape."""
    with contextlib.ExitStack() as stack:
        for kind in (UninitializedParameter, UninitializedBuffer):
            stack.enter_context(patch.object(kind, "__new__", _unmade(kind.__new__)))
            stack.enter_context(patch.object(kind, "materialize", _materialize))
            stack.enter_context(patch.object(kind, "__deepcopy__", _copied, create=True))
        unshaped: Any = vars(parameter)["UninitializedTensorMixin"]
        function = classmethod(_function(unshaped.__torch_function__.__func__))
        stack.enter_context(patch.object(unshaped, "__torch_function__", function))
        yield


def _unmade(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def make(cls: type, *args: object, **kwargs: object) -> torch.Tensor:
        places = [arg for arg in args[1:2] if arg is not None] or [kwargs.get("device")]
        place = _default() if places[0] is None else torch.device(cast("str", places[0]))
        with _disable_current_modes():
            made = original(cls, *args[:1], **{**_typed(args), **kwargs, "device": "cpu"})
        setattr(made, PLACE, place)
        return made

    return make


def _default() -> torch.device:
    return default_device_of(torch.empty) or torch.device("cpu")


def _typed(args: Sequence[object]) -> dict[str, object]:
    return {"dtype": args[2]} if len(args) > 2 else {}


def _materialize(
    self: torch.Tensor,
    shape: Sequence[int],
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> None:
    made = torch.empty(shape, device=device or getattr(self, PLACE), dtype=dtype or self.dtype)
    is_parameter = isinstance(self, UninitializedParameter)
    made = torch.nn.Parameter(made, self.requires_grad) if is_parameter else made
    torch.utils.swap_tensors(self, made)


def _copied(self: torch.Tensor, memo: dict[int, object]) -> object:
    if id(self) not in memo:
        memo[id(self)] = _like(self, None, None)
    return memo[id(self)]


def _like(self: torch.Tensor, place: torch.device | None, dtype: torch.dtype | None) -> torch.Tensor:
    """Another one without a shape, elsewhere or of another type."""
    kind = cast("Callable[..., torch.Tensor]", type(self))
    return kind(self.requires_grad, device=place or getattr(self, PLACE), dtype=dtype or self.dtype)


def _function(original: Callable[..., object]) -> Callable[..., object]:
    def torch_function(
        cls: type,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Moves are remembered, and a question for the place is answered from that."""
        self, rest, named = cast("torch.Tensor", args[0]), args[1:], dict(kwargs or {})
        if func is torch.Tensor.to:
            parse: Any = vars(torch._C)["_nn"]
            place, dtype, *_ = parse._parse_to(*rest, **named)
            return _like(self, place, dtype)
        if func in TYPES:
            return _like(self, None, TYPES[func])
        if func is torch.Tensor.cpu:
            return _like(self, torch.device("cpu"), None)
        if func is torch.Tensor.cuda:
            return _like(self, _gpu(rest[0] if rest else named.get("device")), None)
        if func == torch.Tensor.device.__get__:  # pyright: ignore[reportAttributeAccessIssue]
            return getattr(self, PLACE)
        if func == torch.Tensor.is_cuda.__get__:  # pyright: ignore[reportAttributeAccessIssue]
            return getattr(self, PLACE).type == "cuda"
        if func == torch.Tensor.data.__set__ and hasattr(rest[0], PLACE):  # pyright: ignore[reportAttributeAccessIssue]
            setattr(self, PLACE, getattr(rest[0], PLACE))
        return original(cls, func, types, args, kwargs)

    return torch_function


def _gpu(device: object) -> torch.device:
    if device is None or isinstance(device, int):
        return torch.device("cuda", device or 0)
    return torch.device(cast("str", device))
