"""Sizes of the C heap (in use, kept free) and of Python's own heap in this process.

glibc's `mallinfo2` answers in a third of a microsecond; Python's allocator prints its statistics into a stream of
the C library, which takes about 40 us. Where one of them does not exist (another libc, another Python), the answer
is None.

Both count addresses, not pages. How much of a stretch of addresses is in memory comes from `mincore`, for about 1 us
per MiB.
"""

import ctypes
import os
import re

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class _MallInfo(ctypes.Structure):
    """The layout of glibc's struct mallinfo2."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


def _c_library():
    try:
        library = ctypes.CDLL(None)
        library.mallinfo2.restype = _MallInfo
        library.sbrk.restype, library.sbrk.argtypes = ctypes.c_void_p, [ctypes.c_ssize_t]
        library.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
        return library
    except (OSError, AttributeError):
        return None


_LIBRARY = _c_library()
_ARENAS = re.compile(rb"^(\d+) arenas \* (\d+) bytes/arena", re.MULTILINE)
_IN_USE = re.compile(rb"^# bytes in allocated blocks\s*=\s*([\d,]+)", re.MULTILINE)


def read_malloc():
    """(bytes in use with mapped blocks, bytes free but kept) of the C heap, or None."""
    if _LIBRARY is None:
        return None
    info = _LIBRARY.mallinfo2()
    return info.uordblks + info.hblkhd, info.fordblks


def read_python_heap():
    """(bytes in arenas, bytes of them in use) of Python's small-object heap, or None."""
    try:
        text = _debug_malloc_stats()
    except (OSError, AttributeError):
        return None
    arenas, in_use = _ARENAS.search(text), _IN_USE.search(text)
    if not arenas or not in_use:
        return None
    return int(arenas.group(1)) * int(arenas.group(2)), int(in_use.group(1).replace(b",", b""))


def _debug_malloc_stats():
    """What `sys._debugmallocstats` prints, without printing it."""
    if _LIBRARY is None:
        return b""
    buffer, size = ctypes.c_void_p(), ctypes.c_size_t()
    _LIBRARY.open_memstream.restype = ctypes.c_void_p
    stream = ctypes.c_void_p(_LIBRARY.open_memstream(ctypes.byref(buffer), ctypes.byref(size)))
    if not stream:
        return b""
    ctypes.pythonapi._PyObject_DebugMallocStats(stream)
    _LIBRARY.fclose(stream)
    text = ctypes.string_at(buffer, size.value)
    _LIBRARY.free(buffer)
    return text


def untouched_bytes(start, num_bytes):
    """Bytes of the whole pages between these addresses that are not in memory; None when the kernel does not say."""
    first = -(-start // _PAGE_BYTES)
    num_pages = (start + num_bytes) // _PAGE_BYTES - first
    if _LIBRARY is None or num_pages <= 0:
        return None if _LIBRARY is None else 0
    pages = ctypes.create_string_buffer(num_pages)
    if _LIBRARY.mincore(first * _PAGE_BYTES, num_pages * _PAGE_BYTES, pages):
        return None
    return pages.raw.count(b"\0") * _PAGE_BYTES


def untouched_heap_bytes():
    """Bytes of the C library's main heap that are not in memory: never written, or given back; None when unknown."""
    try:
        with open("/proc/self/stat", "rb") as stream:
            start = int(stream.read().rpartition(b")")[2].split()[44])
    except (OSError, ValueError, IndexError):
        return None
    end = _LIBRARY.sbrk(0) if _LIBRARY is not None else None
    return untouched_bytes(start, end - start) if end and end > start > 0 else None


class Heaps:
    """Both heaps at one moment, in bytes; unknown is None."""

    __slots__ = ("malloc_free_bytes", "malloc_used_bytes", "python_arena_bytes", "python_used_bytes")

    def __init__(self, python=True):
        self.malloc_used_bytes, self.malloc_free_bytes = read_malloc() or (None, None)
        self.python_arena_bytes, self.python_used_bytes = (read_python_heap() if python else None) or (None, None)

    def facts(self):
        """The known values by name."""
        return {name: getattr(self, name) for name in self.__slots__ if getattr(self, name) is not None}
