"""Runs an operator of a fake run on the known values of its arguments, beside the fake one.

What is computed: any operator all of whose tensors are known, as long as its results are small. What is drawn: small
results of random operators, which are marked as drawn, and so is all that follows from them. What is forgotten: every
storage that was written with something unknown.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from memfit.predict.fake.values.filled_in_parts import FilledInParts
from memfit.predict.levels.guesses import DRAWN
from memfit.predict.observe.arguments import Arguments, Keywords, tensor_at
from memfit.predict.observe.known_values import (
    FACTORISED,
    FINITE,
    UNEQUAL,
    assume,
    covers_storage,
    is_known,
    keep_shadow,
    shadow_of,
    why_assumed,
)
from memfit.predict.observe.storage_tracker import tensors_in

aten = torch.ops.aten
MOST_INTEGERS = 4 * 1024**2
MOST_FLOATS = 1 << 14
MOST_DRAWN_FLOATS = 16
"""Random floats steer decisions one by one; weights are not drawn."""
CHOOSE = {"rand": 1 << 17, "rand_like": 1 << 17, "bernoulli": 1 << 17}
"""Uniform numbers choose samples and masks: so many are drawn."""
MOST_CHECKED = 1 << 26
MOST_COPIED = 1 << 25
"""Elements of an array whose values go along when it is cast or moved to a device."""
MOST_MOVED = 1 << 20
MOVES = {"cat", "clone", "flip", "gather", "index", "index_select", "repeat", "roll", "stack"}
"""Operators that put known numbers in another order: so many floats are taken along, since nothing is calculated."""
BESIDE_INFINITY = {
    aten.eq.Scalar: operator.eq, aten.ne.Scalar: operator.ne, aten.lt.Scalar: operator.lt, aten.le.Scalar: operator.le,
    aten.gt.Scalar: operator.gt, aten.ge.Scalar: operator.ge,
}  # fmt: skip
"""Comparisons whose answer is the same for every finite number, where the other one is infinite."""
BY_SHAPE = {
    "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full", "rand_like", "randn_like",
    "randint_like",
}  # fmt: skip
"""What these give depends on the shape of their input only."""
UNWRITTEN = {
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted", "resize", "resize_",
    "resize_as", "resize_as_", "_resize_output", "_resize_output_",
}  # fmt: skip
"""Uninitialised memory, in whole or in part: no values."""
OVERWRITES = {
    "fill_", "zero_", "copy_", "random_", "uniform_", "normal_", "bernoulli_", "exponential_", "geometric_",
    "log_normal_", "cauchy_",
}  # fmt: skip
"""In-place operators that do not look at what they write over."""
UNDECLARED = {"native_batch_norm": 5, "cudnn_batch_norm": 5, "miopen_batch_norm": 5}
"""Operators that update the running statistics (arguments 3 and 4) without saying so, and the asking argument."""


@dataclass(slots=True)
class ComputePlan:
    """How an operator would run on known values: its arguments, and why they are an assumption."""

    args: Arguments
    kwargs: Keywords
    assumed: str
    ran: bool = False
    """Whether it ran to its end."""


class Properties:
    """What is asked of an operator at each call, found out once."""

    __slots__ = (
        "by_shape", "dynamic", "is_mutable", "is_out", "name", "overwrites", "random", "status", "unwritten",
        "writes_lists", "written",
    )  # fmt: skip

    def __init__(self, func: OpOverload) -> None:
        schema = func._schema
        self.name = schema.name.partition("::")[2]
        self.random = torch.Tag.nondeterministic_seeded in func.tags
        self.dynamic = torch.Tag.dynamic_output_shape in func.tags or torch.Tag.data_dependent_output in func.tags
        self.by_shape = self.name in BY_SHAPE
        self.unwritten = self.name in UNWRITTEN
        self.is_out = any(a.is_out for a in schema.arguments)
        self.overwrites = self.name in OVERWRITES or self.is_out
        self.is_mutable = schema.is_mutable
        self.status = next((index for index, one in enumerate(schema.returns) if one.name == "info"), None)
        self.writes_lists = self.is_mutable and not self.is_out and self.name.startswith("_foreach_")
        self.written = [
            (index, a.name)
            for index, a in enumerate(schema.arguments)
            if a.alias_info is not None and a.alias_info.is_write
        ]


_properties: dict[OpOverload, Properties] = {}


def properties_of(func: OpOverload) -> Properties:
    """The same, remembered."""
    found = _properties.get(func)
    if found is None:
        found = _properties[func] = Properties(func)
    return found


def plan_for(func: OpOverload, args: Arguments, kwargs: Keywords) -> ComputePlan | None:
    """The operator's arguments as known values; None when some are unknown."""
    of = properties_of(func)
    if of.unwritten:
        return None
    written = list(written_by(func, args, kwargs)) if of.overwrites else []
    given = list(tensors_in((args, kwargs)))
    read = [tensor for tensor in given if _is_read(tensor, given, written)]
    for tensor in given:
        is_needed = any(tensor is other for other in read) or not covers_storage(tensor)
        if not is_known(tensor) and not of.by_shape and is_needed:
            return None
    reasons = [why for tensor in read if (why := why_assumed(tensor))]
    assumed = DRAWN if of.random else next(iter(reasons), "")
    plain = {name: value for name, value in kwargs.items() if name not in ("device", "pin_memory")}
    with _disable_current_modes(), torch.no_grad():
        swapped, named = cast("Arguments", _swap(args)), cast("Keywords", _swap(plain))
        return ComputePlan(swapped, named, assumed)


