"""Scratch bytes of sorts and of the search for the largest elements on a GPU; pure.

Read in torch 2.13 (Sort.cu, TensorTopK.cu); what the sorting library takes inside was found from its requests on the
phantom GPU (A100, torch 2.14), where all of this was compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from memfit.predict.gpu_rules.packed import packed_bytes, up

MOST_SMALL = 4096
"""The longest slices that are sorted by a kernel of torch's own."""
MANY_SEGMENTS, LONG_SEGMENT = 128, 1_000_000
"""From these on, longer slices are sorted in other ways."""
PLACE_BYTES = 8
DIGIT_VALUES, DIGIT_BITS = 256, 8
MANY_SLICES = ((20, 20000), (40, 10000), (80, 8000), (199, 5000), (799, 3000), (4000, 800))
"""Up to how many slices the digits of slices from which length on are counted by several blocks."""
LONG_OF_MANY = 400
THREADS, REGISTERS_PER_THREAD, REGISTERS = 256, 40, 65536
LEAST_ITEMS, MOST_ITEMS = 4, 64
SCAN_BYTES = 1279
"""Of the library, for the sums over blocks of one pass."""


def sort_scratch(num_slices: int, length: int, *, item_bytes: int) -> Sequence[int]:
    """Requests beside values and places: n > 0 allocates, -1 - k frees the k-th."""
    if num_slices * length == 0:
        return ()
    if length <= MOST_SMALL:
        return (PLACE_BYTES * length,) if length > 1 else ()
    count = num_slices * length
    places, pairs = PLACE_BYTES * count, _pairs_bytes(count, item_bytes)
    if num_slices == 1:
        return (places, pairs)
    # all at once by their values, then by the slices they belong to
    passes = up(num_slices.bit_length(), DIGIT_BITS)
    table = up(count, _tile(PLACE_BYTES)) * DIGIT_VALUES * 4
    by_slice = packed_bytes([passes * DIGIT_VALUES * 8, table, passes * 4])
    return (places, places, item_bytes * count, pairs, -1 - 3, -1 - 2, by_slice)


def is_sort_known(num_slices: int, length: int, *, item_bytes: int) -> bool:
    """Whether the way such slices are sorted was compared."""
    if length <= MOST_SMALL:
        return True
    return item_bytes >= 4 and (num_slices == 1 or (num_slices < MANY_SEGMENTS and length < LONG_SEGMENT))


def _pairs_bytes(count: int, item_bytes: int) -> int:
    """Second copies of values and places, counts of digits for each pass, and a table of tiles."""
    passes = item_bytes * 8 // DIGIT_BITS
    table = up(count, _tile(item_bytes)) * DIGIT_VALUES * 4
    return packed_bytes([count * item_bytes, count * PLACE_BYTES, passes * DIGIT_VALUES * 8, table, passes * 4])


def _tile(item_bytes: int) -> int:
    return 3840 if item_bytes == 8 else 3072


def shuffle_scratch(count: int, *, item_bytes: int) -> Sequence[int]:
    """Requests of a random permutation beside its result: a state, keys, numbers, sorted keys, and the sort's own."""
    if count < 2:
        return ()
    bits = min(64, math.ceil(math.log2(count - (6 * count * count + 1) / (12 * math.log(0.9)))))
    key_bytes = 4 if bits <= 32 else 8
    passes = up(bits, DIGIT_BITS)
    table = up(count, _tile(key_bytes)) * DIGIT_VALUES * 4
    sorting = packed_bytes([count * key_bytes, count * item_bytes, passes * DIGIT_VALUES * 8, table, passes * 4])
    return (8, -1, count * item_bytes, count * key_bytes, count * key_bytes, sorting)


def top_scratch(num_slices: int, length: int, *, item_bytes: int, num_processors: int) -> Sequence[int]:
    """Requests beside values and places; none where each slice is searched by one block."""
    if not _by_several_blocks(num_slices, length):
        return ()
    blocks = num_processors * (REGISTERS // (REGISTERS_PER_THREAD * THREADS))
    items = min(max(up(num_slices * length, blocks * THREADS), LEAST_ITEMS), MOST_ITEMS)
    num_parts = num_slices * up(length, items * THREADS)
    found = (item_bytes * num_slices, 8 * num_slices, 8 * num_slices)
    counts = (2 * DIGIT_VALUES * num_parts, 4 * DIGIT_VALUES * num_slices, 4 * num_parts, 4 * num_parts)
    return (*found, *counts, SCAN_BYTES, -1 - 7, SCAN_BYTES, -1 - 8)


def _by_several_blocks(num_slices: int, length: int) -> bool:
    for most_slices, least_length in MANY_SLICES:
        if num_slices <= most_slices:
            return length >= least_length
    return length >= LONG_OF_MANY
