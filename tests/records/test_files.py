"""Does a run folder open in whatever state a crash, a full disk or a stranger left it?"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memfit.records.files import layout
from memfit.records.run_parts.samples import samples_from_bytes
from memfit.runfolder.reader import read_run
from memfit.runfolder.writer import RunWriter
from memfit.testing.contracts.reader import Read, ReaderContract


class TestRunFolders(ReaderContract):
    @pytest.fixture
    def read(self) -> Read:
        return read_run


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
