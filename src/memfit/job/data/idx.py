"""What does an idx file hold, the format of MNIST and Fashion-MNIST?

Two zero bytes, a byte for the type, a byte for the number of dimensions, each dimension as a big-endian 32-bit number,
then the values. The size of the file must agree with its header before anything is allocated.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from memfit.errors import DataError
from memfit.regular_file import open_regular

_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_MOST_DIMENSIONS = 8


def read_idx(path: str | Path) -> np.ndarray:
    """The array in an idx file, in the byte order of this machine."""
    try:
        with open_regular(path) as stream:
            content = np.fromfile(stream, dtype=np.uint8)
    except OSError as error:
        raise DataError(f"{path} cannot be read", found=str(error)) from None
    return parse_idx(content, str(path))


def parse_idx(content: np.ndarray, origin: str) -> np.ndarray:
    """The array in the bytes of an idx file."""
    dtype, shape, start = _header(content, origin)
    needed = math.prod(shape) * dtype.itemsize
    if len(content) - start != needed:
        found = f"{len(content) - start} bytes of values where {'x'.join(map(str, shape))} needs {needed}"
        raise DataError(f"{origin} is cut short or too long", found=found, hint="fetch it again: memfit data fetch")
    values = content[start:].view(dtype).reshape(shape)
    return values if dtype.isnative else values.astype(dtype.newbyteorder("="))


def _header(content: np.ndarray, origin: str) -> tuple[np.dtype, tuple[int, ...], int]:
    """Type, shape and where the values begin."""
    head = content[:4].tolist()
    if len(head) < 4 or head[:2] != [0, 0] or head[2] not in _TYPES or not 1 <= head[3] <= _MOST_DIMENSIONS:
        found = f"it begins with {bytes(head).hex(' ') or 'nothing'}"
        raise DataError(f"{origin} is no idx file", found=found, hint="gunzip it first if its name ends in .gz")
    start = 4 + 4 * head[3]
    if len(content) < start:
        raise DataError(f"{origin} ends inside its header", found=f"{len(content)} bytes")
    shape = tuple(int.from_bytes(content[at : at + 4].tobytes(), "big") for at in range(4, start, 4))
    return np.dtype(_TYPES[head[2]]), shape, start
