"""Do facts survive: both databases alike, and a database that is locked, full or gone?"""

from __future__ import annotations

import os
import shutil
import socket
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from study_jobs import GOOD, run, settings_for

from memfit.errors import DamagedRecord, NewerFormat, StorageError, UsageError
from memfit.records.study import Choice, Proposal, SearchSpace, StudySettings, TrialOutcome, TrialRecord
from memfit.study.folder import read_folder
from memfit.study.options import StudyOptions
from memfit.study.session import SilentStudy, open_session
from memfit.study.storage.interface import Fact, Proposed, Storage, decoded, fact, study_of
from memfit.study.storage.open import open_storage
from memfit.study.storage.postgres import PostgresStorage, without_password
from memfit.study.storage.sqlite import SqliteStorage
from memfit.study.storage.write_ahead import UNSAVED_FILE, StudyLog
from memfit.testing.contracts.storage import SETTINGS, StorageContract, new_study, proposed
from memfit.testing.made_records.studies import made_trials


def ended(place: int, number: int) -> Fact:
    trial = TrialRecord(proposal=Proposal(number=number, parameters={"x": number}), outcome=TrialOutcome(kind="done"))
    return fact(place, f"e{number}", "ended", trial, number)


# ---- one contract, two databases -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """A PostgreSQL server of our own, on a socket in a folder of our own."""
    binaries = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not binaries:
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    pytest.importorskip("psycopg", reason="psycopg is not installed (pip install 'memfit[postgres]')")
    if os.geteuid() == 0 and shutil.which("runuser") is None:
        pytest.skip("PostgreSQL does not run as root, and there is no runuser to become somebody else")
    with server(binaries[-1].parent) as address:
        yield address


