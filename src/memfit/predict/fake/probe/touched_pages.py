"""Resident pages of a block of memory: how much of it has ever been written.

Only blocks that malloc maps on their own start untouched, so its mmap threshold is pinned first (Linux with glibc;
elsewhere the answer is that all of it was touched).
"""

from __future__ import annotations

import ctypes
import mmap

M_MMAP_THRESHOLD, M_TRIM_THRESHOLD = -3, -1
PINNED_BYTES = 64 * 1024


def pin_mmap_threshold() -> bool:
    """From now on every larger block of this process is a mapping of its own; says whether that worked."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(mallopt(name, PINNED_BYTES) for name in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD))


def touched_bytes(address: int, num_bytes: int) -> int:
    """The bytes of a block that lie in pages the kernel holds; a small block counts as touched."""
    mincore = getattr(ctypes.CDLL(None, use_errno=True), "mincore", None)
    if mincore is None or num_bytes <= PINNED_BYTES:
        return num_bytes
    start = address // mmap.PAGESIZE * mmap.PAGESIZE
    num_pages = -(-(address + num_bytes - start) // mmap.PAGESIZE)
    held = (ctypes.c_ubyte * num_pages)()
    if mincore(ctypes.c_void_p(start), ctypes.c_size_t(num_pages * mmap.PAGESIZE), held) != 0:
        return num_bytes
    return min(num_bytes, sum(page & 1 for page in bytes(held)) * mmap.PAGESIZE)
