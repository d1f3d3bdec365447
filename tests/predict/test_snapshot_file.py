"""Is a memory snapshot read in both layouts, and is every damaged or hostile file refused without running anything?"""

from __future__ import annotations

import gzip
import lzma
import os
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memfit.errors import DamagedRecord, MemfitError, RecordError
from memfit.predict.snapshot.reader import read_snapshot, settings_text
from memfit.predict.snapshot.safe_pickle import read_plain_pickle
from memfit.units import MIB

FRAMES = [
    {"name": "at::empty", "filename": "??", "line": 0},
    {"name": "forward", "filename": "/home/me/model.py", "line": 12},
]
NEW_LAYOUT: dict[str, Any] = {
    "segments": [
        {
            "device": 0, "address": 4096, "total_size": 2097152, "allocated_size": 512, "active_size": 512, "stream": 0,
            "segment_type": "small", "is_expandable": False, "segment_pool_id": (0, 0),
            "blocks": [
                {"address": 4096, "size": 512, "requested_size": 100, "state": "active_allocated", "frames": FRAMES},
                {"address": 4608, "size": 2096640, "requested_size": 9, "state": "inactive", "frames": []},
            ],
        }
    ],
    "device_traces": [
        [
            {"action": "segment_alloc", "addr": 4096, "size": 2097152, "stream": 0, "time_us": 5, "frames": FRAMES},
            {"action": "alloc", "addr": 4096, "size": 100, "stream": 0, "time_us": 7, "frames": FRAMES},
            {"action": "oom", "device_free": 77, "size": 1 << 30, "stream": 0, "time_us": 8, "frames": []},
            {"action": "snapshot", "addr": 0, "size": 512, "stream": 0, "time_us": 9},
        ],
        [],
    ],
    "allocator_settings": {"max_split_size": 64 * MIB, "expandable_segments": False, "new_key_of_the_future": 1},
    "host_traces": [],
}  # fmt: skip
OLD_LAYOUT: dict[str, Any] = {
    "segments": [
        {
            "device": 1, "address": 8192, "total_size": 2097152, "segment_type": "small", "stream": 0,
            "blocks": [
                {"size": 1024, "state": "active_allocated", "history": [{"real_size": 900, "frames": FRAMES}]},
                {"size": 512, "state": "active_pending_free", "history": []},
                {"size": 2095616, "state": "inactive"},
            ],
        }
    ],
    "device_traces": [],
}  # fmt: skip


def write(folder: Path, content: Any, name: str = "snapshot.pickle") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else pickle.dumps(content))
    return path


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_snapshot_is_read_with_its_events_settings_and_stacks(tmp_path: Path, protocol: int):
    snapshot = read_snapshot(write(tmp_path, pickle.dumps(NEW_LAYOUT, protocol)))
    (device,) = snapshot.devices
    assert [event.action for event in device.events] == ["segment_alloc", "alloc", "oom", "other"]
    assert device.events[2].address == 77
    block = device.segments[0].blocks[0]
    assert (block.requested_bytes, block.state, device.segments[0].blocks[1].requested_bytes) == (100, "allocated", 0)
    assert snapshot.settings == "max_split_size_mb:64"
    assert block.stack is not None
    assert [snapshot.frames[number].name for number in snapshot.stacks[block.stack]] == ["at::empty", "forward"]
    assert len(snapshot.stacks) == 1


def test_the_layout_of_torch_2_0_is_read_with_blocks_behind_each_other(tmp_path: Path):
    (device,) = read_snapshot(write(tmp_path, OLD_LAYOUT)).devices
    blocks = device.segments[0].blocks
    assert device.device == 1
    assert [block.address for block in blocks] == [8192, 9216, 9728]
    assert [block.state for block in blocks] == ["allocated", "awaiting free", "free"]
    assert blocks[0].requested_bytes == 900


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_packed_snapshots_are_read_whatever_their_name(tmp_path: Path, pack: Any):
    plain = read_snapshot(write(tmp_path, NEW_LAYOUT)).devices
    assert read_snapshot(write(tmp_path, pack(pickle.dumps(NEW_LAYOUT)), "other.name")).devices == plain


def test_a_packed_snapshot_larger_than_one_chunk_is_read_whole(tmp_path: Path):
    events = [{"action": "alloc", "addr": number * 512, "size": number} for number in range(60_000)]
    content = NEW_LAYOUT | {"device_traces": [events]}
    for pack in (gzip.compress, lzma.compress):
        (device,) = read_snapshot(write(tmp_path, pack(pickle.dumps(content)))).devices
        assert len(device.events) == 60_000


