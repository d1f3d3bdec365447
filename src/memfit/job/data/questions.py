"""Tokenisation of question answering (SQuAD): rows of tokens with the position of the answer.

A row is [start] question [between] text [between], cut to a length and filled up. With a vocabulary a word is split
into the longest pieces that are in it (WordPiece; Wu et al. 2016); without one it gets a number by a hash, and lengths
count words.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from memfit.errors import DataError, UsageError
from memfit.job.data.cache import folder_of, is_cached
from memfit.job.data.catalogue import SQUAD
from memfit.job.data.readers import SquadQuestion, read_squad

PADDING, START, BETWEEN, FIRST_WORD = 0, 101, 102, 1000
_WORD = re.compile(r"\w+|[^\w\s]")
_MOST_PIECE = 100

Pieces = Callable[[str], list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionRows:
    """Questions as tokens; row i has its answer from start[i] to end[i], both 0 where it does not fit in."""

    tokens: np.ndarray
    start: np.ndarray
    end: np.ndarray


def find_squad(name: str) -> Path:
    """The SQuAD file that is meant: the cached training part for 'squad', else a path."""
    if name == SQUAD.name:
        if not is_cached(SQUAD):
            raise UsageError("SQuAD is not in the cache", hint="memfit data fetch squad, or --set data=FILE.json")
        return folder_of(SQUAD) / SQUAD.files[0].name
    if not Path(name).is_file():
        raise UsageError(f"{name!r} is no SQuAD file", hint="give 'squad' or a JSON file")
    return Path(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class SquadChoice:
    """Which questions a training gets: the settings of the workload, and the same in words."""

    settings: dict[str, int | str]
    said: str


SYNTHETIC = SquadChoice(settings={}, said="synthetic questions of the same shape")


def choose_squad(given: str | None = None) -> SquadChoice:
    """A SQuAD file, or a folder with one and perhaps vocab.txt; by default the folder squad of MEMFIT_DATA."""
    folder = Path(given) if given is not None else folder_of(SQUAD)
    if given is not None and not folder.exists():
        raise UsageError(f"{given} is not there", hint="a SQuAD file, or a folder that holds one")
    files = [folder] if folder.is_file() else sorted((*folder.glob("*.json"), *folder.glob("*.json.gz")), reverse=True)
    if not files:
        if given is not None:
            raise UsageError(f"{given} holds no SQuAD file", found="no *.json or *.json.gz", hint="give the file")
        return SYNTHETIC
    vocabulary = files[0].parent / "vocab.txt"
    pieces = {"vocabulary": str(vocabulary)} if vocabulary.is_file() else {}
    how = "WordPiece of vocab.txt" if pieces else "words by hash"
    return SquadChoice(settings={"data": str(files[0]), **pieces}, said=f"SQuAD, {files[0].name}, {how}")


def load_questions(
    name: str, vocabulary: str | None, num_words: int, length: int, most: int | None = None
) -> QuestionRows:
    """All questions of a file, or the first `most` of them, each as one row."""
    questions = read_squad(find_squad(name))[:most]
    if not questions:
        raise DataError(f"{name} holds no questions")
    pieces = by_vocabulary(vocabulary, num_words) if vocabulary else by_hash(num_words)
    return rows_of(questions, pieces, length)


def rows_of(questions: Iterable[SquadQuestion], pieces: Pieces, length: int) -> QuestionRows:
    """Tokens and answers of every question."""
    rows = [_row(question, pieces, length) for question in questions]
    tokens = np.full((len(rows), length), PADDING, dtype=np.int32)
    for place, (row, _, _) in enumerate(rows):
        tokens[place, : len(row)] = row
    ends = np.array([(start, end) for _, start, end in rows], dtype=np.int32)
    return QuestionRows(tokens=tokens, start=ends[:, 0], end=ends[:, 1])


def _row(question: SquadQuestion, pieces: Pieces, length: int) -> tuple[list[int], int, int]:
    row = [START, *(token for word in _WORD.findall(question.question) for token in pieces(word)), BETWEEN]
    row = row[: max(length // 2, 1)]
    begins = question.answer_start
    finishes = begins + len(question.answer) if begins is not None else -1
    first = last = 0
    is_whole = False
    for match in _WORD.finditer(question.context):
        if begins is not None and match.end() > begins and match.start() < finishes:
            first = first or len(row)
            last = len(row) + len(pieces(match.group())) - 1
            is_whole = match.end() >= finishes
        row += pieces(match.group())
        if len(row) >= length - 1:
            break
    row = [*row[: length - 1], BETWEEN][:length]
    return (row, first, last) if is_whole and last < length - 1 else (row, 0, 0)


def by_hash(num_words: int) -> Pieces:
    """Every word is one token, numbered by its checksum: lengths are those of words, not of word pieces."""
    return lambda word: [FIRST_WORD + zlib.crc32(word.lower().encode()) % (num_words - FIRST_WORD)]


def by_vocabulary(path: str, num_words: int) -> Pieces:
    """Longest pieces first, as BERT's uncased tokenizer splits a word."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read", found=str(error)) from None
    numbers = {line.rstrip("\n"): number for number, line in enumerate(lines)}
    if "[UNK]" not in numbers or len(lines) > num_words:
        hint = "vocab.txt of distilbert-base-uncased: one piece per line, with [UNK]"
        raise DataError(f"{path} is no vocabulary for this model", found=f"{len(lines)} lines", hint=hint)
    known: dict[str, list[int]] = {}

    def pieces(word: str) -> list[int]:
        word = word.lower()
        if word not in known:
            known[word] = _split(word, numbers)
        return known[word]

    return pieces


def _split(word: str, numbers: dict[str, int]) -> list[int]:
    found: list[int] = []
    start = 0
    while start < len(word):
        ends = range(min(len(word), start + _MOST_PIECE), start, -1)
        prefix = "##" if start else ""
        end = next((end for end in ends if prefix + word[start:end] in numbers), None)
        if end is None:
            return [numbers["[UNK]"]]
        found.append(numbers[prefix + word[start:end]])
        start = end
    return found
