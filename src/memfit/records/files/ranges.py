"""Types for numbers in records read from disk: values beyond them mean damage.

A line with a number out of its range is left out like any other line that cannot be read, so that nothing behind the
reader meets a size of 2^64 bytes or a negative time.
"""

from __future__ import annotations

import math
from typing import Annotated

import msgspec

MOST_BYTES = 1 << 50
"""1 PiB, above the memory of any machine."""
LONGEST_RUN_SECONDS = 10 * 366 * 24 * 3600
LONGEST_RUN_US = LONGEST_RUN_SECONDS * 10**6

Bytes = Annotated[int, msgspec.Meta(ge=0, le=MOST_BYTES)]
AnyBytes = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
"""A limit: what a user may write, or what a control group without one answers (nearly 2^63)."""
SignedBytes = Annotated[int, msgspec.Meta(ge=-MOST_BYTES, le=MOST_BYTES)]
"""Growth and differences may be negative."""
Micros = Annotated[int, msgspec.Meta(ge=0, le=LONGEST_RUN_US)]
Nanos = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
"""The monotonic clock."""
Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]
Index = Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)]
"""Of a process in its record; the samples have 16 bits for it."""
Pid = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
Code = Annotated[int, msgspec.Meta(ge=-(1 << 32), lt=1 << 32)]
"""Exit codes and signals."""
Number = Annotated[float, msgspec.Meta(ge=-1e18, le=1e18)]
"""Seconds, joules, watts."""
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e12)]


def is_plausible(value: object, name: str = "") -> bool:
    """Whether every number in a record read from disk is one that a computer can have: sizes, counts and times."""
    if isinstance(value, msgspec.Struct):
        return all(is_plausible(getattr(value, field), field) for field in value.__struct_fields__)
    if isinstance(value, (tuple, list)):
        return all(is_plausible(item, name) for item in value)
    if isinstance(value, float):
        return math.isfinite(value) and abs(value) <= 1e18
    if isinstance(value, int):
        return 0 <= value < 1 << 62 if name.endswith("_ns") else abs(value) <= MOST_BYTES
    return True
