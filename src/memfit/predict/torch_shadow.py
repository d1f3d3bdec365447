"""What does a fake tensor answer when the program asks for a value?

Integer and boolean tensors steer control flow (masks, lengths, positions, shuffles), so small ones keep a real copy
beside them, their shadow, on which every operator is run too as long as all its tensor arguments have shadows. Such
questions are answered with the truth. Everything else gets a fixed answer (1.0, 1, or the chosen boolean), and the
line that asked is noted. Where the size of a result depends on values that are not known, the largest possible size
is taken and noted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from memfit.predict import torch_cuda_attention as attention
from memfit.predict import torch_cuda_convolution as convolution
from memfit.predict import torch_cuda_recurrent as recurrent
from memfit.predict import torch_packed as packed
from memfit.predict.torch_known import keep_shadow, shadow_of
from memfit.predict.torch_tracker import PRIM_DEVICE, LeanMode, device_of, is_distributed, tensors_in
from memfit.records.prediction import Assumption

aten = torch.ops.aten
MOST_ELEMENTS = 4 * 1024**2
LIFTS = {aten.lift_fresh.default, aten.lift_fresh_copy.default, aten.lift.default}
NO_OPERATION = {
    name
    for packet in ("_fused_sgd_", "_fused_adagrad_")
    if hasattr(aten, packet)
    for name in (getattr(getattr(aten, packet), overload) for overload in getattr(aten, packet).overloads())
    if name._schema.name.endswith("_")
}
"""Update parameters in place and allocate nothing, but have no fake kernel (torch 2.13)."""


class Shadow(LeanMode):
    """Answers questions for values, and keeps the values that can be known."""

    def __init__(self, line: Callable[[], str], truth: bool = True) -> None:
        super().__init__()
        self._line = line
        self._truth = truth
        self.answered: Counter[tuple[str, str, str]] = Counter()
        self._bounds = {
            aten.nonzero.default: self._nonzero,
            aten.masked_select.default: self._masked_select,
            aten._unique2.default: self._unique,
            aten.unique_consecutive.default: self._unique,
            aten.index.Tensor: self._index,
            aten.equal.default: self._equal,
            convolution.FORWARD: convolution.answer_convolution,
            convolution.BACKWARD: convolution.answer_convolution,
            aten.add.Tensor: attention.answer_sum,
            aten._scaled_dot_product_efficient_attention.default: attention.answer_efficient,
            recurrent.FORWARD: recurrent.answer_forward,
            recurrent.BACKWARD: recurrent.answer_backward,
            packed.PACK: self._pack,
            **dict.fromkeys(packed.RECIPES, packed.answer_recipe),
        }

    def assumptions(self) -> list[Assumption]:
        """One line per kind of question and place."""
        return [
            Assumption(kind=kind, text=text, line=line, count=count)
            for (kind, text, line), count in self.answered.items()
        ]

    def note(self, kind: str, text: str) -> None:
        """Remember an assumption with the line that needed it."""
        self.answered[kind, text, self._line()] += 1

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is PRIM_DEVICE:
            return device_of(args[0])
        if is_distributed(types):
            return NotImplemented
        if func is aten._local_scalar_dense.default:
            return self.scalar(args[0])
        if func in NO_OPERATION:
            return None
        real = self._on_shadows(func, args, kwargs)
        if real is None and _only_writes(func, args):
            _forget_changed(func, args)
            return args[0] if func._schema.returns else None
        bound = self._bounds.get(func)
        result = bound(func, args, kwargs, real) if bound else func(*args, **kwargs)
        if real is not None:
            _attach(result, real)
        else:
            _forget_changed(func, args)
        return result

    # ---- single values ---------------------------------------------------------------------------------------

    def scalar(self, tensor: torch.Tensor) -> Any:
        """The value of a one-element tensor: true where known, else a fixed answer."""
        real = shadow_of(tensor)
        constant = getattr(tensor, "constant", None)
        if real is None and constant is not None:
            real = constant
        if real is not None:
            with _disable_current_modes():
                return real.item()
        if tensor.dtype is torch.bool:
            self.note("scalar answer", f"a boolean was asked for and {self._truth} was answered")
            return self._truth
        if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
            self.note("scalar answer", "a number was asked for and 1.0 was answered")
            return 1.0
        self.note("scalar answer", "an integer was asked for and 1 was answered")
        return 1

    def _equal(self, func: Any, args: tuple[Any, ...], kwargs: Any, real: Any) -> bool:
        left, right = (shadow_of(value) for value in args[:2])
        if left is not None and right is not None:
            with _disable_current_modes():
                return torch.equal(left, right)
        self.note("scalar answer", f"whether two tensors are equal was asked for and {self._truth} was answered")
        return self._truth

    # ---- results whose size depends on values ----------------------------------------------------------------

    def _nonzero(self, func: Any, args: tuple[Any, ...], kwargs: Any, real: Any) -> torch.Tensor:
        rows = real.shape[0] if real is not None else self._most(args[0], "nonzero")
        return args[0].new_empty((rows, args[0].dim()), dtype=torch.int64)

    def _masked_select(self, func: Any, args: tuple[Any, ...], kwargs: Any, real: Any) -> torch.Tensor:
        mask = shadow_of(args[1])
        if mask is not None:
            with _disable_current_modes():
                return args[0].new_empty((int(mask.expand(torch.broadcast_shapes(mask.shape, args[0].shape)).sum()),))
        return args[0].new_empty((self._most(args[0], "masked_select"),))

    def _unique(self, func: Any, args: tuple[Any, ...], kwargs: Any, real: Any) -> Any:
        if real is not None:
            return tuple(args[0].new_empty(part.shape, dtype=part.dtype) for part in real)
        rows = self._most(args[0], "unique")
        index = args[0].new_empty(args[0].shape, dtype=torch.int64)
        return args[0].new_empty((rows,)), index, args[0].new_empty((rows,), dtype=torch.int64)

    def _index(self, func: Any, args: tuple[Any, ...], kwargs: Any, real: Any) -> torch.Tensor:
        """Boolean indices become as many rows as they have true elements, or could have."""
        source, indices = args[0], list(args[1])
        if not any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in indices):
            return func(*args, **kwargs)
        expanded: list[Any] = []
        for index in indices:
            if index is None or index.dtype not in (torch.bool, torch.uint8):
                expanded.append(index)
                continue
            mask = shadow_of(index)
            if mask is not None:
                with _disable_current_modes():
                    rows = int(mask.sum())
            else:
                rows = self._most(index, "indexing by a boolean mask")
            expanded.extend(source.new_empty((rows,), dtype=torch.int64) for _ in range(index.dim()))
        return func(source, expanded)

    def _pack(self, func: Any, args: tuple[Any, ...], kwargs: Any, real: Any) -> Any:
        if shadow_of(args[1]) is None:
            self.note("upper bound", "the lengths of a packed batch are not known; all were taken as the longest")
        return packed.pack(*args)

    def _most(self, tensor: torch.Tensor, name: str) -> int:
        self.note("upper bound", f"the size of the result of {name} depends on data; the largest possible was taken")
        return tensor.numel()

    # ---- shadows ---------------------------------------------------------------------------------------------

    def _on_shadows(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the operator on the shadows too; None when some value is unknown or the result is not worth keeping."""
        if func in LIFTS and not isinstance(args[0], FakeTensor):
            return small_copy(args[0])
        given = list(tensors_in((args, kwargs)))
        if any(shadow_of(tensor) is None for tensor in given):
            return None
        if not given and not _makes_small_integers(func, args, kwargs):
            return None
        try:
            with _disable_current_modes(), torch.no_grad():
                real_args = _swap(args)
                real_kwargs = _swap({name: value for name, value in kwargs.items() if name != "device"})
                result = func(*real_args, **real_kwargs)
        except Exception:  # whatever goes wrong beside the prediction must not stop it
            return None
        return result if all(_worth_keeping(tensor) for tensor in tensors_in(result)) else None


