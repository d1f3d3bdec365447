"""Do the readers read what was written, and refuse everything else with one clear error?"""

from __future__ import annotations

import contextlib
import gzip
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from memfit.errors import DataError
from memfit.job.data.readers import RECORD_BYTES, parse_cifar, parse_idx, parse_squad, read_cifar, read_idx, read_squad

CODES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}


def idx_bytes(values: np.ndarray, kind: str) -> bytes:
    head = struct.pack(f">BBBB{values.ndim}I", 0, 0, CODES[kind], values.ndim, *values.shape)
    return head + values.astype(np.dtype(kind).newbyteorder(">")).tobytes()


def as_array(content: bytes) -> np.ndarray:
    return np.frombuffer(content, dtype=np.uint8)


@given(st.sampled_from(list(CODES)), st.data())
def test_an_idx_file_gives_back_the_array_it_was_made_from(kind: str, data: st.DataObject):
    shape = data.draw(arrays.array_shapes(max_dims=4, max_side=5))
    values = data.draw(arrays.arrays(np.dtype(kind), shape, elements={"allow_nan": False} if kind[0] == "f" else None))
    read = parse_idx(as_array(idx_bytes(values, kind)), "made")
    assert read.dtype == np.dtype(kind)
    assert np.array_equal(read, values)


@given(st.integers(1, 40))
def test_an_idx_file_that_is_cut_or_too_long_is_refused(change: int):
    whole = idx_bytes(np.arange(30, dtype=np.uint8).reshape(5, 6), "u1")
    for wrong in (whole[:-change], whole + b"x" * change):
        with pytest.raises(DataError):
            parse_idx(as_array(wrong), "made")


@given(st.binary(max_size=60))
def test_any_bytes_are_an_idx_file_or_a_clear_refusal(content: bytes):
    with contextlib.suppress(DataError):
        read = parse_idx(as_array(content), "made")
        assert read.nbytes == len(content) - 4 - 4 * read.ndim


def test_a_header_that_promises_more_than_the_memory_of_the_world_allocates_nothing():
    huge = struct.pack(">BBBB4I", 0, 0, 0x0E, 4, *[0xFFFFFFFF] * 4) + b"\x00" * 64
    with pytest.raises(DataError, match="cut short"):
        parse_idx(as_array(huge), "huge")


def test_a_missing_or_zipped_idx_file_says_so(tmp_path: Path):
    with pytest.raises(DataError, match="cannot be read"):
        read_idx(tmp_path / "none")
    (tmp_path / "zipped").write_bytes(gzip.compress(b"content"))
    with pytest.raises(DataError, match="no idx file") as raised:
        read_idx(tmp_path / "zipped")
    assert "gunzip" in raised.value.hint


@given(st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_cifar_batches_give_back_their_images(count: int, seed: int):
    random = np.random.default_rng(seed)
    images = random.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)
    labels = random.integers(0, 10, count, dtype=np.uint8)
    records = np.hstack([labels[:, None], images.reshape(count, -1)])
    read, read_labels = parse_cifar(records.reshape(-1), "made")
    assert np.array_equal(read, images)
    assert np.array_equal(read_labels, labels)


def test_several_cifar_batches_are_read_one_after_the_other(tmp_path: Path):
    for number in range(3):
        (tmp_path / str(number)).write_bytes(bytes([number]) * RECORD_BYTES * (number + 1))
    images, labels = read_cifar([tmp_path / str(number) for number in range(3)])
    assert labels.tolist() == [0, 1, 1, 2, 2, 2]
    assert images.shape == (6, 3, 32, 32)
    assert images[4].min() == images[4].max() == 2


@pytest.mark.parametrize("content", [b"", b"x", b"\x00" * (RECORD_BYTES + 1), b"\x0a" + b"\x00" * (RECORD_BYTES - 1)])
def test_what_is_no_cifar_batch_is_refused(tmp_path: Path, content: bytes):
    (tmp_path / "batch").write_bytes(content)
    with pytest.raises(DataError, match="CIFAR-10"):
        read_cifar([tmp_path / "batch"])


def squad_of(qas: list[dict[str, Any]], context: str = "The cat sat on the mat.") -> bytes:
    return json.dumps(
        {"version": "1.1", "data": [{"title": "t", "paragraphs": [{"context": context, "qas": qas}]}]}
    ).encode()


def test_squad_questions_come_with_their_answers():
    right = {"id": "1", "question": "Who?", "answers": [{"text": "cat", "answer_start": 4}]}
    wrong = {"id": "2", "question": "Where?", "answers": [{"text": "mat", "answer_start": 0}]}
    none = {"id": "3", "question": "Why?", "is_impossible": True, "answers": []}
    read = parse_squad(squad_of([right, wrong, none]), "made")
    assert [(q.id, q.answer, q.answer_start) for q in read] == [("1", "cat", 4), ("2", "mat", None), ("3", "", None)]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no SQuAD file"),
        (b"[1]", "Expected `object`"),
        (b'{"data": [{}]}', "paragraphs"),
        (b'{"data": [{"paragraphs": [{"context": 3, "qas": []}]}]}', "data[0].paragraphs[0].context"),
        (b'{"x": ' + b"[" * 100_000, "no SQuAD file"),
    ],
)
def test_what_is_no_squad_file_is_refused_with_the_place(content: bytes, says: str):
    with pytest.raises(DataError) as raised:
        parse_squad(content, "made")
    assert says in str(raised.value)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_squad_file_or_a_clear_refusal(content: bytes):
    with pytest.raises(DataError):
        parse_squad(content, "made")


def test_a_zipped_squad_file_is_read_and_a_broken_one_refused(tmp_path: Path):
    zipped = gzip.compress(squad_of([]))
    (tmp_path / "whole").write_bytes(zipped)
    assert read_squad(tmp_path / "whole") == []
    (tmp_path / "cut").write_bytes(zipped[:-12])
    with pytest.raises(DataError, match="cannot be read"):
        read_squad(tmp_path / "cut")
