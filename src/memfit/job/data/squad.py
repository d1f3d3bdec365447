"""Which questions are in a SQuAD file, versions 1.1 and 2.0?"""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import msgspec

from memfit.errors import DataError
from memfit.regular_file import open_regular

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


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """One question on one text."""

    id: str
    question: str
    context: str
    answer: str
    """The first answer; empty when there is none."""
    answer_start: int | None
    """Where it begins in the context, in characters; None when there is no answer or it does not stand there."""


def read_squad(path: str | Path) -> list[Question]:
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


def parse_squad(content: bytes, origin: str) -> list[Question]:
    """The questions in the bytes of a SQuAD file."""
    try:
        file = msgspec.json.decode(content, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        hint = "a SQuAD file has data[].paragraphs[] with context and qas[]"
        raise DataError(f"{origin} is no SQuAD file", found=str(error), hint=hint) from None
    paragraphs = (paragraph for article in file.data for paragraph in article.paragraphs)
    return [_question(item, paragraph.context) for paragraph in paragraphs for item in paragraph.qas]


def _question(item: _Item, context: str) -> Question:
    first = item.answers[0] if item.answers and not item.is_impossible else None
    text = first.text if first else ""
    stands = first is not None and first.answer_start >= 0 and context.startswith(text, first.answer_start)
    start = first.answer_start if first is not None and stands else None
    return Question(id=item.id, question=item.question, context=context, answer=text, answer_start=start)
