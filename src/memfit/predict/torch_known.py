"""Which values of a fake tensor are known? Those of its shadow, a small real tensor that is kept beside it."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes


def shadow_of(tensor: Any) -> torch.Tensor | None:
    """The real values beside a fake tensor, where they are kept."""
    return getattr(tensor, "_memfit_shadow", None)


def keep_shadow(fake: Any, values: torch.Tensor | None) -> None:
    """Keep these values beside a fake tensor, or forget those it had."""
    fake._memfit_shadow = values


def integers_of(tensor: Any) -> list[int]:
    """The values of a tensor of integers that is real or has a shadow."""
    with _disable_current_modes():
        return (tensor if (kept := shadow_of(tensor)) is None else kept).tolist()
