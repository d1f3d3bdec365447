"""Protocol buffers, written by hand: the four kinds of fields that event files and Perfetto traces need.

A message is the joined bytes of its fields; a field is its number and kind, then its value. That is all of the format
that writing needs, and it saves the formats below a dependency.
"""

from __future__ import annotations

import struct


def varint(value: int) -> bytes:
    """A whole number, seven bits a byte; a negative one as its 64-bit complement."""
    value &= 0xFFFF_FFFF_FFFF_FFFF
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def whole(number: int, value: int) -> bytes:
    """A field with a whole number, a truth value or an enumeration."""
    return varint(number << 3) + varint(value)


def double(number: int, value: float) -> bytes:
    """A field with a number of 64 bits."""
    return varint(number << 3 | 1) + struct.pack("<d", value)


def single(number: int, value: float) -> bytes:
    """A field with a number of 32 bits; one that is too large for them becomes infinite."""
    try:
        raw = struct.pack("<f", value)
    except OverflowError:
        raw = struct.pack("<f", float("inf") if value > 0 else float("-inf"))
    return varint(number << 3 | 5) + raw


def fixed64(number: int, value: int) -> bytes:
    """A field with 64 plain bits."""
    return varint(number << 3 | 1) + struct.pack("<Q", value)


def message(number: int, content: bytes) -> bytes:
    """A field with a message, or with plain bytes."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def text(number: int, value: str) -> bytes:
    """A field with text; what cannot be written as UTF-8 is replaced."""
    return message(number, value.encode("utf-8", "replace"))
