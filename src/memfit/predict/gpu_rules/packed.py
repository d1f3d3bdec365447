"""Packing of scratch memory by the sorting library of GPUs: several parts in one request; pure."""

from __future__ import annotations

from collections.abc import Sequence

ALIGNED_BYTES = 256


def packed_bytes(parts: Sequence[int]) -> int:
    """Parts behind each other, each aligned, and room to align the first."""
    return sum(up(part, ALIGNED_BYTES) * ALIGNED_BYTES for part in parts) + ALIGNED_BYTES - 1


def up(number: int, by: int) -> int:
    """The quotient, rounded up."""
    return -(-number // by)
