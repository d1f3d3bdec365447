"""When is a peak exact, and are its bounds always in order?"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.records.figure import Figure
from memfit.records.run import RunRecord
from memfit.runfolder.events import JobEnded
from memfit.runfolder.peaks import Readings, process_peaks
from memfit.runfolder.reader import read_run
from memfit.show.wording import bounds_text
from memfit.testing.made_records.processes import MadeProcess, MadeTree, write_made_tree
from memfit.units import KIB, MIB

NUMBERS = st.none() | st.floats(-1e15, 1e15)


@given(low=NUMBERS, value=NUMBERS, high=NUMBERS)
def test_no_figure_has_its_bounds_in_the_wrong_order(low, value, high):
    figure = Figure(value=value, unit="bytes", source="measured", low=low, high=high, reason="none")
    known = [number for number in (figure.low, figure.value, figure.high) if number is not None]
    assert known == sorted(known)
    assert msgspec.json.decode(msgspec.json.encode(figure), type=Figure) == figure


def test_a_figure_of_an_old_record_opens_with_its_bounds_put_in_order():
    raw = b'{"value": 10.5, "unit": "bytes", "source": "measured", "low": 10.5, "high": 10.3}'
    assert msgspec.json.decode(raw, type=Figure).high == 10.5


@given(seen=st.integers(1, 12 * MIB), told=st.integers(1, 12 * MIB))
def test_a_program_smaller_than_its_starter_is_bounded_by_the_end_value_or_agrees_with_it(seen: int, told: int):
    final = JobEnded(time_us=1, max_resident_bytes=told, floor_bytes=12 * MIB)
    figure = process_peaks({0: Readings(sampled_bytes=seen)}, final)[0]
    assert figure.value is not None
    assert figure.value >= seen
    if abs(told - seen) <= 512 * KIB:
        assert bounds_text(figure) == "exact"
        assert figure.value == max(told, seen)
    elif told > seen:
        assert (figure.low, figure.high) == (seen, told)


def run_of(tmp_path: Path, *processes: MadeProcess, **facts) -> RunRecord:
    return read_run(write_made_tree(tmp_path / "run", MadeTree(processes=processes, **facts)))


def steady(pid: int, size: int, *, parent_pid: int = 1, command: str = "sh", until: int = 100) -> MadeProcess:
    samples = tuple((number * 10_000, size) for number in range(until))
    return MadeProcess(pid=pid, parent_pid=parent_pid, command=command, samples=samples)


def job(pid: int, *, parent_pid: int = 1, until: int = 100) -> MadeProcess:
    samples = tuple((number * 10_000, 200 * MIB + number * MIB // 2) for number in range(until))
    return MadeProcess(pid=pid, parent_pid=parent_pid, command="python train.py", samples=samples)


HIGHEST = 200 * MIB + 99 * MIB // 2


def walks(*moments: tuple[int, int]) -> tuple:
    """Page walks over a wrapper of 1.5 MiB and the job: (microseconds, bytes that the wrapper adds)."""
    return tuple((at, ((0, 1536 * KIB, added), (1, 210 * MIB, 210 * MIB))) for at, added in moments)


def test_behind_a_wrapper_that_waits_the_end_value_of_the_kernel_is_exact(tmp_path: Path):
    record = run_of(
        tmp_path, steady(100, 1536 * KIB), job(101, parent_pid=100),
        walks=walks((200_000, 100 * KIB), (900_000, 120 * KIB)), reported_bytes=HIGHEST + 64 * KIB,
    )  # fmt: skip
    assert bounds_text(record.peak) == "exact"
    assert record.peak.value == HIGHEST + 64 * KIB + 120 * KIB
    assert record.peak_process == 1
    assert "sh" in record.peak.method


def test_without_a_walk_a_wrapper_counts_from_nothing_to_its_whole_size(tmp_path: Path):
    record = run_of(tmp_path, steady(100, 1536 * KIB), job(101, parent_pid=100), reported_bytes=HIGHEST)
    assert (record.peak.low, record.peak.high) == (HIGHEST, HIGHEST + 1536 * KIB)


def test_an_end_value_that_does_not_agree_makes_nothing_exact(tmp_path: Path):
    record = run_of(
        tmp_path, steady(100, 1536 * KIB), job(101, parent_pid=100), walks=walks((200_000, 0)),
        reported_bytes=HIGHEST + 40 * MIB,
    )  # fmt: skip
    assert record.peak.low == HIGHEST + 40 * MIB, "the kernel says that some process was that large"
    assert bounds_text(record.peak) != "exact"


def test_a_shim_that_became_the_program_is_exact_though_its_helpers_were_processes_too(tmp_path: Path):
    helper = MadeProcess(pid=200, parent_pid=100, command="dirname", samples=((0, 2 * MIB),))
    unread = MadeProcess(pid=201, parent_pid=100, command="pyenv-which")
    record = run_of(tmp_path, job(100), helper, unread, reported_bytes=HIGHEST)
    assert bounds_text(record.peak) == "exact"
    assert (record.peak.value, record.peak_process) == (HIGHEST, 0)


@pytest.mark.parametrize("command", ["python train.py", "python worker.py"])
def test_workers_beside_the_job_are_no_wrappers(tmp_path: Path, command: str):
    worker = steady(101, 150 * MIB, parent_pid=100, command=command)
    record = run_of(tmp_path, job(100), worker, reported_bytes=HIGHEST)
    assert record.peak.high == HIGHEST + 150 * MIB
    assert record.peak_process is None


def test_a_parent_that_forked_its_trainer_shares_too_much_to_be_a_wrapper(tmp_path: Path):
    parent = steady(100, 150 * MIB, command="python train.py")
    record = run_of(
        tmp_path, parent, job(101, parent_pid=100), reported_bytes=HIGHEST,
        walks=((500_000, ((0, 150 * MIB, 10 * MIB), (1, 225 * MIB, 225 * MIB))),),
    )  # fmt: skip
    assert bounds_text(record.peak) != "exact"


def test_two_processes_near_the_end_value_leave_open_which_of_them_it_was(tmp_path: Path):
    twin = MadeProcess(pid=101, parent_pid=100, samples=((0, HIGHEST - 100 * KIB),), command="other")
    record = run_of(tmp_path, job(100), twin, reported_bytes=HIGHEST + 10 * KIB)
    assert [bounds_text(process.peak)[:8] for process in record.processes] == ["at least"] * 2


@pytest.mark.parametrize("num_unread", [1, 3])
def test_beside_processes_that_were_never_read_a_tree_has_no_upper_bound(tmp_path: Path, num_unread: int):
    unread = [MadeProcess(pid=300 + number, parent_pid=100, command="true") for number in range(num_unread)]
    record = run_of(tmp_path, steady(100, 8 * MIB), *unread, reported_bytes=9 * MIB)
    assert (record.peak.low, record.peak.high) == (8 * MIB, None)
    assert bounds_text(record.peak) == "at least"
    assert f"{num_unread} processes that ended" in record.peak.method or num_unread == 1
