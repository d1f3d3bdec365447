"""PostgreSQL storage of a study, through psycopg; the same table as in a local file.

The connection is opened when it is first used and again after every error, so a server that restarts costs nothing
but a line. A password never goes into a message or a file; PGPASSWORD and ~/.pgpass are read by the library itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import msgspec

from memfit.errors import MissingExtra, StorageError
from memfit.study.storage.interface import COLUMNS, CREATE, TABLE, Fact

if TYPE_CHECKING:
    import psycopg

CONNECT_SECONDS = 5
RELEASE_SECONDS = 1.0
"""How long a server may take to see that the connection of a dead coordinator has ended."""
_INSERT = f"INSERT INTO {TABLE} VALUES ({', '.join(['%s'] * len(COLUMNS))}) ON CONFLICT DO NOTHING"
_READ = f"SELECT {', '.join(COLUMNS[1:])} FROM {TABLE} WHERE study_id = %s ORDER BY place, fact_id"


class PostgresStorage:
    """One connection to a server."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.shown_name = without_password(address)
        self._connection: psycopg.Connection[Any] | None = None
        self._held = ""

    def append(self, study_id: str, facts: Sequence[Fact]) -> None:
        rows = [(study_id, f.fact_id, f.place, f.kind, f.number, f.at, f.body) for f in facts]
        with self._using("written") as connection, connection.transaction(), connection.cursor() as cursor:
            cursor.executemany(_INSERT.encode(), rows)

    def read(self, study_id: str) -> list[Fact]:
        with self._using("read") as connection:
            rows = connection.execute(_READ.encode(), (study_id,)).fetchall()
        return [msgspec.convert(dict(zip(COLUMNS[1:], row, strict=True)), Fact) for row in rows]

    def study_ids(self) -> list[str]:
        with self._using("read") as connection:
            rows = connection.execute(f"SELECT DISTINCT study_id FROM {TABLE} ORDER BY 1".encode()).fetchall()
        return [row[0] for row in rows]

    def hold(self, study_id: str) -> bool:
        """A lock of the session: the server releases it when it sees the connection end, however it ended.

        That takes it a moment, which a coordinator that comes right after a killed one waits out.
        """
        last_try_s = time.monotonic() + RELEASE_SECONDS
        while not (is_held := self._try_to_hold(study_id)) and time.monotonic() < last_try_s:
            time.sleep(0.05)
        self._held = study_id if is_held else ""
        return is_held

    def _try_to_hold(self, study_id: str) -> bool:
        with self._using("locked") as connection:
            found = connection.execute("SELECT pg_try_advisory_lock(%s)", (_lock_number(study_id),)).fetchone()
        return bool(found and found[0])

    def reopen(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(Exception):
                self._connection.close()
        self._connection = None

    def close(self) -> None:
        if self._connection is not None and self._held:
            with contextlib.suppress(Exception):  # a server that is gone has released it already
                self._connection.execute("SELECT pg_advisory_unlock_all()")
        self._held = ""
        self.reopen()

    @contextlib.contextmanager
    def _using(self, verb: str) -> Iterator[psycopg.Connection[Any]]:
        library = _psycopg()
        try:
            yield self._open(library)
        except library.Error as error:
            self.reopen()
            lines = str(error).strip().splitlines() or [type(error).__name__]
            hint = "check that the server runs, and the address: postgresql://USER@HOST:PORT/DATABASE"
            raise StorageError(f"{self.shown_name} cannot be {verb}", found=lines[0], hint=hint) from None

    def _open(self, library: ModuleType) -> psycopg.Connection[Any]:
        if self._connection is None or self._connection.closed:
            made = library.connect(self.address, autocommit=True, connect_timeout=CONNECT_SECONDS)
            # Two studies that begin at the same moment would both find no table, and one of them would fail.
            with made.transaction():
                made.execute("SELECT pg_advisory_xact_lock(%s)", (_lock_number(TABLE),))
                made.execute(CREATE)
            self._connection = made
            if self._held and not self.hold(self._held):
                raise StorageError(f"another coordinator has taken over the study in {self.shown_name}")
        assert self._connection is not None
        return self._connection


def _psycopg() -> ModuleType:
    try:
        import psycopg
    except ImportError:
        raise MissingExtra("PostgreSQL needs psycopg", hint="pip install 'memfit[postgres]'") from None
    return psycopg


def _lock_number(name: str) -> int:
    """A 64-bit number for a name, the same in every process."""
    return int.from_bytes(hashlib.sha256(f"memfit {name}".encode()).digest()[:8], "big", signed=True)


def without_password(address: str) -> str:
    """The address as it may be shown and kept."""
    parts = urlsplit(address)
    if parts.password is None:
        return address
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{parts.username or ''}@{host}"))
