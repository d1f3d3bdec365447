"""Does every combination of processes open: never sampled, sampled once or often, with and without marks and walks?"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from memfit.api import view_run
from memfit.records.run import RunRecord
from memfit.runfolder.reader import read_run
from memfit.show.terminal.run import summary_text
from memfit.testing.made_records.processes import MadeProcess, MadeTree, write_made_tree
from memfit.units import MIB

SIZES = st.integers(0, 4096 * MIB)
TIMES = st.integers(0, 4_000_000)


@st.composite
def any_process(draw: st.DrawFn, index: int) -> MadeProcess:
    times = draw(st.lists(TIMES, max_size=4, unique=True).map(sorted))
    return MadeProcess(
        pid=100 + index,
        parent_pid=draw(st.integers(99, 99 + index)),
        command=draw(st.sampled_from(["sh", "python"])),
        is_announced=draw(st.booleans()),
        samples=tuple((time_us, draw(SIZES)) for time_us in times),
        high_water_bytes=draw(st.none() | SIZES),
        marked_peaks_bytes=draw(st.none() | st.lists(SIZES, max_size=3).map(tuple)),
        exit_mark=draw(st.booleans()),
        num_fault_readings=draw(st.integers(0, 3)),
    )


@st.composite
def any_tree(draw: st.DrawFn) -> MadeTree:
    number = draw(st.integers(0, 4))
    rows = st.tuples(st.integers(0, 4), SIZES, SIZES)
    walks = st.lists(st.tuples(TIMES, st.lists(rows, max_size=4, unique_by=lambda row: row[0]).map(tuple)), max_size=3)
    return MadeTree(
        processes=tuple(draw(any_process(index)) for index in range(number)),
        walks=tuple(draw(walks)),
        reported_bytes=draw(st.none() | SIZES),
    )


def check_laws(record: RunRecord) -> None:
    peak = record.peak
    highest = record.samples.resident_bytes.max(initial=0)
    assert peak.value is not None or peak.reason
    assert peak.value is not None or highest == 0
    if peak.value is not None:
        assert peak.value >= highest
        assert peak.value >= record.tree.tree_bytes.max(initial=0)
        assert peak.value >= np.nanmax(record.steps.peak_bytes, initial=0)
        assert all(peak.value >= (process.peak.value or 0) for process in record.processes)
        assert peak.low is None or peak.low <= peak.value
        assert peak.high is None or peak.value <= peak.high
    assert np.all(record.tree.tree_bytes <= record.tree.summed_resident_bytes)
    for process in record.processes:
        own = record.samples.resident_bytes[record.samples.process == process.index]
        assert (process.peak.value or 0) >= own.max(initial=0)
    assert set(record.samples.process.tolist()) <= {process.index for process in record.processes}


@settings(max_examples=250, deadline=None)
@given(tree=any_tree())
def test_every_combination_of_processes_opens_and_adds_up(tree: MadeTree):
    with tempfile.TemporaryDirectory() as folder:
        record = read_run(write_made_tree(Path(folder) / "run", tree))
    check_laws(record)
    assert summary_text(view_run(record))


def test_a_process_that_was_walked_and_counted_but_never_sampled_does_not_spoil_the_record(tmp_path: Path):
    sampled = MadeProcess(pid=1, samples=((1000, 20 * MIB), (2000, 30 * MIB)), num_fault_readings=2)
    unsampled = MadeProcess(pid=2, parent_pid=1, num_fault_readings=2)
    both = ((1500, ((0, 20 * MIB, 18 * MIB), (1, 20 * MIB, 2 * MIB))),)
    record = read_run(write_made_tree(tmp_path / "run", MadeTree(processes=(sampled, unsampled), walks=both)))
    check_laws(record)
    assert record.peak.value == 30 * MIB
    assert record.processes[1].peak.value is None


def test_samples_of_a_process_that_was_never_announced_are_kept(tmp_path: Path):
    known = MadeProcess(pid=1, samples=((1000, 20 * MIB),))
    lost = MadeProcess(pid=2, samples=((1000, 90 * MIB),), is_announced=False)
    record = read_run(write_made_tree(tmp_path / "run", MadeTree(processes=(known, lost))))
    check_laws(record)
    assert record.peak.value is not None
    assert record.peak.value >= 90 * MIB
    assert "missing" in record.processes[1].command