class server:
    """Starts the server, and ends it."""

    def __init__(self, binaries: Path) -> None:
        self.binaries = binaries
        self.as_user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        self.folder = tempfile.mkdtemp(prefix="memfit-pg-", dir="/tmp")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    def _run(self, *words: str) -> None:
        subprocess.run([*self.as_user, *words], check=True, capture_output=True, cwd="/")

    def __enter__(self) -> str:
        os.chmod(self.folder, 0o777)
        data = f"{self.folder}/data"
        self._run(f"{self.binaries}/initdb", "-D", data, "-U", "memfit", "-A", "trust", "--no-sync")
        options = f"-c listen_addresses=127.0.0.1 -p {self.port} -k {self.folder} -c fsync=off"
        self._run(f"{self.binaries}/pg_ctl", "-D", data, "-o", options, "-w", "-l", f"{self.folder}/log", "start")
        return f"postgresql://memfit@127.0.0.1:{self.port}/postgres"

    def __exit__(self, *_: object) -> None:
        self._run(f"{self.binaries}/pg_ctl", "-D", f"{self.folder}/data", "-m", "immediate", "stop")
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a database that takes studies."""
    return request.getfixturevalue("postgres") if request.param == "postgres" else str(tmp_path / "facts.db")


class TestBothDatabases(StorageContract):
    @pytest.fixture
    def connect(self, place: str) -> Callable[[], Storage]:
        return lambda: open_storage(place)


def test_a_whole_study_runs_and_resumes_on_either_database(tmp_path: Path, place: str):
    storage = "" if place.endswith(".db") else place
    run(settings_for(tmp_path, GOOD, max_trials=1), tmp_path / "study", storage=storage)
    study, watcher = run(settings_for(tmp_path, GOOD, max_trials=2), tmp_path / "study", storage=storage)
    assert [trial.kind for trial in study.trials] == ["done", "done"]
    assert [trial.kind for trial in read_folder(tmp_path / "study").trials] == ["done", "done"]
    assert watcher.notes == []


# ---- what a study is, is read off its facts --------------------------------------------------------------------------


def test_a_thousand_trials_are_read_back_whole(tmp_path: Path):
    storage = SqliteStorage(tmp_path / "facts.db")
    facts = [fact(0, "study", "study", SETTINGS)]
    facts += [
        make(2 * number + 1 + late, number) for number in range(1000) for late, make in enumerate((proposed, ended))
    ]
    storage.append("many", facts)
    study = study_of("many", storage.read("many"))
    storage.close()
    assert [trial.number for trial in study.trials] == list(range(1000))
    assert {trial.kind for trial in study.trials} == {"done"}


def test_the_end_of_a_trial_is_never_undone_by_a_late_fact():
    facts = [fact(0, "study", "study", SETTINGS), proposed(1, 0), ended(2, 0), proposed(3, 0)]
    assert study_of("s", facts).trials[0].kind == "done"


@pytest.mark.parametrize("body", ['{"proposal": 3}', "not JSON", "[]"])
def test_a_fact_that_was_changed_by_hand_is_named(body: str):
    damaged = msgspec.structs.replace(proposed(1, 0), body=body)
    with pytest.raises(DamagedRecord, match="'p0'"):
        study_of("s", [fact(0, "study", "study", SETTINGS), damaged])


def test_half_a_character_that_a_trial_reports_is_stored_as_one_that_is_missing():
    trial = msgspec.structs.replace(made_trials(1)[0], others={"note": "a\ud800b"})
    stored = decoded(fact(0, "e0", "ended", trial, 0), TrialRecord)
    assert stored.others == {"note": "a\ufffdb"}


def test_half_a_character_in_the_options_of_a_study_is_refused_before_anything_runs():
    space = SearchSpace(parameters=(Choice(name="x", options=("\ud800", "\ud801")),))
    with pytest.raises(UsageError, match="cannot be stored"):
        fact(0, "study", "study", StudySettings(name="s", space=space, command="true"))


def test_a_study_of_a_newer_memfit_is_refused():
    newer = msgspec.structs.replace(SETTINGS, format_version=99)
    with pytest.raises(NewerFormat, match="newer memfit"):
        study_of("s", [fact(0, "study", "study", newer)])


# ---- a database that is locked, full, gone or damaged ----------------------------------------------------------------


@pytest.fixture
def log(tmp_path: Path) -> Iterator[StudyLog]:
    storage = SqliteStorage(tmp_path / "study.db", busy_seconds=0.05)
    notes: list[str] = []
    made = StudyLog(storage, "abc", tmp_path, notes.append)
    made.notes = notes  # type: ignore[attr-defined]
    made.begin(SETTINGS)
    yield made
    storage.close()


def told(log: StudyLog) -> str:
    return " | ".join(log.notes)  # type: ignore[attr-defined]


def numbers_in(path: Path) -> list[int]:
    storage = SqliteStorage(path)
    try:
        return [trial.number for trial in study_of("abc", storage.read("abc")).trials]
    finally:
        storage.close()


def add(log: StudyLog, number: int) -> None:
    body = Proposed(proposal=Proposal(number=number, parameters={}), trial_id="abcde")
    log.add(f"p{number}", "proposed", body, number)


def test_a_locked_database_costs_a_line_and_nothing_else(log: StudyLog, tmp_path: Path):
    holder = sqlite3.connect(tmp_path / "study.db", isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    add(log, 0)
    add(log, 1)
    assert "locked" in told(log)
    assert told(log).count("goes on") == 1
    assert len((tmp_path / UNSAVED_FILE).read_bytes().splitlines()) == 2
    holder.execute("COMMIT")
    holder.close()
    add(log, 2)
    assert "nothing was lost" in told(log)
    assert not (tmp_path / UNSAVED_FILE).exists()
    assert numbers_in(tmp_path / "study.db") == [0, 1, 2]


def test_what_a_killed_session_could_not_store_is_stored_by_the_next(log: StudyLog, tmp_path: Path):
    holder = sqlite3.connect(tmp_path / "study.db", isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    add(log, 0)
    log.storage.close()
    holder.execute("COMMIT")
    holder.close()
    with open(tmp_path / UNSAVED_FILE, "ab") as file:
        file.write(b'{"fact_id": "p1", "torn')
    next_log = StudyLog(SqliteStorage(tmp_path / "study.db"), "abc", tmp_path, lambda _: None)
    assert [each.fact_id for each in next_log.open()] == ["study", "p0"]
    next_log.storage.close()
    assert numbers_in(tmp_path / "study.db") == [0]
    assert not (tmp_path / UNSAVED_FILE).exists()


def test_a_removed_database_is_written_again_whole(log: StudyLog, tmp_path: Path):
    add(log, 0)
    for name in ("study.db", "study.db-wal", "study.db-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    add(log, 1)
    assert "moved or removed" in told(log)
    assert numbers_in(tmp_path / "study.db") == [0, 1]


def test_a_full_database_costs_a_line_and_nothing_else(log: StudyLog, tmp_path: Path):
    connection = log.storage._open(create=True)  # type: ignore[attr-defined]
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages}")
    body = Proposed(proposal=Proposal(number=0, parameters={"x": "y" * 100_000}), trial_id="abcde")
    log.add("p0", "proposed", body, 0)
    assert "full" in told(log)
    assert "free some space" in told(log)
    add(log, 1)  # a new connection has no such limit: there is room again
    assert numbers_in(tmp_path / "study.db") == [0, 1]


def test_at_the_end_of_a_session_facts_that_are_not_stored_are_an_error(log: StudyLog, tmp_path: Path):
    holder = sqlite3.connect(tmp_path / "study.db", isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    add(log, 0)
    with pytest.raises(StorageError, match="cannot be written"):
        log.close()
    holder.close()
    assert [each.fact_id for each in log.open()] == ["study", "p0"]


def test_a_study_goes_on_while_its_database_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The holder lets go when the first trial has ended, so the study ends well and has everything."""
    monkeypatch.setattr("memfit.study.storage.sqlite.BUSY_SECONDS", 0.05)
    folder = tmp_path / "study"
    run(settings_for(tmp_path, GOOD, max_trials=1), folder)
    holder = sqlite3.connect(folder / "study.db", isolation_level=None, check_same_thread=False)
    watcher = SilentStudy()
    options = StudyOptions(output=str(folder))
    session = open_session(settings_for(tmp_path, GOOD, max_trials=3), options, watcher)
    session.log.storage.busy_seconds = 0.05  # type: ignore[attr-defined]
    session.log.storage.reopen()
    holder.execute("BEGIN EXCLUSIVE")
    watcher.ended = lambda trial, standing: holder.in_transaction and holder.execute("COMMIT")  # type: ignore[method-assign]
    study = session.run(watcher, options)
    session.close()
    holder.close()
    assert any("locked" in note for note in watcher.notes)
    assert [trial.kind for trial in study.trials] == ["done"] * 3
    assert [trial.kind for trial in read_folder(folder).trials] == ["done"] * 3


