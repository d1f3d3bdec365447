"""How is a number kept together with where it came from?"""

from __future__ import annotations

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
    reason: str = ""
    """Why the value is unknown, and what would make it known."""

    def __post_init__(self) -> None:
        if self.value is None and not self.reason:
            raise ValueError("an unknown figure needs a reason")
        if self.value is not None and self.source is None:
            raise ValueError("a known figure needs its source")


def measured(value: float, unit: str, method: str, *, low: float | None = None, high: float | None = None) -> Figure:
    """A figure that was read from a counter."""
    return Figure(value=value, unit=unit, source="measured", method=method, low=low, high=high)  # pyright: ignore[reportArgumentType]


def unknown(unit: str, reason: str) -> Figure:
    """A figure that could not be had, and why."""
    return Figure(value=None, unit=unit, reason=reason)  # pyright: ignore[reportArgumentType]
