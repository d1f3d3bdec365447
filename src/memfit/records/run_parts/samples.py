"""Samples of one run as arrays: what was read, how often, how late, and what failed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memfit.records.files import layout
from memfit.records.files.ranges import LONGEST_RUN_US, MOST_BYTES

SAMPLE_DTYPE = np.dtype(list(zip(layout.SAMPLE_FIELDS, ("<u8", "<u4", "<u2", "<u2", "<u8", "<u8"), strict=True)))
assert SAMPLE_DTYPE.itemsize == layout.SAMPLE.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Resident bytes of every process over time; one row is one process at one moment."""

    time_seconds: np.ndarray
    late_seconds: np.ndarray
    process: np.ndarray
    """Index into RunRecord.processes."""
    resident_bytes: np.ndarray
    shared_bytes: np.ndarray
    """File-backed and shared-memory pages; resident minus this is anonymous."""
    num_failed: int
    """Readings that failed and are left out above."""

    def __len__(self) -> int:
        return len(self.time_seconds)

    def of_process(self, index: int) -> Samples:
        """The samples of one process."""
        keep = self.process == index
        return Samples(
            time_seconds=self.time_seconds[keep],
            late_seconds=self.late_seconds[keep],
            process=self.process[keep],
            resident_bytes=self.resident_bytes[keep],
            shared_bytes=self.shared_bytes[keep],
            num_failed=self.num_failed,
        )


def samples_from_bytes(raw: bytes) -> Samples:
    """Decode samples.bin; an incomplete last record is cut off, records out of any range count as failed."""
    whole = len(raw) - len(raw) % SAMPLE_DTYPE.itemsize
    rows = np.frombuffer(raw[:whole] if whole != len(raw) else raw, dtype=SAMPLE_DTYPE)
    good = (rows["flags"] & layout.FLAG_FAILED) == 0
    good &= (rows["time_us"] < LONGEST_RUN_US) & (rows["resident_bytes"] < MOST_BYTES)
    good &= rows["shared_bytes"] < MOST_BYTES
    kept = rows[good]
    return Samples(
        time_seconds=kept["time_us"] / 1e6,
        late_seconds=kept["late_us"] / 1e6,
        process=kept["process"].astype(np.int64),
        resident_bytes=kept["resident_bytes"].astype(np.int64),
        shared_bytes=kept["shared_bytes"].astype(np.int64),
        num_failed=int(len(rows) - len(kept)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeCurve:
    """Memory of the whole process tree over time."""

    time_seconds: np.ndarray
    summed_resident_bytes: np.ndarray
    """Upper bound: pages shared between the processes are counted once per process."""
    tree_bytes: np.ndarray
    """Summed resident bytes minus the overlap seen at the nearest earlier reading of proportional set size."""

    def mean_bytes(self) -> float | None:
        """The mean of the tree over time, however uneven the samples lie; None with fewer than two."""
        times, sizes = self.time_seconds, self.tree_bytes
        if len(times) < 2 or times[-1] <= times[0]:
            return None
        return float(np.sum(np.diff(times) * (sizes[1:] + sizes[:-1]) / 2) / (times[-1] - times[0]))