class Hostile:
    """Would make a folder when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_names_a_function_is_refused_by_that_name_and_nothing_runs(tmp_path: Path, protocol: int):
    trap = tmp_path / "trap"
    content = NEW_LAYOUT | {"segments": [Hostile(trap)]}
    with pytest.raises(RecordError) as caught:
        read_snapshot(write(tmp_path, pickle.dumps(content, protocol)))
    assert "mkdir" in caught.value.found
    assert not trap.exists()


@pytest.mark.parametrize(
    "data",
    [
        b"", b"abc", b".", b"a.", b"K\x01K", b"\x80\x04P1\n.", b"\x80\x04\x82\x01.", b"(" * 300 + b".",
        b"\x80\x02]r\xff\xff\xff\x7f.", b"]p99999999999\n.", b"\x80\x02]r\xff\xff\xff\x00.",
        b"\x80\x05\x96\xff\xff\xff\xff\xff\x00\x00\x00.",
        b"\x80\x04\x8e\xff\xff\xff\xff\xff\x00\x00\x00.", b"\x80\x04X\xff\xff\xff\x7fab.", b"\x80\x63N.",
    ],
)  # fmt: skip
def test_bytes_that_are_no_snapshot_are_one_clear_error_in_little_memory(tmp_path: Path, data: bytes):
    path = write(tmp_path, data)
    tracemalloc.start()
    with pytest.raises(RecordError) as caught:
        read_snapshot(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert caught.value.found
    assert peak < 4 * MIB


@settings(max_examples=60)
@given(st.integers(0, len(pickle.dumps(NEW_LAYOUT)) - 1), st.integers(0, 255), st.booleans())
def test_a_file_that_is_cut_or_changed_anywhere_is_read_or_refused(position: int, byte: int, cut: bool):
    whole = pickle.dumps(NEW_LAYOUT)
    data = whole[:position] if cut else whole[:position] + bytes([byte]) + whole[position + 1 :]
    try:
        read_plain_pickle(data)
        found = "" if cut else "read"
    except MemfitError as refused:
        found = refused.found
    assert found


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_a_packed_bomb_is_stopped_at_the_limit(tmp_path: Path, pack: Any):
    path = write(tmp_path, pack(b"\x80\x04" + b"N0" * (8 * MIB)))
    with pytest.raises(RecordError, match="too large"):
        read_snapshot(path, max_file_bytes=3 * MIB)


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_a_packed_file_that_is_cut_off_says_so(tmp_path: Path, pack: Any):
    data = pack(pickle.dumps(NEW_LAYOUT))
    with pytest.raises(DamagedRecord, match="cannot be unpacked"):
        read_snapshot(write(tmp_path, data[: len(data) // 2]))


def test_a_pickle_of_countless_small_objects_is_stopped_before_they_are_made(tmp_path: Path):
    path = write(tmp_path, b"\x80\x04(" + b"]" * (2 * MIB) + b"l.")
    with pytest.raises(RecordError, match="too much memory"):
        read_snapshot(path, max_object_bytes=64 * MIB)


def test_lists_that_repeat_each_other_are_stopped(tmp_path: Path):
    event = {"action": "alloc", "addr": 0, "size": 1}
    trace = [event] * 2000
    with pytest.raises(RecordError, match="repeats itself"):
        read_snapshot(write(tmp_path, NEW_LAYOUT | {"device_traces": [trace] * 2000}))


@pytest.mark.parametrize(
    "content",
    [
        5, [1, 2], {"segments": 3}, {"no": "segments"}, {"segments": [{"address": 1}]}, {"segments": [7]},
        {"segments": [], "device_traces": [[{"size": 1}]]}, {"segments": [], "device_traces": [[[]]]},
        NEW_LAYOUT | {"allocator_settings": {"max_split_size": "many"}},
    ],
)  # fmt: skip
def test_a_pickle_of_other_things_is_refused(tmp_path: Path, content: Any):
    with pytest.raises(RecordError) as caught:
        read_snapshot(write(tmp_path, content))
    assert caught.value.found


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path):
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(RecordError, match="cannot be opened"):
            read_snapshot(path)


def test_recorded_settings_are_written_as_text_that_can_be_read_again():
    recorded = {
        "expandable_segments": True, "max_split_size": 64 * MIB, "garbage_collection_threshold": 0.8,
        "roundup_power2_divisions": {"1": 0, "2": 4, "4": 4},
    }  # fmt: skip
    assert settings_text(recorded) == (
        "expandable_segments:True,max_split_size_mb:64,garbage_collection_threshold:0.8,roundup_power2_divisions:[1:0,2:4,4:4]"
    )
    assert settings_text({"max_split_size": -1, "garbage_collection_threshold": 0.0}) == ""
    assert settings_text(None) is None
