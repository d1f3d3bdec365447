"""Is the text of PYTORCH_ALLOC_CONF read as torch reads it, and refused where torch refuses it?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.errors import UsageError
from memfit.predict.allocator.settings import AllocatorSettings, parse_allocator_settings, settings_from_environment
from memfit.units import MIB

REFUSED_BY_TORCH = [
    "foo:1", "max_split_size_mb:5", "max_split_size_mb:x", "garbage_collection_threshold:1.5",
    "expandable_segments:yes", "expandable_segments:false", "expandable_segments:True;",
    "roundup_power2_divisions:3", "roundup_power2_divisions:0", "roundup_power2_divisions:[256:1,512:3]",
    "roundup_power2_divisions:[3:2]", "roundup_power2_divisions:[256:1,512:2",
    "max_split_size_mb", "max_split_size_mb:", "per_process_memory_fraction:1.5", "large_segment_size_mb:10",
    "large_segment_size_mb:0", "backend:foo", "max_split_size_mb:25 garbage_collection_threshold:0.5",
    "max_non_split_rounding_mb:5", ",", "max_split_size_mb:99999999999999999999", "garbage_collection_threshold:0",
    "garbage_collection_threshold:nan", "large_segment_size_mb:40,max_split_size_mb:30",
]  # fmt: skip
MISREAD_BY_TORCH = [
    "max_split_size_mb:-1",
    "max_split_size_mb:25.7",
    "max_split_size_mb:0x30",
    "backend:cudaMallocAsync",
]
DIVISIONS_READ_BY_TORCH = [
    ("1", [1] * 16),
    ("[>:8]", [0] + [8] * 15),
    ("[]", [0] * 16),
    ("[1:2,8:4,64:8,>:16]", [2, 0, 0, 4, 0, 0, 8] + [16] * 9),
    ("[256:1,512:2,1024:4,>:8]", [1] * 9 + [2, 4] + [8] * 5),
    ("[8:4,64:8]", [4, 4, 4, 4, 0, 0, 8] + [0] * 9),
    ("[64:8,8:4]", [8, 8, 8, 4, 8, 8, 8] + [0] * 9),
    ("[64:8,>:2,128:4]", [8] * 7 + [4] + [2] * 8),
    ("[65536:8,>:2]", [8] * 16),
    ("[1048576:8]", [8] * 16),
    ("[>:4,64:8]", [8] * 7 + [4] * 9),
]


@pytest.mark.parametrize("text", [*REFUSED_BY_TORCH, *MISREAD_BY_TORCH])
def test_what_torch_refuses_or_misreads_is_refused_with_what_to_try(text: str):
    with pytest.raises(UsageError) as caught:
        parse_allocator_settings(text)
    assert caught.value.found
    assert caught.value.hint


@pytest.mark.parametrize(("text", "divisions"), DIVISIONS_READ_BY_TORCH)
def test_divisions_come_out_as_torch_2_14_reads_them(text: str, divisions: list[int]):
    read = parse_allocator_settings(f"roundup_power2_divisions:{text}").roundup_divisions
    assert list(read) == divisions


def test_every_setting_is_read():
    text = (
        "expandable_segments:True, large_segment_size_mb:32 ,max_split_size_mb:64,max_non_split_rounding_mb:40,"
        "garbage_collection_threshold:0.5,per_process_memory_fraction:0.9,backend:native,pinned_use_background_threads:True,"
    )
    assert parse_allocator_settings(text) == AllocatorSettings(
        expandable_segments=True,
        large_segment_bytes=32 * MIB,
        max_split_bytes=64 * MIB,
        max_non_split_rounding_bytes=40 * MIB,
        garbage_collection_threshold=0.5,
        memory_fraction=0.9,
        not_simulated=("pinned_use_background_threads",),
    )


def test_the_last_of_two_equal_keys_wins():
    assert parse_allocator_settings("max_split_size_mb:25,max_split_size_mb:30").max_split_bytes == 30 * MIB


@pytest.mark.parametrize("text", ["", "   "])
def test_an_empty_text_means_the_defaults(text: str):
    assert parse_allocator_settings(text) == AllocatorSettings()


def test_the_rounding_of_unsplittable_blocks_follows_the_large_segment():
    assert AllocatorSettings().non_split_rounding_bytes == 20 * MIB
    assert parse_allocator_settings("large_segment_size_mb:44").non_split_rounding_bytes == 44 * MIB


def test_the_environment_is_read_under_both_names():
    assert settings_from_environment({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}).expandable_segments
    assert settings_from_environment({"PYTORCH_ALLOC_CONF": "expandable_segments:True"}).expandable_segments
    assert settings_from_environment({}) == AllocatorSettings()


def test_where_both_names_are_set_torch_takes_the_older_one():
    both = {"PYTORCH_ALLOC_CONF": "expandable_segments:True", "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}
    assert settings_from_environment(both) == AllocatorSettings(max_split_bytes=64 * MIB)


WORDS = st.sampled_from(
    [
        "max_split_size_mb",
        "roundup_power2_divisions",
        "expandable_segments",
        ":",
        ",",
        "[",
        "]",
        ">",
        "True",
        "64",
        "0.5",
        " ",
    ]
)


@given(st.lists(WORDS, max_size=14).map("".join) | st.text(max_size=40))
def test_any_text_is_read_or_refused_in_words(text: str):
    try:
        read = parse_allocator_settings(text)
    except UsageError as refused:
        read = refused.hint
    assert read
