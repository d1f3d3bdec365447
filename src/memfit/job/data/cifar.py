"""What do binary batches of CIFAR-10 hold? Records of one label byte and 3 x 32 x 32 colour values."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from memfit.errors import DataError
from memfit.regular_file import open_regular

SHAPE = (3, 32, 32)
RECORD_BYTES = 1 + 3 * 32 * 32
NUM_CLASSES = 10
_CHUNK_RECORDS = 1000


def read_cifar(paths: Sequence[str | Path]) -> tuple[np.ndarray, np.ndarray]:
    """Images (count, 3, 32, 32) and labels of all batches, read in pieces: reading takes no more memory than having."""
    counts = [_count_records(path) for path in paths]
    images = np.empty((sum(counts), *SHAPE), dtype=np.uint8)
    labels = np.empty(sum(counts), dtype=np.uint8)
    start = 0
    for path, count in zip(paths, counts, strict=True):
        _read_batch(path, images[start : start + count], labels[start : start + count])
        start += count
    return images, labels


def _count_records(path: str | Path) -> int:
    try:
        num_bytes = os.path.getsize(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read", found=str(error)) from None
    count, rest = divmod(num_bytes, RECORD_BYTES)
    if rest or not count:
        found = f"{num_bytes} bytes, which is no multiple of {RECORD_BYTES}" if rest else "no records"
        raise DataError(f"{path} is no CIFAR-10 batch", found=found, hint="fetch it again: memfit data fetch cifar-10")
    return count


def _read_batch(path: str | Path, images: np.ndarray, labels: np.ndarray) -> None:
    with open_regular(path) as stream:
        for start in range(0, len(labels), _CHUNK_RECORDS):
            content = np.fromfile(stream, dtype=np.uint8, count=RECORD_BYTES * _CHUNK_RECORDS)
            part, part_labels = parse_cifar(content, str(path))
            images[start : start + len(part)], labels[start : start + len(part)] = part, part_labels


def parse_cifar(content: np.ndarray, origin: str) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels in the bytes of some records; both are views of them."""
    count, rest = divmod(len(content), RECORD_BYTES)
    if rest or not count:
        raise DataError(f"{origin} ends inside a record", found=f"{len(content)} bytes")
    records = content.reshape(count, RECORD_BYTES)
    labels = records[:, 0]
    if labels.max() >= NUM_CLASSES:
        raise DataError(f"{origin} is no CIFAR-10 batch", found=f"a label of {labels.max()} where 9 is the largest")
    return records[:, 1:].reshape(count, *SHAPE), labels
