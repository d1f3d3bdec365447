"""Runs the last linear layer and the cross entropy after it in chunks of rows, so that all logits never live at once.

The call of the layer returns a `Deferred`: it knows the layer and its input, and stands for the logits. What programs
do with logits on their way to the loss (a view, a shift by one token, a cast to float32) is done to the input instead.
`cross_entropy` is then computed chunk by chunk, and again in the backward, where the gradients of input and weight add
up. Whoever does anything else with a `Deferred` gets the logits as they are: computed on the spot, with their history.

Sums are taken in another order than without chunks: the result agrees within roundings, not to the bit.
Not done under autocast, in `eval()`, without gradients, or where the layer has hooks: those calls are plain.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import EllipsisType
from typing import Any, ClassVar, Protocol, cast

import torch
from torch.nn import functional

from memfit.errors import PlanBroken
from memfit.model.call_sites import add_layer, is_compiled

NAME = "chunked-loss"
LEAST_ROWS = 32
"""Of one chunk: smaller products are slow."""
NUM_TEMPORARY = 4
"""Logits, their logarithms, and the gradients of both are alive at once in the backward of a chunk."""
IndexPart = int | slice | EllipsisType | torch.Tensor | None
Index = IndexPart | tuple[IndexPart, ...]


# ---- cross entropy in chunks -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LossOptions:
    """What `cross_entropy` was asked for."""

    ignore_index: int
    label_smoothing: float
    is_mean: bool
    num_rows: int
    """Of one chunk."""
    dtype: torch.dtype
    """Of the logits that the loss is given."""

    def summed(self, logits: torch.Tensor, target: torch.Tensor, class_weight: torch.Tensor | None) -> torch.Tensor:
        """The loss of one chunk, added up."""
        return functional.cross_entropy(
            logits.to(self.dtype), target, class_weight, ignore_index=self.ignore_index, reduction="sum",
            label_smoothing=self.label_smoothing,
        )  # fmt: skip

    def divisor(self, target: torch.Tensor, class_weight: torch.Tensor | None) -> torch.Tensor | float:
        """What the sum is divided by."""
        if not self.is_mean:
            return 1.0
        counted = target != self.ignore_index
        if class_weight is None:
            return counted.sum()
        return torch.where(counted, class_weight[torch.where(counted, target, 0)], 0.0).sum()


class LossContext(Protocol):
    """What autograd hands from the forward to the backward."""

    options: LossOptions
    saved_tensors: tuple[torch.Tensor, ...]
    needs_input_grad: tuple[bool, ...]

    def save_for_backward(self, *tensors: torch.Tensor | None) -> None: ...


class ChunkedCrossEntropy(torch.autograd.Function):
    """`cross_entropy(linear(hidden, weight, bias), target)`, a chunk of rows at a time."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: LossContext,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        target: torch.Tensor,
        class_weight: torch.Tensor | None,
        options: LossOptions,
    ) -> torch.Tensor:
        ctx.options = options
        ctx.save_for_backward(hidden, weight, bias, target, class_weight)
        total = torch.zeros((), dtype=options.dtype, device=hidden.device)
        for rows in _chunks(hidden, options.num_rows):
            logits = functional.linear(hidden[rows], weight, bias)
            total += options.summed(logits, target[rows], class_weight)
        return total / options.divisor(target, class_weight)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: LossContext, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        hidden, weight, bias, target, class_weight = ctx.saved_tensors
        options: LossOptions = ctx.options
        scale = gradients[0] / options.divisor(target, class_weight)
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        of_hidden = torch.empty_like(hidden) if needs_hidden else None
        of_weight = torch.zeros_like(weight) if needs_weight else None
        of_bias = torch.zeros_like(bias) if needs_bias and bias is not None else None
        for rows in _chunks(hidden, options.num_rows):
            of_logits = _gradient_of_logits(options, hidden[rows], weight, bias, target[rows], class_weight, scale)
            if of_hidden is not None:
                torch.mm(of_logits, weight, out=of_hidden[rows])
            if of_weight is not None:
                of_weight.addmm_(of_logits.t(), hidden[rows])
            if of_bias is not None:
                of_bias += of_logits.sum(0)
        return of_hidden, of_weight, of_bias, None, None, None


