"""Tokens for a language model: the bytes of a text file, or a synthetic language.

The made-up language follows a rule (each token mostly decides the next) under noise, so that a model can learn it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from memfit.errors import DataError, UsageError
from memfit.regular_file import open_regular

SYNTHETIC = "synthetic"
NUM_SYNTHETIC = 200_000
NUM_BYTES_VALUES = 256
HELD_OUT = 0.1
_MOST_BYTES = 1 << 28


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """A long row of tokens in two parts."""

    source: str
    train: np.ndarray
    test: np.ndarray


def load_tokens(name: str, words: int, length: int) -> Tokens:
    """'synthetic', or a text file whose bytes are the tokens."""
    if name == SYNTHETIC:
        return _split(_made_up(words), "synthetic")
    path = Path(name)
    if not path.is_file():
        raise UsageError(f"{name!r} is no text", hint="give a text file, or 'synthetic'")
    if words < NUM_BYTES_VALUES:
        raise UsageError("a text needs 256 words, one for each byte", found=f"words={words}", hint="--set words=256")
    tokens = _split(_read(path), str(path))
    if min(len(tokens.train), len(tokens.test)) <= length:
        raise DataError(
            f"{path} is too short", found=f"{path.stat().st_size} bytes", hint=f"--set length={length // 4}"
        )
    return tokens


def _read(path: Path) -> np.ndarray:
    try:
        with open_regular(path) as stream:
            return np.fromfile(stream, dtype=np.uint8, count=_MOST_BYTES)
    except OSError as error:
        raise DataError(f"{path} cannot be read", found=str(error)) from None


def _made_up(words: int) -> np.ndarray:
    generator = np.random.default_rng(words)
    follows = generator.permutation(words)
    surprises = generator.random(NUM_SYNTHETIC) < 0.1
    tokens = generator.integers(0, words, NUM_SYNTHETIC)
    for place in range(1, NUM_SYNTHETIC):
        if not surprises[place]:
            tokens[place] = follows[tokens[place - 1]]
    return tokens.astype(np.int32)


def _split(tokens: np.ndarray, source: str) -> Tokens:
    cut = len(tokens) - int(len(tokens) * HELD_OUT)
    return Tokens(source=source, train=tokens[:cut], test=tokens[cut:])


def rows_of(tokens: np.ndarray, starts: np.ndarray, length: int) -> np.ndarray:
    """One row of `length` tokens from each start, as int64."""
    return tokens[starts[:, None] + np.arange(length)].astype(np.int64)
