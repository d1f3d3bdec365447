"""Opened records, kept while they are looked at: each is read again when its files change, and only a few are kept."""

from __future__ import annotations

import contextlib
import shlex
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from memfit.errors import MemfitError, NotARun
from memfit.records.study import Study
from memfit.runfolder.reader import read_header
from memfit.serve.catalogue import FolderContents, RecordEntry, find_records, kind_of, resolve, signature
from memfit.show.page.documents.document import Body, Document
from memfit.show.views.curves import Curve

MOST_OPENED = 4
LISTED_SECONDS = 2.0
"""A list this old is made again."""
MOST_TITLED = 5000
"""Runs whose commands the list shows, the newest ones: each has a file to be read."""
MOST_TITLE_LETTERS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """One record, read: what the page gets of it, and what answers later questions about it."""

    document: Document
    curves: tuple[Curve, ...] = ()
    """Of a run, with every sample: windows are cut from them."""
    study: Study | None = None
    later: Mapping[str, Callable[[], Body]] = field(default_factory=dict)
    """What takes long to find out, by name: the page asks for it after it has drawn the rest."""


Opener = Callable[[Path, Path], Opened]
"""Called with the path of a record and the folder that is served: nothing outside of that folder is read."""


@dataclass(slots=True, kw_only=True)
class _Kept:
    """An opened record with its JSON and what it was read from."""

    signature: str
    opened: Opened
    content: bytes
    seconds: float


class Library:
    """The records of one folder; safe to ask from several threads."""

    def __init__(self, root: Path, openers: Mapping[str, Opener]) -> None:
        self.root = root
        self.openers = openers
        self._lock = threading.Lock()
        self._reading: dict[str, threading.Lock] = {}
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._listed: tuple[float, FolderContents] | None = None
        self._titles: dict[Path, str] = {}
        """What runs ran: the header of a run is written once."""

    def records(self) -> FolderContents:
        """What lies in the folder now."""
        now = time.monotonic()
        with self._lock:
            if self._listed is None or now - self._listed[0] > LISTED_SECONDS:
                self._listed = (now, find_records(self.root))
            return self._listed[1]

    def titles(self, entries: Sequence[RecordEntry]) -> dict[str, str]:
        """The command of every run among some entries, by its id; one that cannot be read has none."""
        runs = [entry for entry in entries if entry.kind == "run"][:MOST_TITLED]
        for entry in runs:
            if entry.path not in self._titles:
                self._titles[entry.path] = _title(entry.path)
        if len(self._titles) > 2 * MOST_TITLED:
            self._titles = {entry.path: self._titles[entry.path] for entry in runs}
        return {entry.id: title for entry in runs if (title := self._titles.get(entry.path))}

    def read_ahead(self) -> None:
        """Begin to read the record of a folder that holds only one: it is what the page asks for first."""
        entries = self.records().entries
        if len(entries) == 1:
            threading.Thread(target=self._try, args=(entries[0].id,), daemon=True).start()

    def _try(self, name: str) -> None:
        with contextlib.suppress(MemfitError):
            self.opened(name)

    def version(self, name: str) -> str:
        """Changes when the record does."""
        return signature(self._path(name))

    def opened(self, name: str) -> Opened:
        """The record, read again if it changed."""
        return self._entry(name).opened

    def content(self, name: str) -> tuple[bytes, str, float]:
        """The JSON of the document, its version, and how long reading it took."""
        entry = self._entry(name)
        return entry.content, entry.signature, entry.seconds

    def _path(self, name: str) -> Path:
        return resolve(self.root, name)

    def _entry(self, name: str) -> _Kept:
        path = self._path(name)
        with self._lock:
            reading = self._reading.setdefault(name, threading.Lock())
        with reading:
            version = signature(path)
            with self._lock:
                kept = self._kept.get(name)
                if kept is not None and kept.signature == version:
                    self._kept.move_to_end(name)
                    return kept
            entry = self._read(path, version)
            with self._lock:
                self._kept[name] = entry
                self._kept.move_to_end(name)
                while len(self._kept) > MOST_OPENED:
                    self._kept.popitem(last=False)
                self._reading = {key: lock for key, lock in self._reading.items() if key in self._kept or lock.locked()}
            return entry

    def _read(self, path: Path, version: str) -> _Kept:
        kind = kind_of(path)
        if kind is None or kind not in self.openers:
            raise NotARun("this is no record of memfit", found=path.name[:200], hint="choose one from the list")
        start = time.monotonic()
        opened = self.openers[kind](path, self.root)
        content = opened.document.to_json()
        return _Kept(signature=version, opened=opened, content=content, seconds=time.monotonic() - start)


def _title(folder: Path) -> str:
    try:
        return shlex.join(read_header(folder).command)[:MOST_TITLE_LETTERS]
    except (MemfitError, OSError):
        return ""
