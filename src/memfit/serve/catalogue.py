"""Catalogue of a folder: which records lie in it, by kind, and the way from the name of one to its path.

What is below the folder is not trusted: links are not followed, names are compared as text, and the walk ends after
a number of entries.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from memfit.errors import NotARun
from memfit.records.files import layout
from memfit.records.grid import GRID_FORMAT
from memfit.records.pipeline import PIPELINE_FORMAT
from memfit.records.plan import PLAN_FORMAT
from memfit.records.prediction import PREDICTION_FORMAT, RANKS_FORMAT
from memfit.records.study import STUDY_FORMAT
from memfit.regular_file import open_regular
from memfit.runfolder.reader import grows

MOST_ENTRIES = 50_000
MOST_DEPTH = 8
SNIFFED_BYTES = 65_536
WHERE_FILE, DATABASE_FILE = "where.json", "study.db"
ELSEWHERE_SECONDS = 5.0
"""A study whose database is not in its folder (PostgreSQL) is read again this often: no file says that it changed."""
SNAPSHOT_ENDINGS = (".pickle", ".pkl", ".pickle.gz", ".pkl.gz", ".pickle.xz", ".pkl.xz")
FORMATS = {
    PREDICTION_FORMAT: "prediction", PLAN_FORMAT: "plan", PIPELINE_FORMAT: "pipeline", GRID_FORMAT: "grid",
    STUDY_FORMAT: "study", RANKS_FORMAT: "prediction",
}  # fmt: skip
"""What stands in a JSON file of each kind; the first that is found near its beginning decides."""
NOT_RECORDS = {".git", ".venv", "node_modules", "__pycache__"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordEntry:
    """One record on disk."""

    id: str
    """Its path below the folder, with slashes; '.' for the folder itself."""
    kind: str
    path: Path
    changed_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderContents:
    """What lies in a folder."""

    entries: tuple[RecordEntry, ...]
    is_whole: bool
    """False when the walk ended before it had seen everything."""


def find_records(root: Path) -> FolderContents:
    """Every record below a folder, or the one that it is or that the path names."""
    if not root.exists():
        raise NotARun(f"{root} is not there", found="nothing", hint="give a folder of runs, studies or other records")
    if not root.is_dir():
        kind = kind_of(root)
        if kind is None:
            raise NotARun(
                f"{root} is no record of memfit",
                found="another file",
                hint="a run, study or snapshot, or the JSON of another record",
            )
        return FolderContents(
            entries=(RecordEntry(id=".", kind=kind, path=root, changed_at=_changed(root)),), is_whole=True
        )
    found, seen = [], 0
    for path, number in _walk(root):
        seen = number
        kind = kind_of(path)
        if kind is not None:
            name = "." if path == root else path.relative_to(root).as_posix()
            found.append(RecordEntry(id=name, kind=kind, path=path, changed_at=_changed(path)))
    found.sort(key=lambda entry: (-entry.changed_at, entry.id))
    return FolderContents(entries=tuple(found), is_whole=seen < MOST_ENTRIES)


def _walk(root: Path) -> Iterator[tuple[Path, int]]:
    """Folders and files below a root, without links; what is itself a run or a study is not entered."""
    waiting, number = [(root, 0)], 0
    while waiting:
        folder, depth = waiting.pop()
        yield folder, number
        if depth > MOST_DEPTH or _folder_kind(folder) is not None:
            continue
        try:
            names = sorted(os.scandir(folder), key=lambda one: one.name)
        except OSError:
            continue
        for one in names:
            number += 1
            if number >= MOST_ENTRIES:
                yield folder, number
                return
            if one.is_symlink() or one.name in NOT_RECORDS:
                continue
            if one.is_dir(follow_symlinks=False):
                waiting.append((Path(one.path), depth + 1))
            elif one.is_file(follow_symlinks=False) and _may_be_record(one.name):
                yield Path(one.path), number


def _may_be_record(name: str) -> bool:
    return name.endswith((".json", *SNAPSHOT_ENDINGS))


def kind_of(path: Path) -> str | None:
    """What a path is: 'run', 'study', 'prediction', 'plan', 'pipeline', 'grid', 'snapshot', or None."""
    if path.is_dir():
        return _folder_kind(path)
    if path.name.endswith(SNAPSHOT_ENDINGS):
        return "snapshot"
    return _json_kind(path) if path.suffix == ".json" else None


def _folder_kind(folder: Path) -> str | None:
    if (folder / WHERE_FILE).is_file():
        return "study"
    return "run" if (folder / layout.HEADER_FILE).is_file() else None


def _json_kind(path: Path) -> str | None:
    try:
        with open_regular(path) as stream:
            head = stream.read(SNIFFED_BYTES)
    except OSError:
        return None
    places = [(head.find(f'"{text}"'.encode()), kind) for text, kind in FORMATS.items()]
    return min(((place, kind) for place, kind in places if place >= 0), default=(0, None))[1]


def resolve(root: Path, name: str) -> Path:
    """The path that a name means; refused where it would lead out of the root, by dots, links or an absolute path."""
    if name == ".":
        return root
    parts = PurePosixPath(name).parts
    if not name or "\0" in name or name.startswith("/") or ".." in parts or not root.is_dir():
        raise NotARun("there is no such record", found=name[:200], hint="choose one from the list")
    path = root.joinpath(*parts)
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root)) or not os.path.exists(path):
        raise NotARun("there is no such record", found=name[:200], hint="choose one from the list")
    return path


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def signature(path: Path) -> str:
    """Changes whenever the record does, and when it ceases to grow: times and sizes of the files that are written."""
    files = [path] if not path.is_dir() else [path / name for name in (
        WHERE_FILE, DATABASE_FILE, f"{DATABASE_FILE}-wal", "study.json", "unsaved.jsonl",
        layout.HEADER_FILE, layout.SAMPLES_FILE, layout.EVENTS_FILE,
    )]  # fmt: skip
    parts = []
    for file in files:
        try:
            status = file.stat()
            parts.append(f"{status.st_mtime_ns:x}.{status.st_size:x}")
        except OSError:
            parts.append("-")
    if path.is_dir() and grows(path):
        parts.append("growing")
    if (path / WHERE_FILE).is_file() and not (path / DATABASE_FILE).is_file():
        parts.append(str(int(time.time() / ELSEWHERE_SECONDS)))
    return "_".join(parts)