def test_a_file_that_is_no_database_is_named(tmp_path: Path):
    path = tmp_path / "study.db"
    path.write_text("this is a shopping list, and quite a long one, so that it is no empty file at all")
    with pytest.raises(StorageError, match=r"study\.db cannot be") as caught:
        SqliteStorage(path).read("abc")
    assert "not a database" in caught.value.found


def test_a_server_that_is_not_there_is_one_clear_line():
    pytest.importorskip("psycopg", reason="psycopg is not installed (pip install 'memfit[postgres]')")
    storage = PostgresStorage("postgresql://someone:secret@127.0.0.1:1/nothing")
    with pytest.raises(StorageError) as caught:
        storage.read("abc")
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_password_is_neither_shown_nor_kept(tmp_path: Path):
    assert without_password("postgresql://me:secret@host:5432/base") == "postgresql://me@host:5432/base"
    assert without_password("postgresql://host/base") == "postgresql://host/base"


def test_an_unknown_kind_of_storage_is_refused():
    with pytest.raises(UsageError, match="not known"):
        open_storage("mysql://host/base")


def test_a_postgres_server_that_goes_away_for_a_while_loses_nothing(tmp_path: Path, postgres: str):
    notes: list[str] = []
    storage = PostgresStorage(postgres)
    log = StudyLog(storage, new_study(), tmp_path, notes.append)
    log.begin(SETTINGS)
    assert storage.hold(log.study_id)
    storage.address = "postgresql://memfit@127.0.0.1:1/postgres"
    storage.reopen()
    add(log, 0)
    assert any("goes on" in note for note in notes)
    storage.address = postgres
    add(log, 1)
    assert [trial.number for trial in study_of(log.study_id, storage.read(log.study_id)).trials] == [0, 1]
    storage.close()
