"""Files in the format of safetensors that a predicted script saves; for both engines.

The header is a real one, so that the library opens the file, lists it and reads shapes from it. Values are written
where they are known; everything else is a hole in the file, which reads as zeros and takes no room.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, cast

from memfit.predict.sandbox.scratch_files import PathName

NAMES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "complex64": "C64", "bool": "BOOL",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0",
}  # fmt: skip
"""Types of torch, and what the format calls them (safetensors 0.8)."""
ALIGNED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedTensor:
    """One tensor of a file."""

    dtype: str
    """As torch prints it, without `torch.`."""
    shape: tuple[int, ...]
    num_bytes: int
    values: bytes | None
    """None where they are not known."""


def write_safetensors(path: PathName, tensors: Mapping[str, SavedTensor], metadata: Mapping[str, str] | None) -> None:
    """Write the header and what is known; the length is that of the real file."""
    header: dict[str, object] = {} if metadata is None else {"__metadata__": dict(metadata)}
    end = 0
    for name, tensor in _as_the_library_sorts(tensors):
        start, end = end, end + tensor.num_bytes
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNED)
    with open(path, "wb") as opened:
        file = cast("IO[bytes]", opened)
        file.write(struct.pack("<Q", len(text)) + text)
        for _, tensor in _as_the_library_sorts(tensors):
            if tensor.values is None:
                file.seek(tensor.num_bytes, 1)
            else:
                file.write(tensor.values)
        file.truncate(8 + len(text) + end)


def _as_the_library_sorts(tensors: Mapping[str, SavedTensor]) -> list[tuple[str, SavedTensor]]:
    """The widest types first, so that every tensor begins where its type may begin."""
    return sorted(tensors.items(), key=lambda item: (-_width(item[1].dtype), item[0]))


def _width(dtype: str) -> int:
    bits = "".join(letter for letter in NAMES[dtype].partition("_")[0] if letter.isdigit())
    return int(bits or 8)
