"""Contract of a reader of run folders: subclass it, give it `read`, and pytest runs these laws on your reader.

    class TestMyReader(ReaderContract):
        @pytest.fixture
        def read(self):
            return my_reader

Needs pytest and hypothesis. The folders are those of `memfit.testing.made_records.runs`, whole, cut off at any
byte, and with anything a crash, a full disk or a stranger may have left in them.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memfit.errors import DamagedRecord, NewerFormat, NotARun, RecordError
from memfit.records.files import layout
from memfit.records.run import RunRecord
from memfit.records.run_parts.samples import SAMPLE_DTYPE
from memfit.testing.made_records.runs import ROOT_PID, Ending, MadeRun, write_made_run

Files = dict[str, bytes]
Read = Callable[[Path], RunRecord]
SHARED = (HealthCheck.function_scoped_fixture, HealthCheck.differing_executors)
"""All examples of a law share the fixtures of pytest, and all subclasses share the law."""
FILES = (layout.SAMPLES_FILE, layout.EVENTS_FILE, f"marks-{ROOT_PID}.txt", f"ledger-{ROOT_PID}.jsonl")
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
EVENTS = st.lists(
    st.tuples(st.sampled_from(KINDS), st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4)), max_size=5
)
ENDINGS: tuple[Ending, ...] = ("done", "failed", "killed", "out of memory", "lost")


def many(max_examples: int) -> settings:
    """Hypothesis beside fixtures of pytest, which all examples share."""
    return settings(max_examples=max_examples, deadline=None, suppress_health_check=SHARED)


def lay_out(folder: Path, files: Files) -> Path:
    """A folder with these files, of which those of an earlier example are replaced."""
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


class ReaderContract:
    """What every reader of run folders does, whatever it makes of them."""

    @pytest.fixture
    def read(self) -> Read:
        """The reader to judge: from a folder to a record."""
        raise NotImplementedError("give your reader in a fixture called `read`")

    @pytest.fixture
    def made(self, tmp_path: Path) -> Files:
        """The files of a whole run with a worker and a ledger."""
        plan = MadeRun(seconds=4.0, num_workers=1, ledger=True)
        folder = write_made_run(tmp_path / "made" / "run", plan)
        return {path.name: path.read_bytes() for path in folder.iterdir()}

    def test_a_whole_run_is_read_without_a_note_and_its_files_are_left_alone(
        self, read: Read, made: Files, tmp_path: Path
    ):
        folder = lay_out(tmp_path / "run", made)
        record = read(folder)
        assert record.notes == ()
        assert record.header.command == ("python", "train.py", "--batch-size", "64")
        assert len(record.samples) == len(made[layout.SAMPLES_FILE]) // SAMPLE_DTYPE.itemsize
        assert len(record.processes) == 2
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == made

    def test_reading_twice_gives_the_same_figures(self, read: Read, made: Files, tmp_path: Path):
        folder = lay_out(tmp_path / "run", made)
        first, again = read(folder), read(folder)
        assert (first.peak, first.outcome, first.processes, first.notes) == (
            again.peak, again.outcome, again.processes, again.notes,
        )  # fmt: skip

    @pytest.mark.parametrize("ending", ENDINGS)
    def test_the_peak_is_at_least_the_largest_sample_and_the_end_is_known(
        self, read: Read, tmp_path: Path, ending: Ending
    ):
        record = read(write_made_run(tmp_path / "run", MadeRun(seconds=4.0, ending=ending)))
        assert record.outcome.kind == ending
        assert record.peak.value is not None
        assert record.peak.value >= record.samples.resident_bytes.max()

    @many(60)
    @given(data=st.data())
    def test_a_run_cut_off_at_any_byte_of_any_file_still_opens(
        self, read: Read, made: Files, tmp_path: Path, data: st.DataObject
    ):
        files = dict(made)
        for name in data.draw(st.sets(st.sampled_from(FILES), min_size=1)):
            files[name] = files[name][: data.draw(st.integers(0, len(files[name])), label=name)]
        record = read(lay_out(tmp_path / "cut", files))
        assert len(record.samples) <= len(made[layout.SAMPLES_FILE]) // SAMPLE_DTYPE.itemsize
        assert record.peak.value is not None or record.peak.reason

    @many(60)
    @given(name=st.sampled_from((*FILES, layout.HEADER_FILE)), junk=st.binary(max_size=300))
    def test_junk_in_any_file_is_an_error_of_ours_or_a_note_never_a_crash(
        self, read: Read, made: Files, tmp_path: Path, name: str, junk: bytes
    ):
        folder = lay_out(tmp_path / "junk", {**made, name: made[name][:100] + junk})
        if name != layout.HEADER_FILE:
            read(folder)
            return
        with contextlib.suppress(RecordError):
            read(folder)

    @many(150)
    @given(events=EVENTS)
    def test_events_with_missing_or_mistyped_fields_become_notes(
        self, read: Read, made: Files, tmp_path: Path, events: list[tuple[str, dict[str, object]]]
    ):
        lines = "".join(json.dumps({"kind": kind, **facts}) + "\n" for kind, facts in events)
        files = {**made, layout.EVENTS_FILE: made[layout.EVENTS_FILE] + lines.encode()}
        assert len(read(lay_out(tmp_path / "odd", files)).processes) >= 2

    def test_a_folder_that_is_no_run_is_named_as_such(self, read: Read, tmp_path: Path):
        with pytest.raises(NotARun, match="no such folder"):
            read(tmp_path / "nowhere")
        with pytest.raises(NotARun, match=r"no run\.json"):
            read(tmp_path)

    def test_events_that_cannot_be_read_are_an_error_and_not_a_run_that_was_lost(
        self, read: Read, made: Files, tmp_path: Path
    ):
        files = {name: content for name, content in made.items() if name != layout.EVENTS_FILE}
        folder = lay_out(tmp_path / "run", files)
        assert read(folder).notes, "events that are missing are noticed: that run was cut off"
        (folder / layout.EVENTS_FILE).mkdir()
        with pytest.raises(DamagedRecord, match=r"events\.jsonl cannot be read"):
            read(folder)

    def test_a_newer_format_is_refused_with_both_versions(self, read: Read, made: Files, tmp_path: Path):
        header = json.loads(made[layout.HEADER_FILE])
        header["format_version"] = layout.FORMAT_VERSION + 1
        folder = lay_out(tmp_path / "new", {**made, layout.HEADER_FILE: json.dumps(header).encode()})
        versions = f"format {layout.FORMAT_VERSION + 1}, this memfit reads up to {layout.FORMAT_VERSION}"
        with pytest.raises(NewerFormat, match=versions):
            read(folder)

    @pytest.mark.parametrize(
        "content", [b"", b"{", b"[]", b'{"format":"memfit-run"}', b'{"format":"memfit-run","format_version":1}']
    )
    def test_a_broken_header_is_one_clear_error(self, read: Read, tmp_path: Path, content: bytes):
        folder = lay_out(tmp_path / "broken", {layout.HEADER_FILE: content})
        with pytest.raises((DamagedRecord, NotARun)):
            read(folder)
