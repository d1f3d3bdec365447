"""Counts floating-point operations and bytes moved, operator by operator, for an estimate of time."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch._ops import OpOverload
from torch.utils.flop_counter import flop_registry

from memfit.predict.observe.arguments import Arguments, Keywords

HALF = (torch.float16, torch.bfloat16)


class WorkCounter:
    """Sums up floating-point operations of products and bytes of everything else, since the last reset."""

    def __init__(self) -> None:
        self._rule: dict[object, Any] = {}
        self.reset()

    def reset(self) -> None:
        """Begin a new step."""
        self.half_flops = self.single_flops = self.moved_bytes = 0.0
        self.num_calls = 0

    def note(self, func: object, args: Arguments, kwargs: Keywords, result: object, made_bytes: int) -> None:
        """Count one operator; an elementwise one reads about twice what it writes."""
        self.num_calls += 1
        rule = self._rule.get(func, self)
        if rule is self:
            rule = self._rule[func] = flop_registry.get(cast("OpOverload", func)._overloadpacket)
        if rule is None:
            self.moved_bytes += 3.0 * made_bytes
            return
        try:
            flops = float(rule(*args, **kwargs, out_val=result))
        except Exception:  # a rule that does not know this form of call counts nothing
            return
        tensor = next((value for value in args if isinstance(value, torch.Tensor)), None)
        if tensor is not None and tensor.dtype in HALF:
            self.half_flops += flops
        else:
            self.single_flops += flops
