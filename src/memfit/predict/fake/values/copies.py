"""Deep copies and pickles of fake tensors: same geometry, same sharing of storages, same known values.

torch copies a fake tensor with all its attributes, its mode among them; a mode must not be copied. Here a copy is a new
fake tensor of the running mode. A pickle holds a description; it is read back as fake tensors of the running mode.
"""

from __future__ import annotations

import contextlib
import copy
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from memfit.predict.observe.known_values import covers_storage, keep_shadow, shadow_of, storage_of, why_assumed

_FROM_BUFFER = torch.frombuffer  # a script finds another one there
OWN = {"fake_mode", "constant", "pytype", "dispatch_keys", "real_tensor", "_fake_device", "_is_param"}


@contextlib.contextmanager
def copied_as_fakes(mode: FakeTensorMode, shadow: object) -> Iterator[None]:
    """Within, fake tensors can be deep-copied and pickled."""
    with (
        patch.object(FakeTensor, "__deepcopy__", deep_copy, create=True),
        patch.object(
            FakeTensorMode, "__deepcopy__", lambda self, memo: self, create=True
        ),  # of all that is on a tensor
        patch.object(FakeTensor, "__reduce_ex__", lambda self, _: reduced(self), create=True),
    ):
        yield


def deep_copy(tensor: torch.Tensor, memo: dict[int, object]) -> object:
    """As torch copies: a parameter is cloned, without its gradient and what was put on it; of any other tensor the
    whole storage is copied, and the rest with it."""
    if id(tensor) in memo:
        return memo[id(tensor)]
    if not tensor.is_leaf:
        raise RuntimeError("Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol")
    with torch.no_grad():
        if is_parameter(tensor) or storage_of(tensor) is None:
            made = tensor.detach().clone(memory_format=torch.preserve_format)
        else:
            whole = _whole(tensor, memo)
            whole = whole if whole.dtype is tensor.dtype else whole.view(tensor.dtype)
            made = whole.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset()).detach()
    made = as_it_was(made, is_parameter(tensor), tensor.requires_grad)
    memo[id(tensor)] = made
    if is_parameter(tensor):
        return made
    if tensor.grad is not None:
        made.grad = copy.deepcopy(tensor.grad, memo)
    for name, value in own_attributes(tensor).items():
        setattr(made, name, copy.deepcopy(value, memo))
    return made


def _whole(tensor: torch.Tensor, memo: dict[int, object]) -> torch.Tensor:
    """A copy of all that a tensor's storage holds, made once."""
    storage: Any = storage_of(tensor)
    key = id(storage)
    if key not in memo:
        count = storage.nbytes() // tensor.element_size()
        memo[key] = tensor.detach().as_strided((count,), (1,), 0).clone()
        kept = cast("list[object]", memo.setdefault(id(memo), []))
        kept.append(storage)  # its identity is in use as long as the memo lives
    return cast("torch.Tensor", memo[key])


def is_parameter(tensor: object) -> bool:
    """Whether a fake tensor stands for a parameter."""
    return isinstance(tensor, torch.nn.Parameter)


def as_it_was(made: torch.Tensor, parameter: bool, requires_grad: bool) -> torch.Tensor:
    """A plain tensor or a parameter."""
    return torch.nn.Parameter(made, requires_grad) if parameter else made.requires_grad_(requires_grad)


def own_attributes(tensor: object) -> dict[str, object]:
    """What the user has put on a tensor."""
    attributes = getattr(tensor, "__dict__", {})
    return {name: value for name, value in attributes.items() if not is_own(name)}


def is_own(name: str) -> bool:
    """Whether an attribute is one of those that make a tensor a fake one."""
    return name in OWN or "_memo" in name or name.startswith("_sym_")


# ---- pickles ---------------------------------------------------------------------------------------------------


State = tuple[int, str, bytes | None, str]
Reduced = tuple[Callable[..., torch.Tensor], tuple[object, ...]]
"""What makes a tensor out of a pickle, and what it is called with."""


