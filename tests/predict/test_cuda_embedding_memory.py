"""What a GPU allocates to add up the gradients of words: sizes that torch asked for on the phantom GPU, and laws."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.predict.gpu_rules.embedding import embedding_course, scan_bytes, sort_bytes, unique_bytes

NUMBERS = st.integers(1, 10**6)


@pytest.mark.parametrize(
    ("tokens", "words", "sort", "unique", "scan"),
    [(4096, 5000, 72_191, 1_279, 1_279), (65_536, 20_000, 1_071_615, 2_047, 1_535)],
)
def test_the_sorting_library_takes_what_it_took_on_the_phantom_gpu(
    tokens: int, words: int, sort: int, unique: int, scan: int
):
    assert (sort_bytes(tokens, words, 8), unique_bytes(tokens), scan_bytes(min(tokens, words))) == (sort, unique, scan)


@given(NUMBERS, NUMBERS, st.integers(1, 4096), st.sampled_from([4, 8]), st.sampled_from([4, 8]))
def test_everything_beside_the_result_is_released_once(tokens: int, words: int, width: int, index: int, item: int):
    course = embedding_course(tokens, words, width, index_bytes=index, sum_bytes=item)
    assert course.count(None) == 1
    made, alive = 0, set()
    for step in course:
        if step is not None and step > 0:
            alive.add(made)
            made += 1
        elif step is not None:
            alive.remove(-1 - step)
    assert not alive
    assert (made == 0) == (tokens <= 3072)


@given(st.integers(3073, 10**6), NUMBERS, st.integers(1, 4096))
def test_more_words_in_a_batch_never_take_less(tokens: int, words: int, width: int):
    small, large = (
        sum(step for step in embedding_course(count, words, width, index_bytes=8, sum_bytes=4) if step and step > 0)
        for count in (tokens, 2 * tokens)
    )
    assert small <= large
