"""Do marks stay within their share of the time on any machine, and stay exact where short steps share one peak?

The clock is made: a step takes what the test says, and a mark what a machine could take.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memfit.inside import marks as marks_module
from memfit.inside.marks import LONGEST_GROUP_NS, PHASE_SHARE, READING_SHARE, UNSEEN, Marks
from memfit.measure.sampler.watch_marks import MarksWatcher
from memfit.records.run_parts.steps import SEVERAL_OPTIMIZERS
from memfit.runfolder.marks import MarksFile, read_marks

MIB = 1024**2
US, MS, SECOND = 1_000, 1_000_000, 1_000_000_000
BUDGET = (PHASE_SHARE + READING_SHARE) / UNSEEN
"""What the clock may see of the marks."""
WARM_NS = SECOND


class MadeMachine:
    """A clock that only moves when something takes time, and a high-water mark that is set by hand."""

    def __init__(self, mark_ns: int) -> None:
        self.now_ns = 1_000 * SECOND
        self.mark_ns = mark_ns
        self.spent_ns = 0
        self.peak_bytes = self.base_bytes = 100 * MIB
        self.failure = None

    def clock(self) -> int:
        return self.now_ns

    def read_and_reset(self) -> int:
        self.now_ns += self.mark_ns
        self.spent_ns += self.mark_ns
        peak_bytes, self.peak_bytes = self.peak_bytes, self.base_bytes
        return peak_bytes

    def read_status(self) -> int:
        return self.peak_bytes

    def open(self) -> int:
        return self.peak_bytes

    def close(self) -> None:
        pass


class MadeTraining:
    """Steps on such a machine, marked as torch's hooks mark them."""

    def __init__(self, folder: Path, mark_ns: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.machine = MadeMachine(mark_ns)
        monkeypatch.setattr(marks_module, "monotonic_ns", self.machine.clock)
        monkeypatch.setattr(marks_module, "HighWater", lambda: self.machine)
        monkeypatch.setattr(marks_module, "_call_at_exit", lambda function: None)
        self.folder = folder
        for old in folder.glob("marks-*.txt"):
            old.unlink()
        self.marks = Marks()
        self.marks.start(str(folder))

    def step(self, length_ns: int, *, optimizer: bytes = b" 0", spike_bytes: int = 0) -> None:
        for letter in (b"F", b"B"):
            self.machine.now_ns += length_ns // 4
            self.marks.phase_begins(letter)
        self.machine.peak_bytes = max(self.machine.peak_bytes, spike_bytes)
        self.machine.now_ns += length_ns // 4
        self.marks.phase_begins(b"U", optimizer)
        self.machine.now_ns += length_ns // 4
        self.marks.complete_step(optimizer)

    def read(self) -> MarksFile:
        self.marks.end()
        (path,) = self.folder.glob("marks-*.txt")
        read = read_marks(path, process=0, clock_start_ns=0)
        assert read is not None
        return read


@pytest.mark.parametrize("length_ns", [50 * US, 300 * US, 1 * MS, 2 * MS, 5 * MS, 50 * MS, 400 * MS])
@pytest.mark.parametrize("mark_ns", [2 * US, 10 * US, 40 * US, 100 * US])
def test_marks_take_no_more_than_their_share_of_the_time_whatever_they_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length_ns: int, mark_ns: int
):
    training = MadeTraining(tmp_path, mark_ns, monkeypatch)
    machine = training.machine
    until_ns = machine.now_ns + WARM_NS
    while machine.now_ns < until_ns:
        training.step(length_ns)
    began_ns, machine.spent_ns = machine.now_ns, 0
    while machine.now_ns < began_ns + 20 * SECOND:
        training.step(length_ns)
    share = machine.spent_ns / (machine.now_ns - began_ns)
    assert share <= 1.05 * BUDGET
    steps = training.read().steps
    assert steps.group_size.max() <= 1 + LONGEST_GROUP_NS // length_ns
    assert (~steps.is_whole)[3:].any(), "the phases of some steps are told"


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([100 * US, 1 * MS, 7 * MS, 60 * MS]), st.integers(1, 60)), min_size=1, max_size=8
    ),
    st.sampled_from([3 * US, 40 * US, 300 * US]),
    st.integers(0, 400),
)
def test_no_step_and_no_peak_is_lost_however_steps_are_grouped(
    tmp_path_factory: pytest.TempPathFactory, stretches: list[tuple[int, int]], mark_ns: int, spiked: int
):
    with pytest.MonkeyPatch.context() as monkeypatch:
        training = MadeTraining(tmp_path_factory.getbasetemp(), mark_ns, monkeypatch)
        lengths = [length for length, num_steps in stretches for _ in range(num_steps)]
        spiked %= len(lengths)
        for number, length_ns in enumerate(lengths):
            training.step(length_ns, spike_bytes=900 * MIB if number == spiked else 0)
        read = training.read()
    steps = read.steps
    assert read.peak_bytes == 900 * MIB
    assert (steps.total, read.last_step) == (len(lengths), len(lengths))
    assert list(steps.first_step[1:]) == list(steps.step[:-1] + 1)
    (row,) = [i for i in range(len(steps)) if steps.peak_bytes[i] == 900 * MIB]
    assert steps.first_step[row] <= spiked + 1 <= steps.step[row]
    took_seconds = sum(lengths[: int(steps.step[-1])]) / 1e9
    assert abs(float((steps.end_seconds - steps.begin_seconds).sum()) - took_seconds) < 0.3 * took_seconds + 0.1


