"""Does `memfit replay` show a snapshot, print it as JSON, and refuse bad input in one line?"""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from memfit.commands import main
from memfit.units import MIB

ADDRESS = 1 << 40
FRAMES = [{"name": "forward", "filename": "/home/me/model.py", "line": 12}]


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    """Two segments, a block freed and one alive."""
    second = ADDRESS - 32 * MIB
    blocks = [
        {"address": second, "size": 24 * MIB, "requested_size": 24 * MIB, "state": "active_allocated", "frames": FRAMES}
    ]
    idle = [{"address": ADDRESS, "size": 22 * MIB, "requested_size": 0, "state": "inactive", "frames": []}]
    content: dict[str, Any] = {
        "segments": [
            {"device": 0, "address": ADDRESS, "total_size": 22 * MIB, "segment_type": "large", "blocks": idle},
            {"device": 0, "address": second, "total_size": 24 * MIB, "segment_type": "large", "blocks": blocks},
        ],
        "device_traces": [
            [
                {"action": "segment_alloc", "addr": ADDRESS, "size": 22 * MIB, "stream": 0, "time_us": 0},
                {"action": "alloc", "addr": ADDRESS, "size": 22 * MIB, "stream": 0, "time_us": 1, "frames": FRAMES},
                {"action": "free_requested", "addr": ADDRESS, "size": 22 * MIB, "stream": 0, "time_us": 2},
                {"action": "free_completed", "addr": ADDRESS, "size": 22 * MIB, "stream": 0, "time_us": 3},
                {"action": "segment_alloc", "addr": second, "size": 24 * MIB, "stream": 0, "time_us": 4},
                {"action": "alloc", "addr": second, "size": 24 * MIB, "time_us": 2_000_000, "frames": FRAMES},
            ]
        ],
    }  # fmt: skip
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(content))
    return path


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(["replay", *arguments])
    return int(left.value.code or 0)


def test_the_report_shows_peaks_lines_fragmentation_and_other_settings(
    snapshot: Path, capsys: pytest.CaptureFixture[str]
):
    assert run(str(snapshot), "--alloc-conf", "max_split_size_mb:23") == 0
    text = capsys.readouterr().out
    assert "reserved   46.0 MiB  measured" in text
    assert "model.py:12 in forward" in text
    assert "22.0 MiB (47.8 %)" in text
    assert "max_split_size_mb:23" in text
    assert "predicted" in text
    assert "2 of 2 allocations at the recorded address, 2 of 2 new segments" in " ".join(text.split())


def test_json_is_the_record_the_text_is_drawn_from(snapshot: Path, capsys: pytest.CaptureFixture[str]):
    assert run(str(snapshot), "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["peaks"]["reserved"] == {
        "value": 46 * MIB, "unit": "bytes", "source": "measured", "method": "segments in the recording",
    }  # fmt: skip
    assert record["duration_seconds"] == 2.0
    assert record["agreement"]["num_same_place"] == 2
    assert record["what_if"][1]["settings"] == "expandable_segments:True"


def test_on_a_device_too_small_the_row_says_out_of_memory(snapshot: Path, capsys: pytest.CaptureFixture[str]):
    assert run(str(snapshot), "--memory", "23MiB") == 0
    assert "out of memory" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--alloc-conf", "nonsense:1"], 2, "unknown allocator setting"),
        (["--gpu", "4"], 2, "nothing of this device"),
        (["--memory", "much"], 2, "not a size"),
    ],
)
def test_a_wrong_request_is_one_clear_line(
    snapshot: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, words: str
):
    assert run(str(snapshot), *arguments) == code
    out = capsys.readouterr()
    assert words in out.err
    assert "Traceback" not in out.err
    assert out.out == ""


def test_a_file_that_is_no_snapshot_is_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "other.txt"
    path.write_text("hello")
    assert run(str(path)) == 1
    assert "not a whole memory snapshot" in capsys.readouterr().err