def _swap(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return shadow_of(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_swap(item) for item in value)
    if isinstance(value, dict):
        return {name: _swap(item) for name, item in value.items()}
    return value


def _worth_keeping(tensor: torch.Tensor) -> bool:
    return not (tensor.dtype.is_floating_point or tensor.dtype.is_complex) and tensor.numel() <= MOST_ELEMENTS


def small_copy(tensor: torch.Tensor) -> torch.Tensor | None:
    """The values of a small integer or boolean tensor."""
    with _disable_current_modes():
        return tensor.detach().cpu().clone() if _worth_keeping(tensor) else None


_FACTORIES = {"zeros", "ones", "full", "arange", "randint", "randperm", "empty", "tril_indices", "triu_indices"}


def _makes_small_integers(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a factory makes an integer tensor small enough to be made for real."""
    name = func._schema.name.partition("::")[2]
    if name not in _FACTORIES:
        return False
    dtype = kwargs.get("dtype")
    if dtype is None and name not in ("arange", "randint", "randperm", "tril_indices", "triu_indices"):
        return False
    if dtype is not None and (dtype.is_floating_point or dtype.is_complex):
        return False
    sizes = [value for value in args if isinstance(value, (list, tuple))]
    count = 1
    for size in sizes[0] if sizes else []:
        count *= int(size)
    if name in ("arange", "randperm"):
        count = max((int(abs(value)) for value in args if isinstance(value, (int, float))), default=0)
    return count <= MOST_ELEMENTS


_WRITERS = (
    "add_",
    "sub_",
    "mul_",
    "div_",
    "addcmul_",
    "addcdiv_",
    "lerp_",
    "sqrt_",
    "neg_",
    "exp_",
    "zero_",
    "fill_",
    "copy_",
    "normal_",
    "uniform_",
    "masked_fill_",
    "clamp_",
    "clamp_min_",
    "clamp_max_",
    "relu_",
    "reciprocal_",
    "bernoulli_",
    "pow_",
    "maximum_",
)
_only_writing: dict[Any, bool] = {}


def _only_writes(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether the operator writes into its first argument and does nothing else: then there is nothing to fake."""
    known = _only_writing.get(func)
    if known is None:
        name = func._schema.name.removeprefix("aten::")
        known = _only_writing[func] = name.removeprefix("_foreach_") in _WRITERS
    if not known:
        return False
    first = args[0][0] if isinstance(args[0], (list, tuple)) and args[0] else args[0]
    return type(first) is FakeTensor and first.constant is None and shadow_of(first) is None


def _attach(result: Any, real: Any) -> None:
    for fake, value in zip(tensors_in(result), tensors_in(real), strict=False):
        if isinstance(fake, FakeTensor) and fake.shape == value.shape:
            keep_shadow(fake, value)


def _forget_changed(func: Any, args: tuple[Any, ...]) -> None:
    """A tensor that was written with unknown values has no known values any more."""
    if not func._schema.is_mutable:
        return
    for argument, value in zip(func._schema.arguments, args, strict=False):
        if argument.alias_info is not None and argument.alias_info.is_write:
            for tensor in tensors_in(value):
                if shadow_of(tensor) is not None:
                    keep_shadow(tensor, None)
