"""Does every verb that opens a file or a folder of others end at once, with one clear error or an answer?

In the place of a file may lie what waits for ever (a FIFO), never ends (/dev/zero), is no file, or claims any size.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from memfit import api
from memfit.commands import main
from memfit.errors import MemfitError
from memfit.measure.sampler.watch_marks import LOOK_US, MarksWatcher
from memfit.predict.snapshot.reader import read_snapshot
from memfit.records.files import layout
from memfit.records.plan import read_plan
from memfit.regular_file import open_regular, read_regular
from memfit.show.as_json import to_json
from memfit.show.page.data import page_json
from memfit.show.terminal.run import summary_text
from memfit.study.json_file import read_study_json
from memfit.study.storage.interface import fact
from memfit.study.storage.write_ahead import read_unsaved
from memfit.study.trials.files import ReportReader
from memfit.testing.made_records.runs import MadeRun, write_made_run
from memfit.units import MIB

RUN_FILES = (layout.HEADER_FILE, layout.SAMPLES_FILE, layout.EVENTS_FILE, "marks-4711.txt", "ledger-4711.jsonl")
LONGEST_SECONDS = 20


@pytest.fixture(autouse=True)
def _alarm() -> Iterator[None]:
    """A reader that waits for ever is interrupted."""

    def ring(*_: object) -> None:
        raise TimeoutError("it hangs")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(LONGEST_SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    plan = MadeRun(seconds=1.0, startup_seconds=0.2, step_seconds=0.1, num_workers=1, ledger=True, gpu=True)
    return write_made_run(tmp_path_factory.mktemp("made") / "run", plan)


def fifo(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def folder(path: Path) -> None:
    path.mkdir()


def link_to_itself(path: Path) -> None:
    path.symlink_to(path)


def sparse(path: Path) -> None:
    """A regular file that claims a terabyte of zeros."""
    with path.open("wb") as stream:
        os.truncate(stream.fileno(), 1 << 40)


HOSTILE = (fifo, endless, folder, link_to_itself)


def show_all(run: Path) -> None:
    """Everything that is made of a run folder."""
    record = api.read_run(run)
    view = api.view_run(record)
    assert len(summary_text(view)) < 60_000
    to_json(view)
    page_json(api.view_run(record, fine=True))
    api.diff_runs(record, record)


@pytest.mark.parametrize("put", HOSTILE)
@pytest.mark.parametrize("name", RUN_FILES)
def test_a_run_folder_with_something_else_in_the_place_of_a_file_opens_or_says_why(made, tmp_path: Path, name, put):
    run = Path(shutil.copytree(made, tmp_path / "run"))
    (run / name).unlink()
    put(run / name)
    if name == layout.HEADER_FILE or (name == layout.EVENTS_FILE and put is not sparse):
        with pytest.raises(MemfitError, match="cannot be read"):
            api.read_run(run)
        return
    record = api.read_run(run)
    assert any(name in note for note in record.notes)
    show_all(run)


def test_a_header_that_claims_a_terabyte_is_refused(made, tmp_path: Path):
    run = Path(shutil.copytree(made, tmp_path / "run"))
    sparse(run / layout.HEADER_FILE)
    with pytest.raises(MemfitError, match="larger than 16 MiB"):
        api.read_run(run)


# ---- holes -----------------------------------------------------------------------------------------------------------

MOST_TAKEN_BYTES = 64 << 20


@contextlib.contextmanager
def sparing(most_seconds: float = 2.0) -> Iterator[None]:
    """What is done inside takes little memory and little of the processor's time."""
    tracemalloc.start()
    before = time.thread_time()
    try:
        yield
        assert time.thread_time() - before < most_seconds
        assert tracemalloc.get_traced_memory()[1] < MOST_TAKEN_BYTES
    finally:
        tracemalloc.stop()


