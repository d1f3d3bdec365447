"""Event files of TensorBoard: framed protocol buffers with scalars and what its HParams page reads.

Written by hand, so that no TensorBoard is needed to export; read back by the real one in the tests (fields as in
tensorboard 2.21: Event, Summary, TensorProto, HParamsPluginData). A frame is a length and the bytes, each followed by
a masked CRC-32C. Scalars have 32 bits, seven digits: TensorBoard's fast loader passes over those of 64 bits.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from memfit.show.export.protobuf_wire import double, message, single, text, varint, whole

FILE_NAME = "events.out.tfevents.0000000000.memfit"
"""TensorBoard takes every file with 'tfevents' in its name; one name, so that exporting again replaces it."""
MOST_POINTS = 1000
"""TensorBoard keeps this many points of a curve, chosen at random: more would lose peaks."""

HParam = float | bool | str
Status = Literal["unknown", "success", "failure", "running"]
_STATUS: dict[Status, int] = {"unknown": 0, "success": 1, "failure": 2, "running": 3}
_DT_FLOAT = 1
_DATA_CLASS_SCALAR = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalar:
    """One point of a curve."""

    tag: str
    value: float
    step: int = 0
    at_seconds: float = 0.0
    """Since 1970."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HParamColumn:
    """One hyperparameter of an experiment, with every value it may take where that is a list or a range."""

    name: str
    kind: Literal["text", "truth", "number"]
    options: Sequence[HParam] = ()
    ends: tuple[float, float] | None = None


def event_file(events: Iterable[bytes], at_seconds: float = 0.0) -> bytes:
    """A whole event file."""
    first = double(1, at_seconds) + text(3, "brain.Event:2")
    return b"".join(_frame(event) for event in (first, *events))


def scalar_event(scalar: Scalar) -> bytes:
    """One scalar as TensorBoard 2 writes it: a tensor of one number for the plug-in `scalars`."""
    tensor = whole(1, _DT_FLOAT) + message(2, b"") + single_content(scalar.value)
    metadata = message(1, text(1, "scalars")) + whole(4, _DATA_CLASS_SCALAR)
    return _event(scalar.tag, message(8, tensor) + message(9, metadata), scalar.step, scalar.at_seconds)


def single_content(value: float) -> bytes:
    """The content of a tensor of one number; one too large for 32 bits becomes infinite."""
    return message(4, single(0, value)[1:])


def experiment_event(
    columns: Sequence[HParamColumn], metrics: Mapping[str, str], name: str, at_seconds: float
) -> bytes:
    """What an experiment varies and which scalars are its metrics (tag: how to call it)."""
    parts = [text(6, name), double(3, at_seconds), *(message(4, _column(column)) for column in columns)]
    parts += [message(5, message(1, text(2, tag)) + text(3, shown)) for tag, shown in metrics.items()]
    return _hparams_event("_hparams_/experiment", message(2, b"".join(parts)), at_seconds)


def session_start_event(values: Mapping[str, HParam], group: str, at_seconds: float) -> bytes:
    """A trial begins with these hyperparameters."""
    entries = [message(1, text(1, name) + message(2, _value(value))) for name, value in values.items()]
    content = b"".join(entries) + text(4, group) + double(5, at_seconds)
    return _hparams_event("_hparams_/session_start_info", message(3, content), at_seconds)


def session_end_event(status: Status, at_seconds: float) -> bytes:
    """A trial has ended."""
    content = whole(1, _STATUS[status]) + double(2, at_seconds)
    return _hparams_event("_hparams_/session_end_info", message(4, content), at_seconds)


def _column(column: HParamColumn) -> bytes:
    kind = {"text": 1, "truth": 2, "number": 3}[column.kind]
    found = text(1, column.name) + text(2, column.name) + whole(4, kind)
    if column.options:
        found += message(5, b"".join(message(1, _value(option)) for option in column.options))
    elif column.ends is not None:
        found += message(6, double(1, column.ends[0]) + double(2, column.ends[1]))
    return found


def _value(value: HParam) -> bytes:
    if isinstance(value, bool):
        return whole(4, value)
    return text(3, value) if isinstance(value, str) else double(2, float(value))


def _hparams_event(tag: str, content: bytes, at_seconds: float) -> bytes:
    plugin = text(1, "hparams") + message(2, whole(1, 0) + content)
    # TensorBoard looks at the metadata alone, but passes over a summary without a tensor.
    tensor = whole(1, _DT_FLOAT) + message(2, b"") + single_content(0.0)
    return _event(tag, message(8, tensor) + message(9, message(1, plugin)), 0, at_seconds)


def _event(tag: str, value: bytes, step: int, at_seconds: float) -> bytes:
    return double(1, at_seconds) + varint(2 << 3) + varint(step) + message(5, message(1, text(1, tag) + value))


# ---- frames ----------------------------------------------------------------------------------------------------------


def _table() -> list[int]:
    """CRC-32C (Castagnoli), one entry per byte."""
    entries = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        entries.append(byte)
    return entries


_CRC = _table()


def masked_crc(data: bytes) -> int:
    """CRC-32C, turned by 15 bits and shifted by a constant, as record files have it."""
    crc = 0xFFFF_FFFF
    table = _CRC
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFF_FFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFF_FFFF


def _frame(event: bytes) -> bytes:
    length = struct.pack("<Q", len(event))
    return length + struct.pack("<I", masked_crc(length)) + event + struct.pack("<I", masked_crc(event))
