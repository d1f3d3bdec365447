"""Speed of a folder: written through to the disk, read back without the page cache."""

from __future__ import annotations

import os
import shutil
import tempfile
import time

from memfit.errors import StorageError
from memfit.records.plan import Link
from memfit.units import MIB

TRIED_BYTES = 32 * MIB
SHARE_OF_FREE = 0.9


def measure_disk(folder: str) -> Link:
    """A link to files in a folder, its speed measured with one small file."""
    try:
        free_bytes = shutil.disk_usage(folder).free
        with tempfile.TemporaryFile(dir=folder, prefix="memfit-") as file:
            out_seconds = _write(file.fileno())
            in_seconds = _read(file.fileno())
    except OSError as error:
        hint = "give a folder that exists and can be written, with some space left"
        raise StorageError(f"{folder} cannot be used", found=error.strerror or str(error), hint=hint) from None
    return Link(
        name="disk",
        out_bytes_per_second=TRIED_BYTES / max(out_seconds, 1e-9),
        in_bytes_per_second=TRIED_BYTES / max(in_seconds, 1e-9),
        latency_seconds=1e-4,
        capacity_bytes=int(free_bytes * SHARE_OF_FREE),
        source="measured",
    )


def _write(file: int) -> float:
    data = os.urandom(MIB)
    start = time.perf_counter()
    for number in range(TRIED_BYTES // MIB):
        os.pwrite(file, data, number * MIB)
    os.fdatasync(file)
    return time.perf_counter() - start


def _read(file: int) -> float:
    os.posix_fadvise(file, 0, TRIED_BYTES, os.POSIX_FADV_DONTNEED)
    start = time.perf_counter()
    for number in range(TRIED_BYTES // MIB):
        os.pread(file, MIB, number * MIB)
    return time.perf_counter() - start