def _is_read(tensor: torch.Tensor, given: list[torch.Tensor], overwritten: list[torch.Tensor]) -> bool:
    """Whether an operator looks at a tensor's values: not at what it only writes over, unless given twice."""
    return not any(tensor is w for w in overwritten) or sum(tensor is other for other in given) > 1


def _swap(value: object) -> object:
    """The known values in the place of tensors; where only the shape counts, memory of that shape."""
    if isinstance(value, torch.Tensor):
        known = shadow_of(value)
        if known is None:
            known = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="cpu")
        return known
    if isinstance(value, (list, tuple)):
        return type(value)(_swap(item) for item in value)
    if isinstance(value, dict):
        return {name: _swap(item) for name, item in value.items()}
    return value


def compute(func: OpOverload, plan: ComputePlan | None) -> object:
    """The result on known values; None when there is none."""
    if plan is None:
        return None
    try:
        with _disable_current_modes(), torch.no_grad():
            result = func(*plan.args, **plan.kwargs)
        plan.ran = True
        return result
    except Exception:  # whatever goes wrong beside the prediction must not stop it
        return None


def is_small(func: OpOverload, result: object, args: Arguments, kwargs: Keywords) -> bool:
    """Whether what the operator makes or changes is worth computing."""
    of = properties_of(func)
    if func is aten._to_copy.default:
        return cast("torch.Tensor", result).numel() <= MOST_COPIED
    most_floats = MOST_MOVED if of.name in MOVES else MOST_FLOATS
    if of.random:
        most_floats = CHOOSE.get(of.name, MOST_DRAWN_FLOATS)
    touched = [*tensors_in(result), *written_by(func, args, kwargs)] if of.is_mutable else list(tensors_in(result))
    if of.random and any(tensor.requires_grad for tensor in touched):
        return False
    return all(_is_small(tensor, most_floats) or is_known(tensor) for tensor in touched)


def _is_small(tensor: torch.Tensor, most_floats: int = MOST_FLOATS) -> bool:
    if tensor.layout is not torch.strided:
        return False
    is_float = tensor.dtype.is_floating_point or tensor.dtype.is_complex
    return tensor.numel() <= (most_floats if is_float else MOST_INTEGERS)


def small_copy(tensor: torch.Tensor) -> torch.Tensor | None:
    """The values of a small real tensor."""
    if not _is_small(tensor):
        return None
    with _disable_current_modes():
        return tensor.detach().cpu().clone()


