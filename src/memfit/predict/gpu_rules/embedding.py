"""Bytes of the embedding backward on a GPU that sorts many indices; pure.

Up to 3,072 words in a batch are added where they belong. More are sorted first, with their places; equal words become
segments, segments are cut into parts of ten, each part gets a row of partial sums. Read in torch 2.13; what the
sorting library takes inside was found from its requests on the phantom GPU (A100), where all of this was compared.
"""

from __future__ import annotations

from collections.abc import Sequence

from memfit.predict.gpu_rules.packed import packed_bytes, up

MOST_UNSORTED, ROWS_PER_PART, WARP = 3072, 10, 32
SORT_TILE, UNIQUE_TILE, SCAN_TILE = 3840, 640, 1024
"""Elements that one block of the library's kernels works on."""
DIGIT_VALUES, DIGIT_BITS = 256, 8
AHEAD = 32
"""Entries of a table of tiles before the first."""


def embedding_course(
    num_tokens: int, num_words: int, width: int, *, index_bytes: int, sum_bytes: int, is_bag: bool = False
) -> Sequence[int | None]:
    """Requests of the call in order: None is its result, n > 0 something beside it, -1 - k frees the k-th of those.

    Bags are sorted however few their words are.
    """
    if num_tokens <= (0 if is_bag else MOST_UNSORTED):
        return [None]
    indices = num_tokens * index_bytes
    segments = min(num_tokens, num_words)
    parts = num_tokens // ROWS_PER_PART + segments
    rows = parts * up(width, WARP) * WARP * sum_bytes
    sorting = [indices, indices, indices, sort_bytes(num_tokens, num_words, index_bytes), -1 - 2, -1 - 3]
    finding = [indices, 8, indices, unique_bytes(num_tokens), -1 - 7, -1 - 6]
    cutting = [segments * index_bytes, segments * index_bytes, scan_bytes(segments), -1 - 10, 8, parts * index_bytes]
    left = [-1 - number for number in (13, 12, 11, 9, 8, 5, 4, 1, 0)]
    return [*sorting, None, *finding, *cutting, rows, *left]


def sort_bytes(num_tokens: int, num_words: int, index_bytes: int) -> int:
    """Second copies of words and places, counts of digits for each pass, and a table of tiles."""
    passes = up(max(1, num_words.bit_length()), DIGIT_BITS)
    counts = passes * DIGIT_VALUES * 8
    table = up(num_tokens, SORT_TILE) * DIGIT_VALUES * 4
    return packed_bytes(2 * [num_tokens * index_bytes] + [counts, table, passes * 4])


def unique_bytes(num_tokens: int) -> int:
    """A table of tiles, and two counters."""
    return packed_bytes([(AHEAD + up(num_tokens, UNIQUE_TILE)) * 8, 1, 1])


def scan_bytes(num_segments: int) -> int:
    """A table of tiles with sums, and a counter."""
    return packed_bytes([(AHEAD + up(num_segments, SCAN_TILE)) * 16, 1])
