"""Is data real where it is cached, synthetic of the same shape where not, and the same every time?"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from memfit.errors import DataError, UsageError
from memfit.job.data import images as data_images
from memfit.job.data.cache import folder_of
from memfit.job.data.catalogue import MNIST
from memfit.job.data.images import load_images, shape_of
from memfit.job.data.questions import BETWEEN, START, by_hash, by_vocabulary, rows_of
from memfit.job.data.readers import SquadQuestion
from memfit.job.data.tokens import load_tokens
from memfit.job.data.tokens import rows_of as token_rows


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMFIT_DATA", str(tmp_path / "cache"))


@pytest.mark.parametrize("name", ["mnist", "cifar-10"])
def test_synthetic_images_have_the_shape_of_the_real_ones(name: str):
    images = load_images(name)
    assert "memfit data fetch" in images.source
    assert images.train_images.shape[1:] == images.test_images.shape[1:] == shape_of(name)
    assert len(images.train_images) == len(images.train_labels) in (50_000, 60_000)
    assert images.train_images.dtype == images.train_labels.dtype == np.uint8
    assert set(images.train_labels) == set(range(10))


def test_synthetic_images_are_the_same_every_time():
    first, second = load_images("synthetic-mnist"), load_images("synthetic-mnist")
    assert np.array_equal(first.train_images, second.train_images)
    assert not np.array_equal(first.train_images[:10_000], first.test_images)


def test_real_images_are_read_where_they_are_and_a_damaged_one_is_refused():
    folder = folder_of(MNIST)
    folder.mkdir(parents=True)
    for file, header in zip(MNIST.files, (b"\x00\x00\x08\x03", b"\x00\x00\x08\x01") * 2, strict=True):
        count = 60_000 if file.name.startswith("train") else 10_000
        dimensions = [count, 28, 28] if header[3] == 3 else [count]
        head = header + b"".join(size.to_bytes(4, "big") for size in dimensions)
        (folder / file.name).write_bytes(head + b"\x03" * (file.num_bytes - len(head)))
    images = load_images("mnist")
    assert images.source == "real"
    assert set(images.train_labels) == {3}
    assert load_images("synthetic-mnist").source == "synthetic, as asked for"
    labels = folder / MNIST.files[1].name
    labels.write_bytes(b"\x00\x00\x08\x01" + (60_000).to_bytes(4, "big") + b"\x0b" * 60_000)
    with pytest.raises(DataError, match="cached mnist is damaged"):
        load_images("mnist")


def test_making_images_takes_no_more_memory_than_having_them():
    import tracemalloc

    tracemalloc.start()
    images = data_images.synthetic_images(MNIST, "synthetic")
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 1.2 * images.num_bytes


def test_what_has_no_images_is_refused():
    with pytest.raises(UsageError, match="has no images"):
        load_images("squad")


def test_a_text_is_its_bytes_and_the_synthetic_language_can_be_learnt(tmp_path: Path):
    (tmp_path / "text").write_bytes(bytes(range(97, 123)) * 100)
    tokens = load_tokens(str(tmp_path / "text"), 256, 16)
    assert token_rows(tokens.train, np.array([0, 26]), 3).tolist() == [[97, 98, 99], [97, 98, 99]]
    made = load_tokens("synthetic", 50, 16).train
    follows = {word: np.bincount(made[1:][made[:-1] == word]).max() / (made[:-1] == word).sum() for word in range(50)}
    assert min(follows.values()) > 0.8


def test_a_text_that_is_missing_too_short_or_has_too_few_words_is_refused(tmp_path: Path):
    (tmp_path / "short").write_text("abc")
    for name, words, says in [("nowhere", 256, "no text"), ("short", 256, "too short"), ("short", 100, "256 words")]:
        with pytest.raises((UsageError, DataError), match=says):
            load_tokens(str(tmp_path / name), words, 16)


QUESTION = SquadQuestion(id="1", question="Who sat?", context="The old cat sat.", answer="old cat", answer_start=4)


def test_a_question_and_its_text_become_one_row_with_the_answer_marked():
    rows = rows_of([QUESTION], by_hash(30_000), 16)
    row = rows.tokens[0].tolist()
    assert (row[0], row[4], row[10]) == (START, BETWEEN, BETWEEN)
    assert row[11:] == [0] * 5
    assert (rows.start[0], rows.end[0]) == (6, 7)
    assert rows_of([QUESTION], by_hash(30_000), 6).start[0] == 0


def test_a_vocabulary_splits_words_into_the_longest_pieces(tmp_path: Path):
    (tmp_path / "vocab.txt").write_text("[UNK]\ncat\nca\n##ts\n##t\n##s\n")
    pieces = by_vocabulary(str(tmp_path / "vocab.txt"), 100)
    assert (pieces("Cats"), pieces("cat"), pieces("dog")) == ([1, 5], [1], [0])
    (tmp_path / "odd.txt").write_text("cat\n")
    with pytest.raises(DataError, match="no vocabulary"):
        by_vocabulary(str(tmp_path / "odd.txt"), 100)
