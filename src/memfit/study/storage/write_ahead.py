"""Writes that survive a locked, full or missing database: kept in a file until they are stored.

The coordinator keeps every fact of its study in memory and in the database. What the database does not take is kept
in a file beside it as well, tried again with every later fact, and read back when the study is opened the next
time. A database that was removed is written again from memory, whole: facts have names, so writing one twice writes
it once.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from memfit.errors import StorageError
from memfit.regular_file import read_beginning
from memfit.study.storage.interface import DatabaseGone, Fact, FactKind, Storage, fact

UNSAVED_FILE = "unsaved.jsonl"
UNSAVED_BYTES = 1024**3
Tell = Callable[[str], None]


class StudyLog:
    """The facts of one study, and their way into the database."""

    def __init__(self, storage: Storage, study_id: str, folder: Path, tell: Tell) -> None:
        self.storage = storage
        self.study_id = study_id
        self.unsaved_path = folder / UNSAVED_FILE
        self.tell = tell
        self.facts: list[Fact] = []
        self._waiting: list[Fact] = []
        self._is_together = False
        self._is_behind = False
        """Whether the database lacks something, as far as we know."""

    def open(self) -> list[Fact]:
        """Read what is stored, and what an earlier session could not store."""
        self.facts = self.storage.read(self.study_id)
        known = {each.fact_id for each in self.facts}
        late = [each for each in read_unsaved(self.unsaved_path) if each.fact_id not in known]
        if late:
            self.facts = sorted([*self.facts, *late], key=lambda each: each.place)
            self.tell(f"{len(late)} facts that an earlier session could not store are stored now")
            self._is_behind = True
            self._store([])
        return self.facts

    def begin(self, body: object) -> None:
        """Store the first fact of a new study; a database that cannot take it is an error now, not later."""
        self.facts = [fact(0, "study", "study", body)]
        self.storage.append(self.study_id, self.facts)

    def add(self, fact_id: str, kind: FactKind, body: object, number: int | None = None) -> None:
        """Take in one fact; it is safe, in the database or beside it, when this or the block of `together` ends."""
        place = self.facts[-1].place + 1 if self.facts else 0
        made = fact(place, fact_id, kind, body, number)
        self.facts.append(made)
        self._waiting.append(made)
        if not self._is_together:
            self._flush()

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Store the facts that are added within as one: a thousand ends of trials cost one flush of the disk."""
        self._is_together = True
        try:
            yield
        finally:
            self._is_together = False
            self._flush()

    def _flush(self) -> None:
        new, self._waiting = self._waiting, []
        if new:
            self._store(new)

    def close(self) -> None:
        """Try once more; raises when facts are still not in the database."""
        self._flush()
        if self._is_behind:
            self._store([], last=True)

    def _store(self, new: list[Fact], *, last: bool = False) -> None:
        try:
            if self._is_behind:
                self.storage.reopen()
            self.storage.append(self.study_id, self.facts if self._is_behind else new)
        except StorageError as error:
            self._keep_beside(new)
            if last:
                raise
            if not self._is_behind:
                self._fall_behind(error)
            return
        if self._is_behind:
            self._is_behind = False
            self.unsaved_path.unlink(missing_ok=True)
            self.tell(f"{self.storage.shown_name} is written again; nothing was lost")

    def _fall_behind(self, error: StorageError) -> None:
        """The first refusal; a database that is gone is written again at once."""
        self._is_behind = True
        if isinstance(error, DatabaseGone):
            self.tell(str(error))
            self._store([])
        else:
            self.tell(f"{error}; the study goes on, and what happens is kept in {self.unsaved_path}")

    def _keep_beside(self, new: list[Fact]) -> None:
        """A full disk takes this neither; then memory has it, and the trial's own folder has most of it."""
        if not new:
            return
        with contextlib.suppress(OSError), open(self.unsaved_path, "ab") as file:
            file.write(b"".join(msgspec.json.encode(each) + b"\n" for each in new))
            file.flush()
            os.fsync(file.fileno())


def read_unsaved(path: Path) -> list[Fact]:
    """What was kept beside the database; a torn last line is left out."""
    try:
        lines = read_beginning(path, most_bytes=UNSAVED_BYTES).content.split(b"\n")
    except OSError:
        return []
    found = []
    for line in lines:
        with contextlib.suppress(ValueError, RecursionError):
            found.append(msgspec.json.decode(line, type=Fact))
    return found
