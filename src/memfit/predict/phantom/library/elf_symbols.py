"""Undefined functions of a shared library, read from its ELF dynamic symbol table without tools.

Only what is needed is read: 64-bit little-endian files, as every CUDA build of torch for Linux is.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

from memfit.errors import MemfitError

SECTION = struct.Struct("<IIQQQQIIQQ")
SYMBOL = struct.Struct("<IBBHQQ")
DYNAMIC_SYMBOLS = 11
UNDEFINED = 0


def undefined_symbols(path: Path) -> frozenset[str]:
    """The names that a library imports."""
    with open(path, "rb") as file:
        return _read(file, path)


def _read(file: BinaryIO, path: Path) -> frozenset[str]:
    header = file.read(64)
    if len(header) < 64 or header[:6] != b"\x7fELF\x02\x01":
        raise MemfitError(
            f"{path.name} is no 64-bit little-endian ELF library", hint="the phantom GPU needs Linux x86-64"
        )
    (offset,) = struct.unpack_from("<Q", header, 40)
    entry_size, count = struct.unpack_from("<HH", header, 58)
    file.seek(offset)
    table = file.read(entry_size * count)
    sections = [SECTION.unpack_from(table, entry_size * index) for index in range(len(table) // max(entry_size, 64))]
    names: set[str] = set()
    for section in sections:
        if section[1] == DYNAMIC_SYMBOLS and section[6] < len(sections):
            names |= _undefined(_body(file, section), _body(file, sections[section[6]]))
    return frozenset(names)


def _body(file: BinaryIO, section: tuple[int, ...]) -> bytes:
    file.seek(section[4])
    return file.read(section[5])


def _undefined(symbols: bytes, strings: bytes) -> set[str]:
    whole = len(symbols) // SYMBOL.size * SYMBOL.size
    found = set()
    for name, _info, _other, section, _value, _size in SYMBOL.iter_unpack(symbols[:whole]):
        if section == UNDEFINED and name:
            found.add(strings[name : strings.find(b"\0", name)].decode("ascii", "replace"))
    return found
