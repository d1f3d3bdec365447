"""Patches of torch's fake tensor mode, so that whole training steps run on fake tensors.

Everything here is undone on leaving, and runs only in the child process of a prediction. Each patch names the
defect it works around.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import torch
import torch.optim.optimizer as optimizers
import torch.utils._foreach_utils as foreach
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from memfit.predict.fake.kernels.linear import register_linear
from memfit.predict.fake.patches.default_device import default_device
from memfit.predict.fake.patches.lazy_modules import lazy_modules
from memfit.predict.fake.patches.recipes import usual_recipes
from memfit.predict.fake.patches.tensor_subclasses import classes_of_fakes
from memfit.predict.fake.values.copies import copied_as_fakes
from memfit.predict.fake.values.packed_sequences import register_packed
from memfit.predict.fake.values.values import Shadow
from memfit.predict.levels.guesses import INTEGERS
from memfit.predict.observe.known_values import shadow_of


@contextlib.contextmanager
def patched(mode: FakeTensorMode, shadow: Shadow) -> Iterator[None]:
    """All patches at once."""
    register_packed()
    register_linear()
    with contextlib.ExitStack() as stack:
        for patching in (
            _fake_mode_is_lean,
            _swap_forgets_memo,
            _foreach_takes_fakes,
            _scaler_always_steps,
            _values_out,
            _initialisers,
            copied_as_fakes,
            default_device,
            lazy_modules,
            _addresses,
            usual_recipes,
            classes_of_fakes,
        ):
            stack.enter_context(patching(mode, shadow))
        yield


@contextlib.contextmanager
def _fake_mode_is_lean(mode: FakeTensorMode, shadow: Shadow) -> Iterator[None]:
    """Each operator asks the compiler to stand aside; nothing is compiled here."""
    original = FakeTensorMode.__torch_dispatch__
    FakeTensorMode.__torch_dispatch__ = getattr(original, "__wrapped__", original)
    try:
        yield
    finally:
        FakeTensorMode.__torch_dispatch__ = original


@contextlib.contextmanager
def _swap_forgets_memo(mode: FakeTensorMode, shadow: Shadow) -> Iterator[None]:
    """`Module.to(...)` swaps tensors and refuses those with weak references: the mode's own memo holds some.

    So does its list of constants (`nn.Parameter(torch.tensor(0.5))`), whose values are kept elsewhere here.

    It also refuses a parameter that a graph holds (`weight_norm` makes a weight when it is built). A run of real
    tensors changes its data in place and goes on; here the graph keeps the old tensor, and the module has the new one.
    Weak references of a script (Pyro has one to each constrained parameter) stay with the parameter, whose identity a
    swap keeps.
    """
    original = torch.utils.swap_tensors

    def swap(left: object, right: object) -> None:
        mode.fake_tensor_converter.meta_converter.tensor_memo.clear()
        _forget_constants(mode, (left, right))
        try:
            original(left, right)
        except RuntimeError as error:
            if not any(word in str(error) for word in ("use_count", "weakref")):
                raise  # torch 2.13: both are asked before anything is changed
            with (
                patch.object(torch.Tensor, "_use_count", lambda tensor: 1),
                patch.object(weakref, "getweakrefs", lambda tensor: []),
            ):
                original(left, right)

    with patch.object(torch.utils, "swap_tensors", swap):
        yield


def _forget_constants(mode: FakeTensorMode, tensors: tuple[object, ...]) -> None:
    """The mode no longer knows that these tensors are constants (torch 2.13)."""
    for holders in mode.fake_tensor_converter.constant_storage_mapping.values():
        holders[:] = [reference for reference in holders if not any(reference() is tensor for tensor in tensors)]
    for tensor in tensors:
        if isinstance(tensor, FakeTensor):
            tensor.constant = None


@contextlib.contextmanager
def _foreach_takes_fakes(mode: FakeTensorMode, shadow: Shadow) -> Iterator[None]:
    """Optimizers and the clipping of gradients choose foreach by the exact type of their tensors."""
    lists: list[list[Any]] = [optimizers._foreach_supported_types, foreach._foreach_supported_types]
    for kinds in lists:
        kinds.append(FakeTensor)
    try:
        yield
    finally:
        for kinds in lists:
            kinds.remove(FakeTensor)


@contextlib.contextmanager
def _scaler_always_steps(mode: FakeTensorMode, shadow: Shadow) -> Iterator[None]:
    """A gradient scaler asks whether a value was infinite and would skip the step."""

    def step(
        self: torch.amp.GradScaler, optimizer: torch.optim.Optimizer, state: object, *args: object, **kwargs: object
    ) -> object:
        return cast("Callable[..., object]", optimizer.step)(*args, **kwargs)

    with patch.object(torch.amp.GradScaler, "_maybe_opt_step", step):
        yield


@contextlib.contextmanager
def _values_out(mode: FakeTensorMode, shadow: Shadow) -> Iterator[None]:
    """`.tolist()`, `.numpy()`, what `.storage()` holds: the truth where it is known, else ones and zeros, noted."""

    def tolist(self: FakeTensor) -> object:
        real = shadow_of(self)
        if real is not None:
            shadow.note_assumed(self)
            with _disable_current_modes():
                return real.tolist()
        is_float = self.dtype.is_floating_point or self.dtype.is_complex
        given = shadow.guess("a list of values" if is_float else INTEGERS, 1, "ones")
        return _nested(_of_type(given, self.dtype), list(self.shape))

    def numpy(self: FakeTensor, *, force: bool = False) -> np.ndarray:
        real = shadow_of(self)
        if real is not None:
            shadow.note_assumed(self)
            with _disable_current_modes():
                array = real.resolve_conj().resolve_neg().numpy()  # the same memory, as torch gives it
        else:
            given = shadow.guess("a numpy array", 0, "zeros")
            name = str(self.dtype).removeprefix("torch.")
            array = np.zeros(tuple(self.shape), dtype="float32" if name == "bfloat16" else name)
            if given:
                array[...] = given
        return np.asarray(ArrayOfTensor(array, self))

    def storage(self: FakeTensor) -> torch.TypedStorage:
        typed = cast("Callable[[], torch.TypedStorage]", self._typed_storage)()
        typed.__dict__[FLAT] = self.detach().as_strided((typed._size(),), (1,), 0)
        return typed

    original_item = torch.TypedStorage._getitem

    def item(typed: torch.TypedStorage, index: int) -> object:
        flat = typed.__dict__.get(FLAT)
        return original_item(typed, index) if flat is None or not isinstance(index, int) else flat[index].item()

    def items(typed: torch.TypedStorage) -> object:
        flat = typed.__dict__.get(FLAT)
        return [original_item(typed, index) for index in range(typed._size())] if flat is None else flat.tolist()

    def formatted(self: FakeTensor, spec: str) -> str:
        return self.detach().item().__format__(spec) if self.dim() == 0 else object.__format__(self, spec)

    with contextlib.ExitStack() as stack:
        for name, function in (
            ("tolist", tolist), ("numpy", numpy), ("storage", storage), ("__format__", formatted),
        ):  # fmt: skip
            stack.enter_context(patch.object(FakeTensor, name, function, create=True))
        stack.enter_context(patch.object(torch.TypedStorage, "_getitem", item))
        stack.enter_context(patch.object(torch.TypedStorage, "tolist", items))
        yield


FLAT = "memfit_flat"
"""Under which a storage of fake values keeps the tensor that has them, flat."""


class ArrayOfTensor:
    """What numpy makes a tensor's array of: an array is the tensor's memory, and keeps it alive as long as it lives."""

    def __init__(self, array: np.ndarray, tensor: torch.Tensor) -> None:
        self._array = array
        self._storage = tensor.untyped_storage() if tensor.device.type == "cpu" else None

    @property
    def __array_interface__(self) -> dict[str, object]:
        """Where the values lie (numpy's own protocol)."""
        return self._array.__array_interface__


@contextlib.contextmanager
def _addresses(mode: FakeTensorMode, shadow: Shadow) -> Iterator[None]:
    """Libraries find tensors that share memory by the addresses of their storages: all fake ones lie at 0."""
    original = torch.UntypedStorage.data_ptr

    def address(storage: torch.UntypedStorage) -> int:
        fake = storage.device.type == "meta" and storage.nbytes()
        return id(storage) if fake else original(storage)

    with patch.object(torch.UntypedStorage, "data_ptr", address):
        yield


def _of_type(number: float, dtype: torch.dtype) -> float:
    if dtype is torch.bool:
        return bool(number)
    return float(number) if dtype.is_floating_point or dtype.is_complex else int(number)


def _nested(value: object, shape: list[int]) -> object:
    return value if not shape else [_nested(value, shape[1:]) for _ in range(shape[0])]


@contextlib.contextmanager
def _initialisers(mode: FakeTensorMode, shadow: Shadow) -> Iterator[None]:
    """`trunc_normal_` looks at values; on fake tensors filling in is all there is to it."""

    def truncated(tensor: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        with torch.no_grad():
            return tensor.normal_()

    with patch.object(torch.nn.init, "trunc_normal_", truncated):
        yield


def blind_libraries(until: contextlib.ExitStack) -> None:
    """Hugging Face takes another path (explicit masks, other kernels) when it sees a fake tensor: let it see none
    until the stack is closed."""
    for name in ("transformers.utils.import_utils", "transformers.utils.generic", "transformers.masking_utils"):
        module = sys.modules.get(name)
        for function in ("is_fake_tensor", "is_tracing", "is_torchdynamo_compiling"):
            if getattr(module, function, _nothing_to_see) is not _nothing_to_see:
                until.enter_context(patch.object(module, function, _nothing_to_see))


def _nothing_to_see(*args: object, **kwargs: object) -> bool:
    return False
