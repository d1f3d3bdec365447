"""True values of small integers and masks on the phantom GPU, and reads of values that are unknown.

A function mode sees every call of torch's Python interface, without changing what torch does on the device (a dispatch
mode would change how autograd adds gradients). Where a call gives a small integer or boolean tensor on the GPU and all
its inputs are known, it is repeated on their twins on the host. A copy from the device to the host is answered from the
twins of the running call, from the count that the call must find, from the user's answers, or with zero, which is
listed.

Limits: what is computed under `torch.vmap` or inside a C++ extension has no twin. Indices that come from unknown
floating values (`topk`, `argmax`, `sort`) are assumed to be spread evenly.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import struct
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, Protocol, TypeGuard

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _get_current_dispatch_mode

from memfit.predict.levels.guesses import CHECKED
from memfit.predict.observe.error_guards import answer_without_error, number_without_error
from memfit.predict.observe.own_threads import Turns
from memfit.predict.phantom.in_child.data_dependent_sizes import COUNTS, MASKS, numbers_for
from memfit.predict.phantom.in_child.host_copies import Twins, can_be_kept
from memfit.predict.phantom.value_reads import ReadLog

WHOLE = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
MOST_FLOATS = 1 << 14
"""Floating results of known integers (a mask as factors, a mean length) are kept up to this many elements."""
MAKES_MASK, MOST_OF_MASK = {"full", "triu", "tril"}, 1 << 22
"""A mask of infinities is compared with another one, to see whether attention is causal."""
BY_SHAPE = {
    "zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty",
    "new_tensor", "randint_like",
}  # fmt: skip
"""What these give depends on the shape of their input only."""
UNSET = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted"}
SPREAD = {"topk", "sort", "argsort", "argmax", "argmin", "max", "min", "multinomial", "msort", "kthvalue", "median"}
COUNTED = "memfit_counted"
FORMATS = {torch.float16: "<e", torch.float32: "<f", torch.float64: "<d"}
ATTENTION = {"scaled_dot_product_attention", "multi_head_attention_forward"}
TO_HOST = {"cpu", "to", "tolist", "item", "copy_", "type", "numpy"}

Where = Callable[[], tuple[str, str]]
Outcome = torch.Tensor | tuple[torch.Tensor, ...] | list[torch.Tensor]


@contextlib.contextmanager
def modes_ignored_by_fast_paths() -> Iterator[None]:
    """Within, `nn.MultiheadAttention` and `nn.TransformerEncoder` choose by their arguments alone.

    In evaluation they take one kernel for a whole layer, unless a function mode is active, which no real run has.
    """
    before = torch.overrides.has_torch_function
    torch.overrides.has_torch_function = _has_own_functions
    try:
        yield
    finally:
        torch.overrides.has_torch_function = before


def _has_own_functions(arguments: Iterable[object]) -> bool:
    own = (getattr(type(a), "__torch_function__", None) for a in arguments if type(a) is not torch.Tensor)
    return any(each is not None and each is not torch._C._disabled_torch_function_impl for each in own)


class FollowedFunction(Protocol):
    """A function of torch's Python interface."""

    __name__: str

    def __call__(self, *args: object, **kwargs: object) -> object: ...


class Unknown(Exception):
    """An input's values are not known."""


def _is_infinite(name: str, args: tuple[object, ...]) -> bool:
    """Whether a tensor is filled with infinity: no training changes one."""
    return name == "full" and len(args) > 1 and isinstance(args[1], float) and math.isinf(args[1])


