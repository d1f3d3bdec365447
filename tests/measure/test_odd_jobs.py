"""Is a job measured rightly that few would think of: no text, too many words, too many processes, its own namespace?"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import memfit
from memfit import api
from memfit.errors import UsageError
from memfit.measure.sampler import process_tree
from memfit.measure.sampler.process_tree import ProcessTree
from memfit.records.files import layout
from memfit.records.files.only_text import NO_TEXT
from memfit.show.as_json import to_json

MIB = 1 << 20
MEASURE = [sys.executable, "-m", "memfit", "measure"]


def test_a_command_that_is_no_text_has_a_record_that_opens_everywhere(tmp_path: Path):
    folder = os.fsencode(tmp_path) + b"/r\xff"
    done = subprocess.run(
        [*map(os.fsencode, MEASURE), b"-o", folder, b"--", b"printf", b"%s", b"a\xffb"], capture_output=True
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"a\xffb")
    assert NO_TEXT.encode() in done.stdout
    assert sorted(os.listdir(folder)) == [
        b"events.jsonl",
        b"report.html",
        b"run.json",
        b"samples.bin",
        b"timeline.png",
        b"timeline.svg",
    ]
    for verb in (
        [b"show"],
        [b"show", b"--json"],
        [b"export", b"--to", b"csv", b"-o", os.fsencode(tmp_path) + b"/e.csv"],
    ):
        done = subprocess.run([*map(os.fsencode, MEASURE[:-1]), *verb[:1], folder, *verb[1:]], capture_output=True)
        assert (done.returncode, done.stderr) == (0, b"")


def test_repeats_of_a_command_that_is_no_text_are_refused_before_anything_is_written(tmp_path: Path, measured):
    with pytest.raises(UsageError, match="as text"):
        api.repeat_commands(["cat", "a\udcffb"], ["true"], 4, output=tmp_path / "series")
    folder = measured(["true", "a\udcffb"]).folder
    with pytest.raises(UsageError, match="cannot be run again"):
        api.repeat_runs(folder, folder, 4, output=tmp_path / "series")
    assert not (tmp_path / "series").exists()


def test_a_record_of_older_versions_whose_command_is_no_text_opens(measured):
    folder = measured(["true"]).folder
    header = json.loads((folder / layout.HEADER_FILE).read_text())
    header["command"] = ["cat", "a\udcffb"]
    (folder / layout.HEADER_FILE).write_text(json.dumps(header))
    record = memfit.read_run(folder)
    assert record.header.command == ("cat", f"a{NO_TEXT}b")
    assert NO_TEXT.encode() in to_json(record.header)


def test_more_words_than_one_argument_may_hold_are_passed_on(measured):
    words = [str(number) for number in range(40_000)]
    result = measured(["true", *words])
    assert result.exit_code == 0
    assert result.read().header.command == ("true", *words)


FORKS = """
import os, time
children = []
for _ in range({num}):
    pid = os.fork()
    if pid == 0:
        block = b"x" * (2 << 20)
        time.sleep(60)
    children.append(pid)
time.sleep({seconds})
for pid in children:
    os.kill(pid, 9)
    os.waitpid(pid, 0)
"""


def measured_with_few_files(tmp_path: Path, limit: str) -> memfit.RunRecord:
    job = [sys.executable, "-I", "-c", FORKS.format(num=80, seconds=1.2)]
    command = [*MEASURE, "-q", "--no-report", "--no-marks", "-o", str(tmp_path / "r"), "--", *job]
    done = subprocess.run(
        ["sh", "-c", f'ulimit {limit}; exec "$@"', "sh", *command],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return memfit.read_run(tmp_path / "r")


def test_a_tree_of_more_processes_than_files_may_be_open_is_read_whole_where_the_limit_can_be_raised(tmp_path: Path):
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 200:
        pytest.skip("the limit cannot be raised here")
    record = measured_with_few_files(tmp_path, "-Sn 64")
    assert len(record.processes) == 81
    assert (record.peak.value or 0) > 160 * MIB


def test_processes_that_cannot_be_read_are_counted_in_a_note_and_the_others_are_measured(tmp_path: Path):
    record = measured_with_few_files(tmp_path, "-n 64")
    assert record.outcome.kind == "done"
    assert 10 < len(record.processes) < 60
    left_out = 81 - len(record.processes)
    assert any(note.startswith(f"{left_out} of the job's processes were too many") for note in record.notes)


def test_a_process_beyond_what_a_record_can_tell_apart_is_left_out_and_counted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(process_tree, "MOST_SEEN", 1)
    children = [subprocess.Popen(["sleep", "60"]) for _ in range(2)]
    try:
        tree = ProcessTree(children[0].pid, adopts_orphans=True)
        tree.look(0)
        deadline = time.monotonic() + 10
        while not tree.num_left_out and time.monotonic() < deadline:
            tree.look(0)
        assert [process.index for process in tree.processes.values()] == [0]
        assert tree.num_left_out >= 1  # this process may have other children
    finally:
        for child in children:
            child.kill()
            child.wait()


STEPS = """
    import memfit_inside, os, time
    time.sleep(0.5)  # as long as a process must live to be found in the tree
    for step in range(5):
        memfit_inside.mark_forward()
        block = b"x" * ((60 if step == 2 else 30) << 20)
        del block
        memfit_inside.mark_step()
"""
OWN_NAMESPACE = ["unshare", "--fork", "--pid", "--mount-proc"] if os.geteuid() == 0 else [
    "unshare", "--user", "--map-root-user", "--fork", "--pid", "--mount-proc",
]  # fmt: skip


def can_unshare() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*OWN_NAMESPACE, "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not can_unshare(), reason="no PID namespace can be made here")
def test_steps_and_peaks_of_a_process_in_its_own_pid_namespace_are_its_own(measured):
    both = f'{" ".join(OWN_NAMESPACE)} "$@" & {" ".join(OWN_NAMESPACE)} "$@"; wait'
    job = [sys.executable, "-c", textwrap.dedent(STEPS)]
    record = measured(["sh", "-c", both, "sh", *job], marks=True, ledger_every=2).read()
    assert [note for note in record.notes if "marks-" in note] == []
    trained = [process for process in record.processes if (record.steps.process == process.index).any()]
    assert len(trained) == 2
    for process in trained:
        assert record.steps.total == 10
        assert "every reset kept" in process.peak.method
        assert (process.peak.value or 0) > 60 * MIB
        assert any(facts.pid == process.pid for facts in record.ledger_facts)


def test_a_marks_file_that_nobody_wrote_makes_the_end_value_a_bound(measured):
    result = measured("block = b'x' * (40 << 20)", marks=False)
    exact = result.read().peak
    assert (exact.low, exact.high) == (None, None)
    (result.folder / "marks-1.txt").write_text('H {"format": "memfit-marks", "version": 1, "pid": 1}\n')
    record = result.read()
    assert record.peak.value == exact.value
    assert record.peak.low == exact.value
    assert any("belongs to no process" in note for note in record.notes)


def test_steps_of_a_program_that_closed_memfits_files_are_not_taken_for_all_of_them(measured):
    lines = textwrap.dedent(STEPS)
    record = measured(f"{lines}\nos.closerange(3, 4096)\n{lines}", marks=True).read()
    assert 0 < record.steps.total < 10
    assert any("steps after the last mark are not counted" in note for note in record.notes)
    whole = measured(lines, marks=True).read()
    assert whole.steps.total == 5
    assert not any("last mark" in note for note in whole.notes)
