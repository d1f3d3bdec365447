"""Bytes of packing a padded batch (`pack_padded_sequence`): which rows are copied; pure.

A packed batch holds, place after place, the rows of all texts that are that long. torch cuts the padded batch into
blocks of places with equally many texts, copies each block that does not lie in one piece, and joins them (read in
torch 2.13).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence


def blocks_of(batch_sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Runs of places with equally many texts: number of places, number of texts."""
    return [(len(list(run)), texts) for texts, run in itertools.groupby(batch_sizes)]


def copied_bytes(
    shape: Sequence[int], strides: Sequence[int], batch_sizes: Sequence[int], item_bytes: int
) -> tuple[int, ...]:
    """The blocks that are copied before they are joined; shape and strides have the places first, then the texts."""
    rest = tuple(shape[2:])
    copies = [
        item_bytes * math.prod((places, texts, *rest))
        for places, texts in blocks_of(batch_sizes)
        if not in_one_piece((places, texts, *rest), strides)
    ]
    return tuple(copies)


def in_one_piece(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether elements lie one after the other; a dimension of length one may have any stride."""
    expected = 1
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length != 1 and stride != expected:
            return False
        expected *= length
    return True
