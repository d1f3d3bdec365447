"""Can every marks file be read, however it was cut off or scribbled on, and does it say what was written?"""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from memfit.runfolder.marks import MarksFile, read_marks

HEAD = 'H {"format": "memfit-marks", "version": 1, "pid": 7, "python": "3.11.7"}\n'
PHASES = ("F", "B", "U", "S")


def read(content: bytes) -> MarksFile | None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "marks-7.txt"
        path.write_bytes(content)
        return read_marks(path, process=3, clock_start_ns=0)


def step_lines(number: int, peaks: list[int]) -> str:
    start_ns = number * 1_000_000
    return "".join(
        f"{letter} {start_ns + i} {peak}{' 0' if letter in 'US' else ''}\n"
        for i, (letter, peak) in enumerate(zip(PHASES, peaks, strict=True))
    )


peaks_of_steps = st.lists(st.lists(st.integers(1, 2**44), min_size=4, max_size=4), min_size=1, max_size=20)


@given(peaks_of_steps)
def test_every_step_keeps_the_peak_of_each_of_its_phases(steps: list[list[int]]):
    marks = read((HEAD + "P 0 5 data\n" + "".join(step_lines(i, p) for i, p in enumerate(steps, 1))).encode())
    assert marks is not None
    for row, (data, forward, backward, update) in enumerate(steps):
        assert marks.steps.data_peak_bytes[row] == data
        assert marks.steps.forward_peak_bytes[row] == forward
        assert marks.steps.backward_peak_bytes[row] == backward
        assert marks.steps.update_peak_bytes[row] == update
        assert marks.steps.peak_bytes[row] == max(data, forward, backward, update)
    assert marks.peak_bytes == max(5, *(peak for step in steps for peak in step))
    assert list(marks.steps.step) == list(range(1, len(steps) + 1))


@given(peaks_of_steps, st.data())
def test_a_file_cut_off_anywhere_is_the_beginning_of_the_whole_one(steps: list[list[int]], data: st.DataObject):
    content = (HEAD + "".join(step_lines(i, p) for i, p in enumerate(steps, 1))).encode()
    cut = data.draw(st.integers(0, len(content)))
    whole, part = read(content), read(content[:cut])
    assert whole is not None
    if cut < len(HEAD):
        assert part is None
        return
    assert part is not None
    assert part.notes == ()
    assert len(part.steps) <= len(whole.steps)
    assert list(part.steps.peak_bytes) == list(whole.steps.peak_bytes[: len(part.steps)])


@given(st.binary(max_size=400))
def test_no_scribble_raises(scribble: bytes):
    read(scribble)
    read(HEAD.encode() + scribble + b"\n")


lines = st.builds(
    lambda letter, rest: f"{letter} {rest}\n",
    st.sampled_from("HFBUSVPXN"),
    st.text(alphabet='0123456789 -{}"ab:²', max_size=30),
)


@given(st.lists(lines, max_size=20))
def test_lines_with_wrong_numbers_become_notes_and_never_steps_out_of_nothing(wrong: list[str]):
    marks = read((HEAD + "".join(wrong)).encode())
    assert marks is not None
    assert len(marks.steps) <= sum(line.startswith("S") for line in wrong)


def test_the_peak_before_training_belongs_to_the_program_and_to_no_step():
    marks = read((HEAD + "P 1 900 data\n" + step_lines(1, [10, 20, 30, 40])).encode())
    assert marks is not None
    assert marks.peak_bytes == 900
    assert marks.steps.peak_bytes[0] == 40


def test_a_mark_without_a_peak_is_unknown_and_not_zero():
    marks = read((HEAD + "F 1 0\nS 2 0 0\n").encode())
    assert marks is not None
    assert math.isnan(marks.steps.peak_bytes[0])
    assert marks.peak_bytes is None


@given(st.integers(1, 2**44), st.lists(st.integers(1, 2**44), min_size=4, max_size=4))
def test_an_evaluation_keeps_its_own_peak_and_gives_none_to_the_step_behind_it(peak: int, step: list[int]):
    first = step_lines(1, [1, 1, 1, 1])
    data, forward, backward, update = step
    lines = f"V 1500000 {data}\nF 1600000 {peak}\nB 1700000 {forward}\nU 1800000 {backward} 0\nS 1900000 {update} 0\n"
    marks = read((HEAD + first + lines).encode())
    assert marks is not None
    assert marks.steps.peak_bytes[1] == max(step)
    assert [(name, bytes_) for _, name, bytes_ in marks.named_phases] == [("evaluation", peak)]
    assert marks.peak_bytes == max(peak, *step)
