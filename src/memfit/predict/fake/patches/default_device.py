"""`torch.set_default_device` and `with torch.device(...)` on fake tensors.

torch puts the device into calls of functions that it knows by identity, whoever makes them (`DeviceContext`, read in
torch 2.13). Here only calls of the job get it: real tensors that a prediction makes for itself stay on the host.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext, _device_constructors
from torch.utils._python_dispatch import _get_current_dispatch_mode

from memfit.predict.fake.values.values import Shadow


@contextlib.contextmanager
def default_device(mode: FakeTensorMode, shadow: Shadow) -> Iterator[None]:
    """Within, the default device is that of fake tensors alone."""
    _device_constructors()  # kept from the first call on: before any of them is replaced
    original = DeviceContext.__torch_function__

    def placed(
        self: DeviceContext,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        if _get_current_dispatch_mode() is None:
            return func(*args, **(kwargs or {}))
        return original(self, func, types, args, kwargs)

    with patch.object(DeviceContext, "__torch_function__", placed):
        yield


def default_device_of(function: object) -> torch.device | None:
    """Where a function without an argument `device` puts its result; None where it takes no default."""
    if function not in _device_constructors():
        return None
    found = [each.device for each in _get_current_function_mode_stack() if isinstance(each, DeviceContext)]
    return found[-1] if found else None
