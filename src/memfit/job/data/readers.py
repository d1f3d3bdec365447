"""Readers of data set files: idx (MNIST, Fashion-MNIST), CIFAR's binary batches, SQuAD's JSON.

An idx file: two zero bytes, a byte for the type, a byte for the number of dimensions, each dimension as a big-endian
32-bit number, then the values. The size of the file must agree with its header before anything is allocated.
"""

from __future__ import annotations

import gzip
import math
import os
import zlib
from collections.abc import Sequence
from pathlib import Path

import msgspec
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


# What do binary batches of CIFAR-10 hold? Records of one label byte and 3 x 32 x 32 colour values.

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


# Which questions are in a SQuAD file, versions 1.1 and 2.0?

_MOST_BYTES = 1 << 29


class _Answer(msgspec.Struct, frozen=True):
    text: str
    answer_start: int


class _Item(msgspec.Struct, frozen=True):
    id: str
    question: str
    answers: list[_Answer] = []
    is_impossible: bool = False


class _Paragraph(msgspec.Struct, frozen=True):
    context: str
    qas: list[_Item]


class _Article(msgspec.Struct, frozen=True):
    paragraphs: list[_Paragraph]
    title: str = ""


class _File(msgspec.Struct, frozen=True):
    data: list[_Article]
    version: str = ""


class SquadQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """One question on one text."""

    id: str
    question: str
    context: str
    answer: str
    """The first answer; empty when there is none."""
    answer_start: int | None
    """Where it begins in the context, in characters; None when there is no answer or it does not stand there."""


def read_squad(path: str | Path) -> list[SquadQuestion]:
    """The questions of a SQuAD JSON file, plain or gzipped."""
    try:
        with open_regular(path) as stream:
            is_zipped = stream.read(2) == b"\x1f\x8b"
        with open_regular(path) as raw, gzip.open(raw) if is_zipped else raw as stream:
            content = stream.read(_MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read", found=str(error)) from None
    if len(content) > _MOST_BYTES:
        raise DataError(f"{path} is too large for a SQuAD file", found=f"more than {_MOST_BYTES >> 20} MiB")
    return parse_squad(content, str(path))


def parse_squad(content: bytes, origin: str) -> list[SquadQuestion]:
    """The questions in the bytes of a SQuAD file."""
    try:
        file = msgspec.json.decode(content, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        hint = "a SQuAD file has data[].paragraphs[] with context and qas[]"
        raise DataError(f"{origin} is no SQuAD file", found=str(error), hint=hint) from None
    paragraphs = (paragraph for article in file.data for paragraph in article.paragraphs)
    return [_question(item, paragraph.context) for paragraph in paragraphs for item in paragraph.qas]


def _question(item: _Item, context: str) -> SquadQuestion:
    first = item.answers[0] if item.answers and not item.is_impossible else None
    text = first.text if first else ""
    stands = first is not None and first.answer_start >= 0 and context.startswith(text, first.answer_start)
    start = first.answer_start if first is not None and stands else None
    return SquadQuestion(id=item.id, question=item.question, context=context, answer=text, answer_start=start)
