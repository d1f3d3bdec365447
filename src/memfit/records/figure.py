"""A number together with its source (measured, predicted, assumed), its bounds, or why it is unknown."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

Source = Literal["measured", "predicted", "assumed"]


class Figure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One number with its unit, its source and, where it is unknown, the reason."""

    value: float | None
    unit: Literal["bytes", "seconds", "joules", "count", "ratio", "watts"]
    source: Source | None = None
    method: str = ""
    """How it was had, in a few words: 'VmHWM at exit', 'largest of 512 samples'."""
    low: float | None = None
    high: float | None = None
    """Bounds; a value outside of them moves the bound, so that low <= value <= high holds for every figure."""
    reason: str = ""
    """Why the value is unknown, and what would make it known."""

    def __post_init__(self) -> None:
        if self.value is None and not self.reason:
            raise ValueError("an unknown figure needs a reason")
        if self.value is not None and self.source is None:
            raise ValueError("a known figure needs its source")
        self._keep_in_order()

    def _keep_in_order(self) -> None:
        """Bounds enclose the value and never change places, whoever made them: old records hold some that do not."""
        if self.low is None and self.high is None:  # most figures: a study of many thousand trials holds seven each
            if self.value is not None and self.value != self.value:
                raise ValueError("a figure holds something that is not a number")
            return
        known = [number for number in (self.low, self.value, self.high) if number is not None]
        if any(math.isnan(number) for number in known):
            raise ValueError("a figure holds something that is not a number")
        if self.low is not None and self.low != min(known):
            msgspec.structs.force_setattr(self, "low", min(known))
        if self.high is not None and self.high != max(known):
            msgspec.structs.force_setattr(self, "high", max(known))


def measured(value: float, unit: str, method: str, *, low: float | None = None, high: float | None = None) -> Figure:
    """A figure that was read from a counter."""
    return Figure(value=value, unit=unit, source="measured", method=method, low=low, high=high)  # pyright: ignore[reportArgumentType]


def unknown(unit: str, reason: str) -> Figure:
    """A figure that could not be had, and why."""
    return Figure(value=None, unit=unit, reason=reason)  # pyright: ignore[reportArgumentType]