def hollow(path: Path, content: bytes = b"") -> None:
    """Two terabytes of zeros behind what was written, with a byte in every MiB of the first GiB."""
    path.write_bytes(content)
    os.truncate(path, 2 << 40)
    with path.open("r+b") as stream:
        for place in range(len(content) // MIB + 1, 1024):
            stream.seek(place * MIB)
            stream.write(b"x")


@pytest.mark.parametrize("name", RUN_FILES[1:])
def test_a_hole_behind_a_record_takes_nothing_and_changes_nothing(made, tmp_path: Path, name: str):
    run = Path(shutil.copytree(made, tmp_path / "run"))
    whole = api.read_run(run)
    hollow(run / name, (made / name).read_bytes())
    with sparing():
        record = api.read_run(run)
        show_all(run)
    assert any(name in note and "never written" in note for note in record.notes)
    assert (record.peak, record.outcome, record.duration_seconds) == (whole.peak, whole.outcome, whole.duration_seconds)
    assert (record.ledger_facts, record.samples.num_failed) == (whole.ledger_facts, whole.samples.num_failed)
    assert len(record.samples) == len(whole.samples)
    assert np.array_equal(record.tree.tree_bytes, whole.tree.tree_bytes)
    assert np.array_equal(record.steps.peak_bytes, whole.steps.peak_bytes, equal_nan=True)


@pytest.mark.parametrize("name", RUN_FILES[1:])
def test_a_record_that_is_nothing_but_a_hole_opens_at_no_cost(made, tmp_path: Path, name: str):
    run = Path(shutil.copytree(made, tmp_path / "run"))
    hollow(run / name)
    with sparing():
        show_all(run)


SINGLE_FILES: dict[str, Callable[[Path], object]] = {
    "plan": read_plan,
    "prediction": api.read_prediction,
    "study": read_study_json,
    "snapshot": read_snapshot,
}


@pytest.mark.parametrize("size_bytes", [60 * MIB, 1000 * MIB, 2 << 40])
@pytest.mark.parametrize("kind", SINGLE_FILES)
def test_a_file_of_zeros_is_refused_at_no_cost(tmp_path: Path, kind: str, size_bytes: int):
    path = tmp_path / "given"
    path.write_bytes(b"{")
    os.truncate(path, size_bytes)
    with sparing(), pytest.raises(MemfitError):
        SINGLE_FILES[kind](path)


def test_reports_in_front_of_a_hole_are_read_and_the_hole_is_not(tmp_path: Path):
    line = b'{"type": "PERIODICAL", "sequence": 0, "value": 1.5}\n'
    hollow(tmp_path / "metrics.jsonl", line)
    reader = ReportReader(tmp_path)
    with sparing():
        assert [report.value for report in reader.read_new()] == [1.5]
        assert reader.read_new() == []


def test_facts_in_front_of_a_hole_are_read_and_the_hole_is_not(tmp_path: Path):
    kept = fact(0, "study", "study", {})
    hollow(tmp_path / "unsaved.jsonl", msgspec.json.encode(kept) + b"\n")
    with sparing():
        assert read_unsaved(tmp_path / "unsaved.jsonl") == [kept]


def test_marks_in_front_of_a_hole_are_followed_and_the_hole_is_not(tmp_path: Path):
    hollow(tmp_path / "marks-1.txt", b"H {}\nF 1 5\nS 2 7 0\n")
    watcher = MarksWatcher(str(tmp_path))
    with sparing():
        assert watcher.where(LOOK_US) == (2, "data")
    assert watcher.peak_bytes == 7


VERBS: dict[str, list[str]] = {
    "show": ["show", "{}"],
    "show --predicted": ["show", "{made}", "--predicted", "{}", "--html", "{tmp}/page.html"],
    "show --over": ["show", "{made}", "--over", "{}", "--html", "{tmp}/page.html"],
    "diff": ["diff", "{made}", "{}"],
    "export": ["export", "{}", "--to", "json", "-o", "{tmp}/out.json"],
    "explain": ["explain", "{}"],
    "replay": ["replay", "{}"],
    "study file": ["study", "{}"],
    "study space": ["study", "--space", "{}", "--trials", "1", "--", "true"],
}


@pytest.mark.parametrize("put", HOSTILE)
@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_refuses_what_is_no_file_with_an_error_and_no_traceback(
    made, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, verb: str, put: Callable
):
    monkeypatch.chdir(tmp_path)
    target = tmp_path / "given"
    put(target)
    words = [word.format(target, made=made, tmp=tmp_path) for word in VERBS[verb]]
    with pytest.raises(SystemExit) as leaving:
        main(words)
    assert leaving.value.code in (1, 2)
    assert capsys.readouterr().err.startswith("memfit: ")


@pytest.mark.parametrize("put", [*HOSTILE, sparse])
def test_plans_and_studies_in_the_place_of_which_lies_something_else_are_refused(tmp_path: Path, put: Callable):
    target = tmp_path / "where.json"
    put(target)
    for read in (read_plan, api.read_prediction, lambda _: api.read_study(tmp_path)):
        with pytest.raises(MemfitError):
            read(target)


def test_a_link_to_a_regular_file_is_opened_and_a_larger_one_than_allowed_is_not(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("file")
    with open_regular(tmp_path / "link") as stream:
        assert stream.read() == b"12345"
    with pytest.raises(OSError, match="larger"):
        read_regular(tmp_path / "link", most_bytes=4)


# ---- numbers ---------------------------------------------------------------------------------------------------------

EXTREMES = (b"18446744073709551616", b"-1", b"1e400", b"NaN", b"null", b'"x"', b"[]", b"1e18", b"9" * 400, b"0", b"{}")


def mutated(content: bytes, chance: random.Random) -> bytes:
    """The content with one to three places changed: bytes flipped, cut out, doubled, or numbers made extreme."""
    data = bytearray(content)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(data) + 1)
        kind = chance.randrange(5)
        if kind == 0 and at < len(data):
            data[at] = chance.randrange(256)
        elif kind == 1:
            del data[at : at + chance.randint(1, 200)]
        elif kind == 2:
            data[at:at] = data[at : at + chance.randint(1, 400)]
        else:
            _make_a_number_extreme(data, at, chance)
    return bytes(data)


def _make_a_number_extreme(data: bytearray, at: int, chance: random.Random) -> None:
    begin = next((place for place in range(at, min(at + 400, len(data))) if chr(data[place]).isdigit()), None)
    if begin is None:
        return
    end = begin
    while end < len(data) and chr(data[end]) in "0123456789.":
        end += 1
    data[begin:end] = chance.choice(EXTREMES)


@pytest.mark.parametrize("seed", range(4))
def test_mutated_run_folders_open_or_are_refused_within_a_second(made, tmp_path: Path, seed: int):
    chance = random.Random(seed)
    files = {name: (made / name).read_bytes() for name in RUN_FILES}
    run = Path(shutil.copytree(made, tmp_path / "run"))
    signal.alarm(300)
    for _ in range(40):
        name = chance.choice(RUN_FILES)
        (run / name).write_bytes(mutated(files[name], chance))
        before = time.thread_time()
        with contextlib.suppress(*([MemfitError] if name == layout.HEADER_FILE else [])):
            show_all(run)
        assert time.thread_time() - before < 1.0
        (run / name).write_bytes(files[name])


def test_a_ledger_share_of_any_size_leaves_the_summary_short(made, tmp_path: Path):
    run = Path(shutil.copytree(made, tmp_path / "run"))
    path = run / "ledger-4711.jsonl"
    for huge in (b"18446744073709551616", b"1125899906842624"):
        content = (made / path.name).read_bytes()
        head, _, tail = content.partition(b'"num_bytes":')
        rest = tail.lstrip(b" 0123456789")
        path.write_bytes(head + b'"num_bytes":' + huge + rest)
        text = summary_text(api.view_run(api.read_run(run)))
        assert max(map(len, text.splitlines())) <= 80
        assert len(text) < 20_000