class Stored:
    """A storage in a pickle: how large, where, and what was known of it. Tensors that share it share it again."""

    def __init__(self, num_bytes: int, device: str, values: bytes | None, assumed: str) -> None:
        self.num_bytes, self.device, self.values, self.assumed = num_bytes, device, values, assumed

    def __getstate__(self) -> State:
        return self.num_bytes, self.device, self.values, self.assumed

    def __setstate__(self, state: State) -> None:
        self.num_bytes, self.device, self.values, self.assumed = state
        self._tensors: dict[torch.dtype, torch.Tensor] = {}

    def tensor(self, dtype: torch.dtype, size: Sequence[int], stride: Sequence[int], offset: int) -> torch.Tensor:
        """A tensor of this storage."""
        if self._tensors:
            first = next(iter(self._tensors.values()))
            first = first if first.dtype is dtype else first.reshape(-1).view(dtype)
            return first.as_strided(size, stride, offset).detach()
        made = torch.empty_strided(size, stride, dtype=dtype, device=self.device)
        if offset or not covers_storage(made) or made.nbytes != self.num_bytes:
            made = torch.empty(self.num_bytes // dtype.itemsize, dtype=dtype, device=self.device)
        self._tensors[dtype] = made
        self._fill(made)
        return made if tuple(made.shape) == tuple(size) else made.as_strided(size, stride, offset).detach()

    def _fill(self, made: torch.Tensor) -> None:
        if self.values is None:
            return
        with _disable_current_modes():
            raw = _FROM_BUFFER(bytearray(self.values), dtype=torch.uint8) if self.values else torch.empty(0)
            flat = raw.view(made.dtype).as_strided(made.size(), made.stride(), 0)
        keep_shadow(made, flat, self.assumed)


_places: list[object] = []
"""Where tensors that are being read go, the innermost last; None leaves them where they were."""
_stored: dict[int, tuple[Any, Stored]] = {}


def reduced(tensor: torch.Tensor) -> Reduced:
    """How a tensor is pickled."""
    state = own_attributes(tensor)
    shape = tensor.dtype, tuple(tensor.size()), tuple(tensor.stride()), tensor.storage_offset()
    return rebuild, (stored_of(tensor), *shape, is_parameter(tensor), tensor.requires_grad and tensor.is_leaf, state)


def stored_of(tensor: torch.Tensor) -> Stored:
    """The storage of a tensor; the same object for all its tensors, so that a pickle holds it once."""
    storage: Any = storage_of(tensor)
    kept = _stored.get(id(storage))
    if kept is not None and kept[0]() is storage:
        return kept[1]
    count = storage.nbytes() // tensor.element_size()
    whole = tensor.detach().as_strided((count,), (1,), 0)
    values = shadow_of(whole)
    with _disable_current_modes():
        raw = None if values is None else values.contiguous().view(torch.uint8).numpy().tobytes()
    made = Stored(storage.nbytes(), str(tensor.device), raw, why_assumed(tensor))
    _stored[id(storage)] = weakref.ref(storage), made
    return made


def forget_stored() -> None:
    """Values may change until the next pickle is made."""
    _stored.clear()


@contextlib.contextmanager
def read_to(place: object) -> Iterator[None]:
    """Within, tensors that are read go to another device."""
    _places.append(place)
    try:
        yield
    finally:
        _places.pop()


def rebuild(
    stored: Stored,
    dtype: torch.dtype,
    size: Sequence[int],
    stride: Sequence[int],
    offset: int,
    parameter: bool,
    gradient: bool,
    state: dict[str, object],
) -> torch.Tensor:
    """A tensor out of a pickle."""
    if _places and _places[-1] is not None:
        stored.device = device_by(_places[-1], stored.device)
    with torch.no_grad():
        made = stored.tensor(dtype, size, stride, offset)
    made = as_it_was(made, parameter, gradient)
    for name, value in state.items():
        setattr(made, name, value)
    return made


def device_by(map_location: object, device: str) -> str:
    """Where `torch.load(map_location=...)` puts what was saved on a device."""
    if isinstance(map_location, dict):
        return str(map_location.get(device, device))
    return "cpu" if callable(map_location) else str(map_location)
