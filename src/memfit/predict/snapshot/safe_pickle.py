"""Reads a pickle without running anything in it, within a limit of memory.

First the operations are walked over without doing them: sizes that point behind the end, places in the memo table
that cannot be true, and a total of objects above the limit are refused. Then Python's own unpickler reads it, and
refuses every name of a class or function. Snapshots are made of dictionaries, lists, tuples, texts and numbers and
need none.
"""

from __future__ import annotations

import io
import pickle
import struct

from memfit.errors import DamagedRecord, RecordError
from memfit.units import GIB, format_bytes

MAX_OBJECT_BYTES = 8 * GIB
MAX_NESTING = 200
_HINT = "write it again with torch.cuda.memory._dump_snapshot(path), and copy it whole"

_MARK = ord("(")
_POPS_MARK = frozenset(b"tlde1u\x90\x91")
_REFUSED = {
    ord("P"): "a reference to something outside", ord("Q"): "a reference to something outside",
    0x82: "an extension", 0x83: "an extension", 0x84: "an extension",
    0x96: "a byte array", 0x97: "an outside buffer", 0x98: "an outside buffer",
}  # fmt: skip
_ARGUMENT_BYTES = {
    ord("K"): 1, ord("M"): 2, ord("J"): 4, ord("G"): 8, ord("h"): 1, ord("j"): 4, ord("q"): 1, ord("r"): 4, 0x80: 1,
    0x95: 8,
}  # fmt: skip
_LINES = {
    ord("I"): 1,
    ord("L"): 1,
    ord("F"): 1,
    ord("S"): 1,
    ord("V"): 1,
    ord("g"): 1,
    ord("p"): 1,
    ord("c"): 2,
    ord("i"): 2,
}
_SIZED = {ord("U"): 1, ord("T"): 4, ord("X"): 4, 0x8C: 1, 0x8D: 8, ord("C"): 1, ord("B"): 4, 0x8E: 8, 0x8A: 1, 0x8B: 4}
_PLAIN = frozenset(b"(.0123NRbldo]u)aestTQ}\x81\x85\x86\x87\x88\x89\x8f\x90\x91\x92\x93\x94") - set(b"TQ")
_WEIGHTS = {ord("]"): 64, ord("}"): 72, 0x8F: 216, 0x94: 16, ord("q"): 16, ord("r"): 16, ord("p"): 16}
_DEFAULT_WEIGHT = 40


class _PlainUnpickler(pickle.Unpickler):
    """Reads data and nothing else."""

    def find_class(self, module_name: str, global_name: str, /) -> object:
        raise RecordError(
            "the snapshot names something to run and was not read",
            found=f"{module_name}.{global_name}",
            hint="a memory snapshot holds only numbers and texts; do not open this file with pickle",
        )

    def persistent_load(self, pid: object, /) -> object:
        raise RecordError("the snapshot refers to something outside of it", found=repr(pid)[:80], hint=_HINT)


def read_plain_pickle(data: bytes, *, max_object_bytes: int = MAX_OBJECT_BYTES) -> object:
    """The object in a pickle made of plain data; anything else is one clear error."""
    scan_pickle(data, max_object_bytes=max_object_bytes)
    try:
        return _PlainUnpickler(io.BytesIO(data)).load()
    except RecordError:
        raise
    except Exception as error:
        raise _damaged(f"{type(error).__name__}: {error}") from None


def scan_pickle(data: bytes, *, max_object_bytes: int = MAX_OBJECT_BYTES) -> None:
    """Walk over the operations of a pickle without doing them, and refuse what could not be a snapshot."""
    position, end, nesting, weight = 0, len(data), 0, 0
    steps, weights = _STEP_BYTES, _WEIGHT_OF
    while position < end:
        operation = data[position]
        weight += weights[operation]
        step = steps[operation]
        if step > 0:
            position += step
        elif operation == _MARK:
            position, nesting = position + 1, nesting + 1
            if nesting > MAX_NESTING:
                raise _damaged(f"data nested more than {MAX_NESTING} deep")
        elif operation in _POPS_MARK:
            position, nesting = position + 1, nesting - 1
        elif operation == ord("."):
            break
        else:
            size, position = _long_step(data, position)
            weight += size
        if weight > max_object_bytes:
            hint = f"record fewer events (max_entries), or raise the limit of {format_bytes(max_object_bytes)}"
            raise RecordError("the snapshot would take too much memory", found=f"{end} bytes of pickle", hint=hint)
    else:
        raise _damaged("no end mark: the file is cut off" if end else "an empty file")


def _long_step(data: bytes, position: int) -> tuple[int, int]:
    """Bytes of content, and where the next operation stands."""
    operation = data[position]
    if operation in _SIZED:
        width = _SIZED[operation]
        size = int.from_bytes(data[position + 1 : position + 1 + width], "little")
        after = position + 1 + width + size
        if after > len(data):
            raise _damaged("a text that would end behind the end of the file")
        return size, after
    if operation in _LINES:
        return _skip_lines(data, position, _LINES[operation])
    if operation == ord("r"):
        (index,) = struct.unpack_from("<I", data.ljust(position + 5), position + 1)
        if index > position:
            raise _damaged("a place in the memo table that cannot be true")
        return 0, position + 5
    raise _damaged(_REFUSED.get(operation, f"the byte {operation:#x}, which is no operation of a pickle"))


def _skip_lines(data: bytes, position: int, num_lines: int) -> tuple[int, int]:
    after = position
    for _ in range(num_lines):
        after = data.find(b"\n", after + 1)
        if after < 0:
            raise _damaged("a line without its end")
    content = data[position + 1 : after]
    if data[position] == ord("p") and not (content.isdigit() and len(content) < 12 and int(content) <= position):
        raise _damaged("a place in the memo table that cannot be true")
    return len(content), after + 1


def _step(operation: int) -> int:
    if operation in _ARGUMENT_BYTES and operation != ord("r"):
        return 1 + _ARGUMENT_BYTES[operation]
    if operation in _PLAIN and operation not in _POPS_MARK and operation not in (_MARK, ord(".")):
        return 1
    return 0


def _damaged(found: str) -> DamagedRecord:
    return DamagedRecord("this is not a whole memory snapshot", found=found, hint=_HINT)


_STEP_BYTES = [_step(operation) for operation in range(256)]
_WEIGHT_OF = [_WEIGHTS.get(operation, _DEFAULT_WEIGHT) for operation in range(256)]
