"""Files of one record: JSON that begins with its format and version, read with one set of errors."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from memfit.errors import DamagedRecord, NewerFormat, NotARun, StorageError
from memfit.regular_file import describe_error, read_regular

T = TypeVar("T")


class FileKind(msgspec.Struct, frozen=True, kw_only=True):
    """What such a file says of itself, and what to try when it does not."""

    format: str
    version: int
    what: str
    """'a plan'."""
    hint: str
    """How to get a right one."""
    first_is_bare: bool = False
    """Whether files of the first version do not name their format."""


def encode_record(record: object) -> bytes:
    """A record as the bytes of its file."""
    return msgspec.json.format(msgspec.json.encode(record), indent=1)


def decode_record(data: bytes, kind: FileKind, type_: type[T], name: str) -> T:
    """A record from the bytes of its file, checked; `name` stands for the file in errors."""
    try:
        raw = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedRecord(f"{name} is not whole", found=str(error), hint=kind.hint) from None
    default = kind.format if kind.first_is_bare else None
    if not isinstance(raw, dict) or raw.get("format", default) != kind.format:
        raise NotARun(f"{name} is not {kind.what}", found="another format", hint=kind.hint)
    version = raw.get("format_version", 1)
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise DamagedRecord(f"{name} has no format version", found=repr(version), hint=kind.hint)
    if version > kind.version:
        found = f"format {version}, this memfit reads up to {kind.version}"
        raise NewerFormat(f"{name} was written by a newer memfit", found=found, hint="pip install --upgrade memfit")
    try:
        return msgspec.convert(raw, type_)
    except (msgspec.ValidationError, RecursionError) as error:
        raise DamagedRecord(f"{name} does not hold {kind.what}", found=str(error), hint=kind.hint) from None


def read_record(path: str | Path, kind: FileKind, type_: type[T]) -> T:
    """A record from its file."""
    try:
        data = read_regular(path)
    except OSError as error:
        raise NotARun(f"{path} cannot be read", found=describe_error(error), hint=kind.hint) from None
    return decode_record(data, kind, type_, str(path))


def write_record(record: object, path: str | Path) -> None:
    """Write a record to its file."""
    try:
        Path(path).write_bytes(encode_record(record))
    except OSError as error:
        raise StorageError(f"{path} cannot be written", found=str(error), hint="choose another path") from None
