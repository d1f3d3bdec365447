"""To what size does the CUDA caching allocator round a request?

Up to a multiple of 512 bytes. With `roundup_power2_divisions`, a request that is large enough goes up to the next of
so many equal steps between two powers of two instead, so that requests of nearly the same size can share a block.
"""

from __future__ import annotations

from memfit.predict.allocator.settings import NUM_ROUNDUP_INTERVALS, AllocatorSettings

MIN_BLOCK_BYTES = 512
_FIRST_INTERVAL_BITS = 20


def round_size(num_bytes: int, settings: AllocatorSettings) -> int:
    """The size of the block that is looked for."""
    if num_bytes < MIN_BLOCK_BYTES:
        return MIN_BLOCK_BYTES
    interval = min(max(num_bytes.bit_length() - 1 - _FIRST_INTERVAL_BITS, 0), NUM_ROUNDUP_INTERVALS - 1)
    divisions = settings.roundup_divisions[interval]
    if divisions > 1 and num_bytes > MIN_BLOCK_BYTES * divisions:
        return _next_step(num_bytes, divisions)
    return -(-num_bytes // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES


def _next_step(num_bytes: int, divisions: int) -> int:
    """The next of `divisions` equal steps above the power of two below; a power of two stays as it is."""
    floor = 1 << (num_bytes.bit_length() - 1)
    step = floor // divisions
    return -(-num_bytes // step) * step if num_bytes != floor else num_bytes