class Values(TorchFunctionMode):
    """Keeps twins, answers reads."""

    def __init__(self, log: ReadLog, where: Where) -> None:
        super().__init__()
        self.log, self._where, self.twins = log, where, Twins()
        self._running = threading.local()
        self._plain: dict[FollowedFunction, bool] = {}
        self._collectives: dict[FollowedFunction, str] = {}
        self.on_guess: Callable[[], None] | None = None
        """Called when a value was read that is not known."""
        self.functional: Callable[[str, tuple[object, ...], object], bool] | None = None
        """Carries the values of functional collectives, given name, arguments and result."""
        self._random = torch.Generator().manual_seed(0)
        self.turns = Turns()
        self.has_attention = False
        """Whether torch was asked for its attention kernels."""

    def __torch_function__(
        self,
        func: FollowedFunction,
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        """Run the call as it is; then on the twins, where its result is worth keeping."""
        kwargs = kwargs or {}
        plain = self._plain.get(func)
        if plain is None:
            plain = self._plain[func] = _is_plain(func)
            self.has_attention |= getattr(func, "__name__", "") in ATTENTION
            if "_c10d_functional" in str(func):
                self._collectives[func] = func.__name__.partition(".")[0]
        if plain:
            return func(*args, **kwargs)
        self.turns.note()
        before = getattr(self._running, "call", None)
        self._running.call = call = (func, args, kwargs, [])
        try:
            result = func(*args, **kwargs)
        finally:
            self._running.call = before
        if call[3] and func.__name__ in COUNTS:
            _count_again(result if result is not None else args[0], call[3][1])
        with torch._C.DisableTorchFunction():  # a default device (`set_default_device`) would put twins on the GPU
            return self._after(func, args, kwargs, result)

    # ---- what a call leaves behind -----------------------------------------------------------------------------

    def _after(
        self, func: FollowedFunction, args: tuple[object, ...], kwargs: dict[str, object], result: object
    ) -> object:
        name = func.__name__
        collective = self._collectives.get(func) if self.functional is not None else None
        if collective and self.functional is not None and self.functional(collective, args, result):
            return result
        if isinstance(result, torch.Tensor):
            if result.is_cuda:
                if self._is_worth_keeping(name, result, args) or (_changes(name, kwargs) and self.twins.find(result)):
                    self._keep(func, name, args, kwargs, result)
            elif name in TO_HOST:
                self._bring(args, result)
            return result
        if isinstance(result, (tuple, list)):
            if name == "tolist" and isinstance(args[0], torch.Tensor):
                known = self.twins.view(args[0])
                return result if known is None else known.tolist()
            if any(isinstance(part, torch.Tensor) and part.is_cuda and part.dtype in WHOLE for part in result):
                self._keep(func, name, args, kwargs, result)
        elif result is None and name == "__setitem__" and _on_gpu(args[0]):
            self._keep(func, name, args, kwargs, args[0])
        return result

    def _is_worth_keeping(self, name: str, result: torch.Tensor, args: tuple[object, ...]) -> bool:
        if result.dtype in WHOLE:
            return True
        if result.requires_grad or not 0 < result.numel() <= (MOST_OF_MASK if name in MAKES_MASK else MOST_FLOATS):
            return False
        return _is_infinite(name, args) or self._has_known(args)

    def _has_known(self, args: object) -> bool:
        return any(tensor.is_cuda and self.twins.find(tensor) is not None for tensor in _tensors(args))

    def _keep(
        self, func: FollowedFunction, name: str, args: tuple[object, ...], kwargs: dict[str, object], result: Outcome
    ) -> None:
        """Repeat the call on the twins; forget what it overwrote when that cannot be done."""
        results = [part for part in (result if isinstance(result, (tuple, list)) else [result]) if _on_gpu(part)]
        changes = _changes(name, kwargs)
        if _get_current_dispatch_mode() is not None or not any(map(can_be_kept, results)):
            if changes:
                self._forget(results)
            return
        if not changes and all(self.twins.find(part) is not None for part in results):
            return  # views of what is known
        try:
            self._repeat(func, name, args, kwargs, result, changes)
        except Unknown:
            self._assume_or_forget(name, args, kwargs, results, changes)
        except Exception:
            self._forget(results)

    def _repeat(
        self,
        func: FollowedFunction,
        name: str,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        result: Outcome,
        changes: bool,
    ) -> None:
        target = result[0] if isinstance(result, (tuple, list)) else result
        if changes and self.twins.find(target) is None:
            if name not in ("fill_", "zero_", "copy_", "random_") or not _is_whole(target):
                raise Unknown
            self.twins.keep(target, torch.zeros(target.shape, dtype=target.dtype))
        reasons: list[str] = []
        host_args, host_kwargs = self._on_host((args, kwargs), name, reasons)
        host_kwargs = self._with_generator(func, host_kwargs)
        found: Any = host_args[0] if name == "cuda" else func(*host_args, **host_kwargs)
        if name in UNSET and isinstance(found, torch.Tensor):
            found = torch.zeros_like(found)  # what was there before is no known value
        pairs = zip(result, found, strict=True) if isinstance(result, (tuple, list)) else [(result, found)]
        for part, values in pairs:
            if not _on_gpu(part) or not can_be_kept(part):
                continue
            if changes:
                twin = self.twins.find(part)
                if twin is not None:
                    twin.assumed = twin.assumed or "".join(reasons[:1])
            elif part.shape == values.shape:
                self.twins.keep(part, values, "".join(reasons[:1]))

    def _with_generator(self, func: FollowedFunction, kwargs: dict[str, object]) -> dict[str, object]:
        """Random integers come from a generator of our own: the user's must not be moved on."""
        if func in (torch.randint, torch.randperm, torch.Tensor.random_):
            return {**kwargs, "generator": self._random}
        return kwargs

    def _assume_or_forget(
        self, name: str, args: tuple[object, ...], kwargs: dict[str, object], results: list[torch.Tensor], changes: bool
    ) -> None:
        if not changes and name in SPREAD and _tensors_first(args) is not None:
            reason = f"indices from {name} of unknown values are spread evenly"
            for part in results:
                if part.dtype is torch.int64 and can_be_kept(part):
                    self.twins.keep(part, _spread(name, args, kwargs, part), reason)
        elif changes:
            self._forget(results)

    def _forget(self, results: list[torch.Tensor]) -> None:
        for part in results:
            if type(part) in (torch.Tensor, torch.nn.Parameter):
                self.twins.forget(part)

    def _bring(self, args: tuple[object, ...], result: torch.Tensor) -> None:
        """A copy to the host that came by way of a temporary on the device: put the true values in."""
        source = next((t for t in _tensors(args) if t.is_cuda), None)
        known = None if source is None else self.twins.view(source)
        if known is not None and known.shape == result.shape:
            with torch.no_grad():
                result.copy_(known)

    # ---- the same arguments on the host ------------------------------------------------------------------------

    def _on_host(self, value: object, name: str, reasons: list[str], assume: bool = False) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor_on_host(value, name, reasons, assume) if value.is_cuda else value
        if isinstance(value, (tuple, list)) and type(value) is not torch.Size:
            return type(value)(self._on_host(part, name, reasons, assume) for part in value)
        if isinstance(value, dict):
            return {
                key: "cpu" if key == "device" else self._on_host(part, name, reasons, assume)
                for key, part in value.items()
                if key not in ("generator", "pin_memory")
            }
        if isinstance(value, torch.device):
            return torch.device("cpu") if value.type == "cuda" else value
        if isinstance(value, str) and value.startswith("cuda"):
            return "cpu"
        return value

    def _tensor_on_host(self, tensor: torch.Tensor, name: str, reasons: list[str], assume: bool) -> torch.Tensor:
        twin = self.twins.find(tensor)
        if twin is not None:
            if twin.assumed:
                reasons.append(twin.assumed)
            known = self.twins.view(tensor)
            assert known is not None
            return known
        if name in BY_SHAPE:
            return torch.empty(tensor.shape, dtype=tensor.dtype)
        if not assume:
            raise Unknown
        if tensor.dtype in MASKS:
            reasons.append(f"a mask of {tensor.numel()} unknown values is taken to be all true")
            return torch.ones((), dtype=tensor.dtype).expand(tensor.shape)
        if tensor.dtype in WHOLE:
            reasons.append(f"{tensor.numel()} unknown integers are taken to be all different")
            return torch.arange(tensor.numel()).reshape(tensor.shape)
        return torch.zeros((), dtype=tensor.dtype).expand(tensor.shape)

    # ---- copies from the device to the host --------------------------------------------------------------------

    def answer(self, to: int, source: int, num_bytes: int, was_sent: int) -> None:
        """Called by the library at each copy out of the device.

        What was sent there from the host counts only outside of any call: torch's own C++ talks to itself.
        """
        with torch._C.DisableTorchFunction(), torch.no_grad():
            try:
                if was_sent:
                    if getattr(self._running, "call", None) is None:
                        return
                    ctypes.memset(to, 0, num_bytes)
                self._answer(to, source, num_bytes)
            except Exception as error:
                self.log.add(f"a read of {num_bytes} bytes could not be answered ({error})", *self._where())

    def _answer(self, to: int, source: int, num_bytes: int) -> None:
        call = getattr(self._running, "call", None)
        if call is not None:
            func, args, kwargs, numbers = call
            if self._from_twin(args, kwargs, to, source, num_bytes):
                return
            if func.__name__ in TO_HOST and self._has_known(args):
                return  # by way of a temporary; the values are put in afterwards
            if num_bytes <= 8:
                if not numbers:
                    counted = list(self._numbers(func, args, kwargs))
                    numbers.extend((iter(counted), counted))
                number = next(numbers[0], None)
                if number is not None:
                    ctypes.memmove(to, int(number).to_bytes(num_bytes, "little", signed=number < 0), num_bytes)
                    return
        elif num_bytes <= 8 and (number := _number_of_node()) is not None:
            ctypes.memmove(to, int(number).to_bytes(num_bytes, "little"), num_bytes)
            return
        self._unknown(None if call is None else _tensors_first(call[1]), to, num_bytes)

    def _from_twin(self, args: object, kwargs: object, to: int, source: int, num_bytes: int) -> bool:
        for tensor in _tensors((args, kwargs)):
            twin = self.twins.find(tensor) if tensor.is_cuda else None
            if twin is None:
                continue
            start = source - tensor.untyped_storage().data_ptr()
            if start >= 0 and start + num_bytes <= twin.storage.nbytes():
                ctypes.memmove(to, twin.storage.data_ptr() + start, num_bytes)
                if twin.assumed:
                    self._guessed(twin.assumed)
                return True
        return False

    def _numbers(self, func: FollowedFunction, args: tuple[object, ...], kwargs: dict[str, object]) -> Iterator[int]:
        """What the running call will find: the counts of the operators that have them, else its own result."""
        name, reasons = func.__name__, list[str]()
        if name in COUNTS:
            host = self._on_host((args, kwargs), "", reasons, assume=True)
            numbers = list(numbers_for(name, *host))
            for reason in reasons[:1] if numbers else ():
                self.log.add(reason, *self._where())
            yield from numbers
            return
        try:
            host = self._on_host((args, kwargs), name, reasons)
        except Unknown:
            return
        found = func(*host[0], **host[1])
        if isinstance(found, (bool, int)):
            yield int(found)

    def _unknown(self, tensor: torch.Tensor | None, to: int, num_bytes: int) -> None:
        asked_in, line = self._where()
        kind = "value" if tensor is None else str(tensor.dtype).removeprefix("torch.")
        if num_bytes > 8:
            self._guessed(f"{num_bytes} bytes of unknown {kind} values were copied to the host as zeros")
            return
        answer = self.log.answer(asked_in, line)
        passing = _passing(kind) if answer is None else None
        what = f"an unknown {kind}" if passing is None else CHECKED
        answer = passing if answer is None else answer
        if answer is not None:
            ctypes.memmove(to, _encoded(answer, None if tensor is None else tensor.dtype, num_bytes), num_bytes)
        self._guessed(f"{what} was read and answered with {answer or 0:g}")

    def _guessed(self, what: str) -> None:
        self.log.add(what, *self._where())
        if self.on_guess is not None:
            self.on_guess()


def _passing(kind: str) -> float | None:
    """The answer that keeps the job out of an error that it guards; None where zero does as well as any."""
    frame = sys._getframe(2)
    return answer_without_error(frame) if kind == "bool" else number_without_error(frame, 0)


def _encoded(value: float, dtype: torch.dtype | None, num_bytes: int) -> bytes:
    if dtype is torch.bfloat16:
        return struct.pack("<f", value)[2:]
    if dtype in FORMATS and struct.calcsize(FORMATS[dtype]) == num_bytes:
        return struct.pack(FORMATS[dtype], value)
    return int(value).to_bytes(num_bytes, "little", signed=True)


def _count_again(result: object, numbers: list[int]) -> None:
    """The backward of such a call counts again, outside of Python: leave the numbers with its node."""
    node = getattr(result, "grad_fn", None)
    if node is not None:
        node.metadata[COUNTED] = numbers, []


def _number_of_node() -> int | None:
    """What the running node of a backward counts, as its forward did, over and over in the same order."""
    node: Any = torch._C._current_autograd_node()
    numbers, asked = (node.metadata.get(COUNTED) if node is not None else None) or ((), [])
    if not numbers:
        return None
    asked.append(None)
    return numbers[(len(asked) - 1) % len(numbers)]


def _is_plain(func: FollowedFunction) -> bool:
    """Getters, hooks and list operators of optimizers: nothing of theirs is followed."""
    name = getattr(func, "__name__", "")
    return (
        not name
        or name in ("__get__", "__set__", "__delete__", "backward", "size", "dim", "stride", "numel", "is_complex")
        or name.startswith(("_foreach", "_fused", "register_", "is_floating", "data_ptr", "__repr__", "__format__"))
    )


def _changes(name: str, kwargs: dict[str, object]) -> bool:
    """Whether a call writes to what it was given."""
    if name.endswith("__"):
        return name == "__setitem__" or (name.startswith("__i") and name not in KEPT_DUNDERS)
    return name.endswith("_") or "out" in kwargs


KEPT_DUNDERS = {"__iter__", "__index__", "__int__", "__invert__", "__init__"}


def _on_gpu(value: object) -> TypeGuard[torch.Tensor]:
    return isinstance(value, torch.Tensor) and value.is_cuda


def _is_whole(tensor: torch.Tensor) -> bool:
    return tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()


def _tensors(value: object, depth: int = 0) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)) and depth < 3:
        for part in value:
            yield from _tensors(part, depth + 1)
    elif isinstance(value, dict):
        yield from chain.from_iterable(_tensors(part, depth + 1) for part in value.values())


def _tensors_first(args: tuple[object, ...]) -> torch.Tensor | None:
    return next(_tensors(args), None)


def _spread(name: str, args: tuple[object, ...], kwargs: dict[str, object], result: torch.Tensor) -> torch.Tensor:
    """Indices in range that differ within a row and go round over the rows."""
    source = next(_tensors(args))
    numbers = torch.arange(result.numel())
    if (name in ("argmax", "argmin") and result.dim() == 0) or source.dim() == 0:
        return (numbers % max(1, source.numel())).reshape(result.shape)
    dim: Any = kwargs.get("dim", -1)
    for value in args[1:]:
        if name in ("argmax", "argmin", "max", "min", "sort", "argsort") and type(value) is int:
            dim = value
    size = source.shape[dim]
    if result.dim() == source.dim():
        moved = result.movedim(dim, -1).shape
        return (numbers % size).reshape(moved).movedim(-1, dim)
    return (numbers % size).reshape(result.shape)