def _gradient_of_logits(
    options: LossOptions,
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    target: torch.Tensor,
    class_weight: torch.Tensor | None,
    scale: torch.Tensor,
) -> torch.Tensor:
    logits = functional.linear(hidden, weight, bias).requires_grad_()
    with torch.enable_grad():
        loss = options.summed(logits, target, class_weight)
    return torch.autograd.grad(loss, logits, scale.to(loss.dtype))[0]


def _chunks(hidden: torch.Tensor, num_rows: int) -> Iterator[slice]:
    return (slice(start, start + num_rows) for start in range(0, hidden.shape[0], num_rows))


# ---- what stands for logits ------------------------------------------------------------------------------------------


@dataclass(eq=False, slots=True)
class _Origin:
    """One call of the layer."""

    lever: ChunkedLoss
    hidden: torch.Tensor
    versions: tuple[int, ...]
    whole: torch.Tensor | None = None

    def logits(self) -> torch.Tensor:
        """All logits as the layer would have returned them."""
        if self.whole is None:
            if self.versions != self.lever.versions(self.hidden):
                raise PlanBroken(
                    "logits were read after the weights of their layer had changed",
                    found=f"{self.lever.name} computes its loss in chunks and keeps no logits",
                    hint="read them before the optimizer's step, or train without chunked-loss",
                )
            self.lever.num_whole += 1
            self.whole = self.lever.plain(self.hidden)
        return self.whole


class Deferred:
    """Logits that are not computed yet; whatever is not on the way to a cross entropy computes them."""

    stands_for_a_tensor = True

    def __init__(
        self,
        origin: _Origin,
        hidden: torch.Tensor,
        dtype: torch.dtype,
        steps: tuple[tuple[str, Sequence[object]], ...] = (),
    ) -> None:
        self._origin, self._hidden, self._dtype, self._steps = origin, hidden, dtype, steps

    # ---- on the way to the loss --------------------------------------------------------------------------------------

    @property
    def shape(self) -> torch.Size:
        return torch.Size((*self._hidden.shape[:-1], self._origin.lever.layer.out_features))

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    @property
    def device(self) -> torch.device:
        return self._hidden.device

    @property
    def ndim(self) -> int:
        return self._hidden.dim()

    @property
    def requires_grad(self) -> bool:
        return True

    def size(self, dim: int | None = None) -> torch.Size | int:
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        return self._hidden.dim()

    def numel(self) -> int:
        return self.shape.numel()

    def float(self) -> object:
        return self._then("float", (), self._hidden, torch.float32)

    def contiguous(self) -> object:
        return self._then("contiguous", (), self._hidden, self._dtype)

    def to(self, *args: object, **kwargs: object) -> object:
        if not kwargs and args in ((torch.float32,), (self.device,)):
            dtype = torch.float32 if args[0] is torch.float32 else self._dtype
            return self._then("to", args, self._hidden, dtype)
        return cast("Callable[..., torch.Tensor]", self._whole().to)(*args, **kwargs)

    def view(self, *shape: object) -> object:
        return self._shaped("view", shape)

    def reshape(self, *shape: object) -> object:
        return self._shaped("reshape", shape)

    def _shaped(self, name: str, shape: Sequence[object]) -> object:
        sizes = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else tuple(shape)
        num_classes, num_rows = self.shape[-1], math.prod(self.shape[:-1])
        known = all(isinstance(size, int) for size in sizes) and len(sizes) == 2
        if not known or sizes[1] not in (num_classes, -1) or sizes[0] not in (num_rows, -1) or sizes == (-1, -1):
            return getattr(self._whole(), name)(*shape)
        return self._then(name, shape, self._hidden.reshape(num_rows, self._hidden.shape[-1]), self._dtype)

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> object:
        if self.ndim < 2 or start_dim != 0 or end_dim not in (self.ndim - 2, -2):
            return self._whole().flatten(start_dim, end_dim)
        return self._then("flatten", (start_dim, end_dim), self._hidden.flatten(0, self.ndim - 2), self._dtype)

    def __getitem__(self, index: Index) -> object:
        """A part of the rows; all classes of them."""
        places = index if isinstance(index, tuple) else (index,)
        if any(not isinstance(each, slice) and each is not Ellipsis for each in places):
            return self._whole()[index]
        has_rest = Ellipsis in places
        reaches_last = len(places) - has_rest == self.ndim or (has_rest and places[-1] is not Ellipsis)
        if reaches_last and places[-1] != slice(None):
            return self._whole()[index]
        return self._then("__getitem__", (index,), self._hidden[index], self._dtype)

    def _then(self, name: str, args: Sequence[object], hidden: torch.Tensor, dtype: torch.dtype) -> Deferred:
        return Deferred(self._origin, hidden, dtype, (*self._steps, (name, args)))

    # ---- everything else ---------------------------------------------------------------------------------------------

    def _whole(self) -> torch.Tensor:
        value = self._origin.logits()
        for name, args in self._steps:
            value = getattr(value, name)(*args)
        return value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._whole(), name)

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        return call_with(func, args, kwargs or {})

    def __repr__(self) -> str:
        return repr(self._whole())

    def __reduce__(self) -> tuple[Callable[[object], object], tuple[torch.Tensor]]:
        return _as_it_is, (self._whole(),)

    def __deepcopy__(self, memo: dict[int, object]) -> object:
        return self._whole().__deepcopy__(memo)


