"""Fake mode that runs only the operators without a fake kernel that the user allowed.

Read in torch 2.13: the mode asks `can_run_unsafe_fallback` for an operator without a kernel for fake tensors, and a
refusal becomes `UnsupportedOperatorException`. An operator that is allowed runs on zeros of the true sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch.utils._pytree as pytree
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, run_fallback_kernel

from memfit.predict.real_operators import is_allowed


class ChoosyFakeMode(FakeTensorMode):
    """A fake mode whose fallbacks are chosen by name."""

    def __init__(self, allow_real: tuple[str, ...] = ()) -> None:
        super().__init__(allow_fallback_kernels=False, allow_non_fake_inputs=True)
        self._allow_real = allow_real

    @property
    def avoid_device_init(self) -> bool:
        """Known constants (a batch norm's counter) are moved to a GPU as fakes too: no kernel runs on a device."""
        return True

    def can_run_unsafe_fallback(self, func: OpOverload) -> bool:
        """Whether the user allowed this very operator."""
        return is_allowed(func.name(), self._allow_real)

    def _dispatch_impl(
        self, func: OpOverload, types: Sequence[type], args: Sequence[object], kwargs: Mapping[str, object]
    ) -> FakeTensor | None:
        """What is allowed runs, also where a fake kernel is only announced, as `torch.library.custom_op` does."""
        if not self._allow_real or not is_allowed(func.name(), self._allow_real):
            return super()._dispatch_impl(func, types, args, kwargs)
        flat_args, layout = pytree.tree_flatten((args, kwargs))
        refusal = RuntimeError(f"{func} changes the shape of its input and cannot be run in its place")
        return run_fallback_kernel(self, func, flat_args, layout, refusal)
