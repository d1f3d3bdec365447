"""Does a run folder open in whatever state a crash, a full disk or a stranger left it?"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memfit.errors import DamagedRecord, NewerFormat, NotARun, RecordError
from memfit.records import layout
from memfit.records.samples import SAMPLE_DTYPE, samples_from_bytes
from memfit.runfolder.reader import read_run
from memfit.runfolder.writer import RunWriter
from memfit.testing.made_runs import MadeRun, write_made_run

FILES = (layout.SAMPLES_FILE, layout.EVENTS_FILE, "marks-4711.txt", "ledger-4711.jsonl")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = write_made_run(tmp_path_factory.mktemp("made") / "run", MadeRun(seconds=4.0, num_workers=1, ledger=True))
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def lay_out(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_run_cut_off_at_any_byte_of_any_file_still_opens(made, tmp_path: Path, data: st.DataObject):
    files = dict(made)
    for name in data.draw(st.sets(st.sampled_from(FILES), min_size=1)):
        files[name] = files[name][: data.draw(st.integers(0, len(files[name])), label=name)]
    record = read_run(lay_out(tmp_path / "cut", files))
    assert len(record.samples) <= len(made[layout.SAMPLES_FILE]) // SAMPLE_DTYPE.itemsize
    assert record.peak.value is not None or record.peak.reason


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from((*FILES, layout.HEADER_FILE)), junk=st.binary(max_size=300))
def test_junk_in_any_file_is_an_error_of_ours_or_a_note_never_a_crash(made, tmp_path: Path, name: str, junk: bytes):
    folder = lay_out(tmp_path / "junk", {**made, name: made[name][:100] + junk})
    if name != layout.HEADER_FILE:
        read_run(folder)
        return
    with contextlib.suppress(RecordError):
        read_run(folder)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)
KINDS = (
    "process_started", "counters", "tree", "system", "maps", "gpu", "energy", "sampler", "job_ended", "limit", "note",
    "process_renamed", "process_ended", "from the future",
)  # fmt: skip
FIELDS = (
    "process", "pid", "time_us", "processes", "resident_bytes", "signal", "exit_code", "total_bytes", "joules",
    "command", "cpu_seconds", "max_resident_bytes", "message", "parent_pid",
)  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    events=st.lists(
        st.tuples(st.sampled_from(KINDS), st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4)), max_size=5
    )
)
def test_events_with_missing_or_mistyped_fields_become_notes(made, tmp_path: Path, events: list[tuple[str, dict]]):
    lines = "".join(json.dumps({"kind": kind, **facts}) + "\n" for kind, facts in events)
    folder = lay_out(tmp_path / "odd", {**made, layout.EVENTS_FILE: made[layout.EVENTS_FILE] + lines.encode()})
    record = read_run(folder)
    assert len(record.processes) >= 2


@settings(max_examples=100, deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            st.integers(0, 2**40), st.integers(0, 2**40), st.integers(0, 9), st.integers(0, 1), st.integers(0, 2**44)
        ),
        max_size=30,
    )
)
def test_samples_come_back_as_they_were_written(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, ...]]):
    folder = tmp_path_factory.mktemp("rows")
    writer = RunWriter(folder)
    for time_us, late_us, process, flags, resident_bytes in rows:
        writer.sample(time_us, late_us, process, flags, resident_bytes, resident_bytes // 2)
    writer.close()
    samples = samples_from_bytes((folder / layout.SAMPLES_FILE).read_bytes())
    good = [row for row in rows if row[3] == 0]
    assert samples.num_failed == len(rows) - len(good)
    assert samples.resident_bytes.tolist() == [row[4] for row in good]
    assert np.allclose(samples.time_seconds * 1e6, [row[0] for row in good])
    assert samples.late_seconds.max(initial=0) <= 0xFFFFFFFF / 1e6


def test_a_folder_that_is_no_run_is_named_as_such(tmp_path: Path):
    with pytest.raises(NotARun, match="no such folder"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(NotARun, match=r"no run\.json"):
        read_run(tmp_path)


def test_events_that_cannot_be_read_are_an_error_and_not_a_run_that_was_lost(made, tmp_path: Path):
    folder = lay_out(tmp_path / "run", {name: data for name, data in made.items() if name != layout.EVENTS_FILE})
    assert read_run(folder).notes, "events that are missing are told apart: that run was cut off"
    (folder / layout.EVENTS_FILE).mkdir()
    with pytest.raises(DamagedRecord, match=r"events\.jsonl cannot be read"):
        read_run(folder)


def test_a_newer_format_is_refused_with_both_versions(made, tmp_path: Path):
    header = json.loads(made[layout.HEADER_FILE])
    header["format_version"] = layout.FORMAT_VERSION + 1
    folder = lay_out(tmp_path / "new", {**made, layout.HEADER_FILE: json.dumps(header).encode()})
    with pytest.raises(
        NewerFormat, match=f"format {layout.FORMAT_VERSION + 1}, this memfit reads up to {layout.FORMAT_VERSION}"
    ):
        read_run(folder)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"format":"memfit-run"}', b'{"format":"memfit-run","format_version":1}']
)
def test_a_broken_header_is_one_clear_error(tmp_path: Path, content: bytes):
    folder = lay_out(tmp_path / "broken", {layout.HEADER_FILE: content})
    with pytest.raises((DamagedRecord, NotARun)):
        read_run(folder)


def test_a_writer_on_a_full_disk_stops_writing_and_tells_why(tmp_path: Path):
    (tmp_path / layout.SAMPLES_FILE).symlink_to("/dev/full")
    writer = RunWriter(tmp_path)
    writer.sample(1, 0, 0, 0, 4096, 0)
    writer.flush()
    assert writer.failure is not None
    assert writer.failure.strerror == "No space left on device"
    writer.sample(2, 0, 0, 0, 4096, 0)
    writer.event("note", 3, message="not written")
    writer.close()
    assert (tmp_path / layout.EVENTS_FILE).read_bytes() == b""