def _as_it_is(value: object) -> object:
    return value


def _operator(name: str) -> Callable[..., object]:
    def apply(self: Deferred, *args: object) -> object:
        return getattr(self._whole(), name)(*(each._whole() if isinstance(each, Deferred) else each for each in args))

    return apply


_OPERATORS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor")
for _name in (
    *(f"__{kind}{each}__" for each in _OPERATORS for kind in ("", "r", "i")),
    *("__neg__", "__pos__", "__abs__", "__invert__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"),
    *("__len__", "__bool__", "__float__", "__int__", "__setitem__", "__contains__", "__array__"),
):
    setattr(Deferred, _name, _operator(_name))
Deferred.__hash__ = object.__hash__  # type: ignore[method-assign]


def call_with(func: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    """Call a torch function that was given logits that are not computed yet."""
    if func is functional.cross_entropy:
        found = cast("Callable[..., torch.Tensor | None]", _cross_entropy)(*args, **kwargs)
        if found is not None:
            return found
    name = getattr(func, "__name__", "")
    if args and isinstance(args[0], Deferred) and name in _ON_THE_WAY and _is_method(func):
        return getattr(args[0], name)(*args[1:], **kwargs)
    return func(*map(_computed, args), **{key: _computed(value) for key, value in kwargs.items()})


_ON_THE_WAY = {"float", "contiguous", "to", "view", "reshape", "flatten", "__getitem__", "size", "dim", "numel"}


def _is_method(func: object) -> bool:
    return getattr(torch.Tensor, getattr(func, "__name__", ""), None) is func


def _computed(value: object) -> object:
    if isinstance(value, Deferred):
        return value._whole()
    if type(value) is tuple or type(value) is list:
        return type(value)(_computed(each) for each in value)
    return value


def _cross_entropy(
    input: object,
    target: object,
    weight: torch.Tensor | None = None,
    size_average: object = None,
    ignore_index: int = -100,
    reduce: object = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> torch.Tensor | None:
    """The loss in chunks; None where it is not one number of rows and their classes."""
    if not isinstance(input, Deferred) or not isinstance(target, torch.Tensor):
        return None
    if size_average is not None or reduce is not None:
        return None
    if reduction not in ("mean", "sum") or input.ndim != 2 or target.is_floating_point():
        return None
    if target.shape != input.shape[:1] or (weight is not None and weight.requires_grad):
        return None
    return input._origin.lever.loss_of(input, target, weight, ignore_index, reduction == "mean", label_smoothing)


# ---- the lever -------------------------------------------------------------------------------------------------------


@dataclass(eq=False, slots=True)
class ChunkedLoss:
    """Lets one linear layer of a model leave its logits to the loss, from `start` to `undo`."""

    layer: torch.nn.Linear
    name: str
    num_chunked: int = 0
    """Losses that were computed in chunks."""
    num_whole: int = 0
    """How often logits were computed after all."""
    has_said: bool = False
    is_tried: bool = False
    """Whether warnings are off."""
    _closers: list[Callable[[], None]] = field(default_factory=list)

    leaves_out_calls: ClassVar[bool] = True

    def start(self) -> None:
        """From now on, logits are computed in the loss."""
        self._closers.append(add_layer(self.layer, self))

    def undo(self) -> None:
        """Leave the layer as it was."""
        while self._closers:
            self._closers.pop()()

    def __call__(self, proceed: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        hidden = args[0] if len(args) == 1 and not kwargs else None
        if not isinstance(hidden, torch.Tensor) or not self._may_defer(hidden):
            return proceed(*args, **kwargs)
        origin = _Origin(self, hidden, self.versions(hidden))
        return Deferred(origin, hidden, hidden.dtype)

    def _may_defer(self, hidden: torch.Tensor) -> bool:
        layer = self.layer
        if not torch.is_grad_enabled() or not layer.training or torch.is_autocast_enabled(hidden.device.type):
            return False
        if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None or hidden.dim() < 2:
            return False
        return refuses(layer) == "" and layer.weight.dtype == hidden.dtype and layer.weight.requires_grad

    def versions(self, hidden: torch.Tensor) -> tuple[int, ...]:
        """What changes when somebody writes into what logits are computed from."""
        bias = self.layer.bias
        return (self.layer.weight._version, -1 if bias is None else bias._version, hidden._version)

    def plain(self, hidden: torch.Tensor) -> torch.Tensor:
        """All logits."""
        if self.num_chunked == 0 or self.is_tried or self.has_said:
            return functional.linear(hidden, self.layer.weight, self.layer.bias)
        self.has_said = True
        warnings.warn(
            f"memfit: the logits of {self.name} are computed as a whole, because more than the loss reads them: "
            "the step may take more than the budget",
            RuntimeWarning,
            stacklevel=2,
        )
        return functional.linear(hidden, self.layer.weight, self.layer.bias)

    def loss_of(
        self,
        logits: Deferred,
        target: torch.Tensor,
        class_weight: torch.Tensor | None,
        ignore_index: int,
        is_mean: bool,
        label_smoothing: float,
    ) -> torch.Tensor:
        """The loss in chunks."""
        self.num_chunked += 1
        hidden, layer = logits._hidden, self.layer
        options = LossOptions(ignore_index, label_smoothing, is_mean, rows_of_chunk(hidden, layer), logits.dtype)
        loss = ChunkedCrossEntropy.apply(hidden, layer.weight, layer.bias, target, class_weight, options)
        assert isinstance(loss, torch.Tensor)
        return loss


def rows_of_chunk(hidden: torch.Tensor, layer: torch.nn.Linear) -> int:
    """As many as take no more in passing than the gradient of the weight takes, and not too few."""
    return min(hidden.shape[0], max(LEAST_ROWS, layer.in_features // NUM_TEMPORARY))


def refuses(layer: torch.nn.Module) -> str:
    """Why the calls of a layer cannot be left out; empty when they can."""
    if type(layer) is not torch.nn.Linear or "forward" in layer.__dict__ or is_compiled(layer):
        return "it is no plain torch.nn.Linear"
    if layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks:
        return "it has hooks"
    return ""


def widest_layer(model: torch.nn.Module) -> tuple[str, torch.nn.Linear] | None:
    """The linear layer with the most outputs; None where there is none that could be left out."""
    layers = [(n, m) for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and not refuses(m)]
    return max(layers, key=lambda pair: pair[1].out_features, default=None)
