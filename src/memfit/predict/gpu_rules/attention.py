"""Bytes of torch's fused attention kernels besides their results, by the kernels' own rules; pure.

Flash attention spreads few long rows over parts of the keys and joins them in single precision; its backward adds up
the query's gradient in single precision, and expands keys and values that several heads share. Memory-efficient
attention sums gradient times output first (in its kernel for half precision), and keeps tiles of gradients in a
workspace, whose tile depends on the size of a head and on the shared memory of the GPU. Read in torch 2.13 and 2.14;
tests/predict compares with sizes that torch asked for on the phantom GPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

SINGLE = 4
"""Bytes of a number in single precision, in which all of this is added up."""
LARGE_SHARED = ((8, 0), (9, 0), (10, 0))
"""GPUs whose blocks may take 163 KiB of shared memory and more; others have 64 or 99."""
MOST_SPLITS = 128
TILE_HEAD_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """The sizes of one call; `head_size` is the larger of those of keys and values."""

    batch: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    head_size: int
    is_half: bool
    dropout: bool = False

    @property
    def rows(self) -> int:
        """Queries of all heads and texts."""
        return self.batch * self.heads * self.queries


def flash_forward_scratch(call: Attention, num_processors: int) -> list[int]:
    """Log-sums and outputs of the parts, when the keys are divided."""
    parts = flash_parts(call, num_processors)
    if parts == 1:
        return []
    return [SINGLE * parts * call.rows, SINGLE * parts * call.rows * _flash_head(call.head_size)]


def flash_parts(call: Attention, num_processors: int) -> int:
    """Into how many parts the keys are divided: the fewest that keep the GPU almost as busy as possible."""
    width = 256 if call.head_size <= 64 else 128 if call.head_size <= 128 else 64
    tiles, columns = call.batch * call.heads * _up(call.queries, 64), _up(call.keys, width)
    slots = 2 * num_processors
    if call.dropout or tiles >= 0.8 * slots:
        return 1
    busy: dict[int, float] = {}
    for parts in range(1, min(MOST_SPLITS, slots, columns) + 1):
        if parts == 1 or _up(columns, parts) != _up(columns, parts - 1):
            waves = tiles * parts / slots
            busy[parts] = waves / math.ceil(waves)
    return min(parts for parts, share in busy.items() if share >= 0.85 * max(busy.values()))


def flash_backward_scratch(call: Attention) -> list[int]:
    """Row sums, the query's gradient in single precision, and gradients of shared heads before they are added."""
    padded = call.batch * call.heads * _round(call.queries, 128)
    found = [SINGLE * padded, SINGLE * padded * _flash_head(call.head_size)]
    if call.key_heads != call.heads:
        found += [2 * call.batch * call.keys * call.heads * call.head_size] * 2
    return found


def _flash_head(head_size: int) -> int:
    return _round(head_size, 32 if head_size <= 128 else 64)


def efficient_forward_scratch(call: Attention) -> int:
    """The output in single precision, for half-precision heads too large for the registers."""
    return SINGLE * call.rows * call.head_size if call.is_half and call.head_size > 128 else 0


def efficient_backward_workspace(call: Attention, capability: tuple[int, int]) -> int:
    """Tiles of the query's gradient; those of keys and values too where the kernel cannot keep them in registers."""
    down, across, in_registers = _tile(call, capability)
    tiles = _up(call.queries, down) * _up(call.head_size, across)
    count = tiles * (TILE_HEAD_BYTES + SINGLE * down * across) // SINGLE
    if call.is_half and not in_registers:
        parts = _up(call.keys, across)
        if call.batch * call.heads >= 256 and call.keys <= 2 * across:
            parts = 1
        parts = max(1, min(parts, 200 // (call.batch * call.heads)))
        count += 2 * parts * across * _round(call.head_size, down)
    return SINGLE * call.batch * call.heads * _round(count, 4)


def _tile(call: Attention, capability: tuple[int, int]) -> tuple[int, int, bool]:
    """Queries and columns of a tile, and whether gradients of keys and values stay in registers."""
    large, size = capability in LARGE_SHARED, call.head_size
    if size <= 64:
        return 64, 64, True
    if not call.is_half:
        return (128, 64, False) if large else (64, 64, False)
    if size > 128:
        return 128, 64, False
    if large:
        return 128, 128, True
    fits = capability < (8, 0) or (size <= 96 and not call.dropout)
    return (128, 64, True) if fits else (64, 64, False)


def _up(number: int, by: int) -> int:
    return -(-number // by)


def _round(number: int, by: int) -> int:
    return _up(number, by) * by
