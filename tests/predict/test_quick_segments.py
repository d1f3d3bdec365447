"""Are the segments of a snapshot read without its events the same ones, and is a hostile file refused?"""

from __future__ import annotations

import io
import pickle
from pathlib import Path

import pytest

from memfit.errors import RecordError
from memfit.predict.snapshot.quick_segments import read_segments
from memfit.predict.snapshot.reader import read_snapshot

FRAME = {"name": "forward", "filename": "/home/someone/model.py", "line": 12}


def content(num_segments: int, num_events: int) -> dict[str, object]:
    segments = [
        {
            "device": 0, "address": 2**40 + number * 2**21, "total_size": 2**21, "stream": 0, "segment_type": "small",
            "blocks": [
                {"size": 2**20, "requested_size": 2**20 - 4, "state": "active_allocated", "frames": [FRAME]},
                {"size": 2**20, "requested_size": 0, "state": "inactive", "frames": []},
            ],
        }
        for number in range(num_segments)
    ]  # fmt: skip
    events = [
        {"action": "alloc", "addr": 2**40 + number, "size": 512, "stream": 0, "frames": [FRAME]}
        for number in range(num_events)
    ]  # fmt: skip
    return {"segments": segments, "device_traces": [events], "allocator_settings": {}}


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("size", [1, 1500])
def test_the_segments_are_those_of_the_whole_file(tmp_path: Path, protocol: int, size: int):
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(content(size, 30), protocol=protocol))
    found, whole = read_segments(path), read_snapshot(path)
    assert found is not None
    assert found.devices[0].segments == whole.devices[0].segments
    assert found.devices[0].events == ()


def test_it_stops_before_the_events(tmp_path: Path):
    path = tmp_path / "cut.pickle"
    data = pickle.dumps(content(3, 2000), protocol=4)
    path.write_bytes(data[: data.index(b"device_traces") + 40])
    assert read_segments(path) is not None


def test_a_name_to_run_is_refused_and_other_files_are_left_to_the_whole_reader(tmp_path: Path):
    path = tmp_path / "bomb.pickle"
    path.write_bytes(b"\x80\x04}(\x8c\x08segments\x8c\x05posix\x8c\x06system\x93.")
    with pytest.raises(RecordError, match="names something to run"):
        read_segments(path)
    for data in (b"", b"x" * 5000, pickle.dumps([1, 2]), io.BytesIO(pickle.dumps({"a": 1})).getvalue()):
        path.write_bytes(data)
        assert read_segments(path) is None