def attach(
    func: OpOverload, args: Arguments, kwargs: Keywords, result: object, real: object, plan: ComputePlan
) -> None:
    """Remember what an operator made and changed."""
    for fake, value in zip(tensors_in(result), tensors_in(real), strict=False):
        fits = isinstance(fake, FakeTensor) and fake.shape == value.shape and fake.dtype is value.dtype
        if fits and not is_known(fake):
            keep_shadow(fake, value, plan.assumed)
    overwrites = properties_of(func).overwrites
    written = zip(written_by(func, args, kwargs), written_by(func, plan.args, plan.kwargs), strict=False)
    for fake, value in written:
        if isinstance(fake, FakeTensor) and overwrites and fake.shape == value.shape and covers_storage(fake):
            keep_shadow(fake, value, plan.assumed)
        elif not is_known(fake):
            keep_shadow(fake, None)
        else:
            assume(fake, plan.assumed)


def written_by(func: OpOverload, args: Arguments, kwargs: Keywords) -> Iterator[torch.Tensor]:
    """The tensors that an operator writes to."""
    of = properties_of(func)
    for index, name in of.written:
        yield from tensors_in(args[index] if index < len(args) else kwargs.get(name))
    asking = UNDECLARED.get(of.name)
    if asking is not None and len(args) > asking and args[asking]:
        yield from tensors_in(args[3:5])


def forget_written(func: OpOverload, args: Arguments, kwargs: Keywords, parts: FilledInParts) -> None:
    """A storage that was written with unknown values, or in part, has no known values any more, or not yet."""
    for tensor in written_by(func, args, kwargs):
        if isinstance(tensor, FakeTensor):
            keep_shadow(tensor, None)
            parts.follow(func, args, kwargs, tensor)


def begin_parts(func: OpOverload, result: object, parts: FilledInParts) -> None:
    """An empty tensor that is small may be filled part by part."""
    if properties_of(func).unwritten and isinstance(result, torch.Tensor) and _is_small(result):
        parts.begin(result)


def finite_answer(func: OpOverload, args: Arguments, result: object) -> None:
    """Unknown numbers are neither infinite nor 'not a number', a few of them equal no given one (`std == 0`), and
    unknown matrices can be factorised: what asks for that is answered so, as an assumption."""
    status = properties_of(func).status
    if status is not None and isinstance(result, tuple):
        _keep_everywhere(result[status], 0, FACTORISED)
    answer, why = _finite_answer(func, args), FINITE
    if answer is None and func in (aten.eq.Scalar, aten.ne.Scalar) and _is_measured(tensor_at(args, 0)):
        answer, why = func is aten.ne.Scalar, UNEQUAL
    if answer is not None:
        _keep_everywhere(result, answer, why)


def _keep_everywhere(result: object, answer: float, why: str) -> None:
    """Keep one answer for all elements of a result, as an assumption."""
    if isinstance(result, FakeTensor) and result.numel() <= MOST_CHECKED:
        with _disable_current_modes():
            values = torch.full(tuple(result.shape), answer, dtype=result.dtype)
        keep_shadow(result, values, why)


def _is_measured(tensor: torch.Tensor) -> bool:
    """Whether these are a few unknown fractions, as losses and statistics are: too few to decide a size by a mask."""
    return tensor.dtype.is_floating_point and tensor.numel() <= MOST_DRAWN_FLOATS and not is_known(tensor)


def _finite_answer(func: OpOverload, args: Arguments) -> bool | None:
    if func in (aten.isnan.default, aten.isinf.default, aten.isposinf.default, aten.isneginf.default):
        return False
    if func in (aten.eq.Tensor, aten.ne.Tensor) and args[0] is args[1] and tensor_at(args, 0).dtype.is_floating_point:
        return func is aten.eq.Tensor
    if func in BESIDE_INFINITY and isinstance(args[1], float) and abs(args[1]) == float("inf"):
        return BESIDE_INFINITY[func](0.0, args[1])
    return None