def test_a_peak_for_every_step_comes_back_as_soon_as_steps_are_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    training = MadeTraining(tmp_path, 40 * US, monkeypatch)
    for _ in range(2000):
        training.step(1 * MS)
    for _ in range(40):
        training.step(300 * MS)
    steps = training.read().steps
    assert steps.group_size[steps.step <= 2000].max() > 20
    late = steps.first_step > 2001
    assert (steps.group_size[late] == 1).all()
    assert not steps.is_whole[late][2:].any(), "long steps tell their phases"


def test_two_optimizers_in_one_group_are_counted_apart_and_shown_as_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    training = MadeTraining(tmp_path, 40 * US, monkeypatch)
    for _ in range(300):
        training.step(1 * MS)
        training.step(1 * MS, optimizer=b" 1")
    read = training.read()
    groups = read.steps.group_size > 2
    assert groups.any()
    assert set(read.steps.optimizer[groups]) == {SEVERAL_OPTIMIZERS}
    assert read.steps.total == 600


def test_a_phase_named_by_the_user_ends_the_group_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    training = MadeTraining(tmp_path, 40 * US, monkeypatch)
    while not training.marks.is_grouping or not training.marks._counted:
        training.step(1 * MS)
    num_before = training.marks.step - 1
    with training.marks.named_phase("checkpoint"):
        training.machine.peak_bytes = 700 * MIB
    training.step(1 * MS)
    read = training.read()
    assert num_before in read.steps.step
    assert read.steps.peak_bytes[read.steps.step == num_before] == 100 * MIB
    assert (700 * MIB) in [peak for _, name, peak in read.named_phases if name == "checkpoint"]


def test_a_guard_has_a_peak_for_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MEMFIT_LIMIT_BYTES", str(10**12))
    training = MadeTraining(tmp_path, 40 * US, monkeypatch)
    for _ in range(300):
        training.step(1 * MS)
    assert (training.read().steps.group_size == 1).all()


def test_an_exception_is_told_behind_the_group_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    training = MadeTraining(tmp_path, 40 * US, monkeypatch)
    while not training.marks._counted:
        training.step(1 * MS)
    num_steps = training.marks.step - 1
    training.machine.peak_bytes = 800 * MIB
    training.marks.exception(MemoryError, MemoryError("no more"), True, "backward")
    (path,) = tmp_path.glob("marks-*.txt")
    read = read_marks(path, process=0, clock_start_ns=0)
    assert read is not None
    assert (read.last_step, read.last_phase, read.peak_bytes) == (num_steps, "backward", 800 * MIB)


def test_the_live_line_counts_the_steps_of_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    training = MadeTraining(tmp_path, 40 * US, monkeypatch)
    for _ in range(500):
        training.step(1 * MS)
    training.marks.end()
    step, _ = MarksWatcher(str(tmp_path)).where(0)
    assert step == 501


@pytest.mark.parametrize("pairs", ["", "0 0", "3", "x 0", "4 0 1", "3 -1", "99999999999999999999 0"])
def test_a_damaged_group_is_left_out_with_a_note(tmp_path: Path, pairs: str):
    path = tmp_path / "marks-7.txt"
    path.write_text(f'H {{"pid": 7}}\nP 1 5 data\nS 10 7 0\nG 20 9 {pairs}\nS 30 8 0\n')
    read = read_marks(path, process=0, clock_start_ns=0)
    assert read is not None
    assert read.steps.total == 2
    assert any("group" in note for note in read.notes)
