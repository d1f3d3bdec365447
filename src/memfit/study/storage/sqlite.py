"""SQLite storage of a study: one local file in WAL mode, flushed to the disk at every commit.

Readers never wait for the writer. A file that was removed or replaced while it is open would take what is written
and lose it, so the file is looked at before every commit.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import msgspec

from memfit.errors import StorageError
from memfit.study.storage.interface import COLUMNS, CREATE, TABLE, DatabaseGone, Fact

BUSY_SECONDS = 2.0
"""How long to wait for another program that holds the database; what is not stored then is stored later."""
_INSERT = f"INSERT OR IGNORE INTO {TABLE} VALUES ({', '.join('?' * len(COLUMNS))})"
_READ = f"SELECT {', '.join(COLUMNS[1:])} FROM {TABLE} WHERE study_id = ? ORDER BY place, fact_id"


class SqliteStorage:
    """One file, opened when it is first used."""

    def __init__(self, path: Path, *, busy_seconds: float = BUSY_SECONDS) -> None:
        self.path = path
        self.shown_name = str(path)
        self.busy_seconds = busy_seconds
        self._connection: sqlite3.Connection | None = None
        self._inode: tuple[int, int] | None = None
        self._lock: IO[bytes] | None = None

    def append(self, study_id: str, facts: Sequence[Fact]) -> None:
        rows = [(study_id, *_row(fact)) for fact in facts]
        try:
            connection = self._open(create=True)
            self._check_file()
            with connection:
                connection.executemany(_INSERT, rows)
        except sqlite3.Error as error:
            raise self._problem(error, "written") from None

    def read(self, study_id: str) -> list[Fact]:
        if not self.path.is_file():
            hint = "give the folder of a study, or the file study.db in it"
            raise StorageError(f"{self.path} is not there", hint=hint)
        try:
            rows = self._open(create=False).execute(_READ, (study_id,)).fetchall()
        except sqlite3.Error as error:
            raise self._problem(error, "read") from None
        return [_fact(row) for row in rows]

    def study_ids(self) -> list[str]:
        if not self.path.is_file():
            return []
        try:
            rows = self._open(create=False).execute(f"SELECT DISTINCT study_id FROM {TABLE} ORDER BY 1")
            return [row[0] for row in rows]
        except sqlite3.Error as error:
            raise self._problem(error, "read") from None

    def hold(self, study_id: str) -> bool:
        """One lock per file, released by the kernel when the process ends, however it ends."""
        if self._lock is not None:
            return True
        try:
            lock = open(self.path.with_name(f"{self.path.name}.lock"), "ab")  # noqa: SIM115
        except OSError as error:
            hint = "choose another folder with -o"
            raise StorageError(f"{self.path.parent} cannot be written", found=str(error.strerror), hint=hint) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            return False
        self._lock = lock
        return True

    def reopen(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
        self._connection = self._inode = None

    def close(self) -> None:
        self.reopen()
        if self._lock is not None:
            # The file stays: whoever has opened it to wait for the lock must not end up with a removed one.
            self._lock.close()
            self._lock = None

    def _open(self, *, create: bool) -> sqlite3.Connection:
        if self._connection is not None:
            return self._connection
        connection = sqlite3.connect(self.path, timeout=self.busy_seconds)
        try:
            if create:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = FULL")
                with connection:
                    connection.execute(CREATE)
        except sqlite3.Error:
            connection.close()
            raise
        self._connection, self._inode = connection, _inode(self.path)
        return connection

    def _check_file(self) -> None:
        if _inode(self.path) != self._inode:
            hint = "it is written again, with everything that was in it"
            raise DatabaseGone(f"{self.path} was moved or removed while the study ran", hint=hint)

    def _problem(self, error: sqlite3.Error, verb: str) -> StorageError:
        text = str(error)
        hint = "check the path and its permissions"
        if "locked" in text or "busy" in text:
            hint = f"end the program that holds it: fuser {self.path}"
        elif "full" in text or "I/O" in text:
            hint = "free some space on the disk"
        elif "malformed" in text or "not a database" in text:
            hint = "the file is damaged; restore it from a copy"
        return StorageError(f"{self.path} cannot be {verb}", found=text, hint=hint)


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _row(fact: Fact) -> tuple[str, int, str, int | None, str, str]:
    return fact.fact_id, fact.place, fact.kind, fact.number, fact.at, fact.body


def _fact(row: tuple[object, ...]) -> Fact:
    return msgspec.convert(dict(zip(COLUMNS[1:], row, strict=True)), Fact)
