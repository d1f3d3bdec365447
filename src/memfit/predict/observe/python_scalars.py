"""Bytes that Python numbers take as tensors inside a CPU operator.

`tensor / 3.0` reaches the kernel as a tensor of one double (8 bytes), which is then cast to the other operand's
type. This matters only where a prediction is to be equal to the byte. Read off the allocator's events of torch
2.13.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch._ops import OpOverload

from memfit.predict.observe.arguments import Arguments, tensor_at, tensors_at

_LIST_NAMES = ("_foreach_add", "_foreach_sub", "_foreach_mul", "_foreach_div")
_DIVIDES_AT_THE_END = ("aten::mean",)


@dataclass(frozen=True, slots=True)
class NumberRule:
    """Where one operator may be given a number for a tensor."""

    places: tuple[int, ...]
    is_list: bool
    divides: bool

    @classmethod
    def of(cls, func: OpOverload) -> NumberRule:
        """Read the operator's declaration."""
        schema = func._schema
        name = schema.name.removeprefix("aten::")
        is_list = name.startswith(_LIST_NAMES) and "Scalar" in func._overloadname
        places = tuple(i for i, argument in enumerate(schema.arguments) if str(argument.type) == "Tensor")
        return cls(places, is_list, schema.name in _DIVIDES_AT_THE_END)

    def num_bytes(self, args: Arguments) -> int:
        """Bytes of the wrapped numbers of this call; 0 when there are none or the tensors are elsewhere."""
        if self.is_list:
            tensors, number = (
                tensors_at(args, 0),
                args[1][0] if isinstance(args[1], (list, tuple)) and args[1] else args[1],
            )
            return _wrapped_bytes(number, tensors[0]) if tensors and isinstance(number, (int, float)) else 0
        if self.divides:
            return _wrapped_bytes(1, tensor_at(args, 0))
        given = [args[i] for i in self.places if i < len(args)]
        numbers = [value for value in given if isinstance(value, (int, float))]
        if not numbers:
            return 0
        tensor = next((value for value in given if isinstance(value, torch.Tensor)), None)
        return 0 if tensor is None else sum(_wrapped_bytes(number, tensor) for number in numbers)


def _wrapped_bytes(number: float, tensor: torch.Tensor) -> int:
    """A double, an int64 or a bool, and its copy in the other operand's type when that differs."""
    if tensor.device.type != "cpu":
        return 0
    own = 1 if isinstance(number, bool) else 8
    wide = torch.float64 if isinstance(number, float) else torch.int64
    return own if tensor.dtype is wide else own + tensor.element_size()
