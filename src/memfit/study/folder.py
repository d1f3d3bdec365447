"""Folder of a study on disk: whether it is this study, and whether it may be resumed.

    memfit-studies/NAME/
      where.json     the study's id, the address of its database (never a password), and the names of variables that
                     its trials get (never a value)
      study.db       its facts, unless they are in PostgreSQL
      study.json     the whole study, written after every session
      coordinator.json, requests/   the process that runs it now, and what others ask of it (see `control`)
      trials/00012/  parameter.json, metrics.jsonl, stdout.txt, stderr.txt, run/ (as `memfit measure` writes it)

The same command in the same place goes on with the same study.
"""

from __future__ import annotations

import re
import secrets
import shutil
import string
from collections.abc import Iterable
from pathlib import Path

import msgspec

from memfit.errors import NotARun, RunExists, StorageError, UsageError
from memfit.records.study import Study, StudySettings
from memfit.regular_file import describe_error, read_regular
from memfit.study.storage.interface import DATABASE_FILE, Storage, study_of
from memfit.study.storage.open import check_address, is_file, open_storage
from memfit.study.storage.postgres import without_password
from memfit.study.storage.write_ahead import UNSAVED_FILE, read_unsaved

DEFAULT_PARENT = "memfit-studies"
WHERE_FILE = "where.json"
LOG_FOLDER = "log"
"""Where `nnictl` and Experiment keep what the coordinator prints; it may be there before the study is."""
_FREE_TO_CHANGE = (
    "max_trials", "max_seconds", "max_trial_seconds", "concurrency", "source", "output_folder", "notes",
)  # fmt: skip
"""What may differ when a study goes on."""


class Where(msgspec.Struct, frozen=True, kw_only=True):
    """where.json."""

    study_id: str
    storage: str
    """An address, or the name of a file in the folder."""
    variables: tuple[str, ...] = ()
    """What `--env` named in any session; the values are kept nowhere."""


def default_folder(settings: StudySettings) -> Path:
    """memfit-studies/NAME, after the study, its workload or its file."""
    if settings.output_folder:
        return Path(settings.output_folder)
    subject = settings.name or settings.workload or settings.source.partition(" (")[0] or settings.command
    stem = re.sub(r"[^\w.-]+", "-", Path(subject).stem if "/" in subject else subject).strip("-.")
    return Path(DEFAULT_PARENT) / (stem[:60] or "study")


def create(folder: Path, storage: str, study_id: str = "") -> Where:
    """Make the folder of a new study."""
    check_address(storage)
    if folder.exists() and (not folder.is_dir() or any(entry.name != LOG_FOLDER for entry in folder.iterdir())):
        raise RunExists(
            f"{folder} exists and is not a study", found="other files", hint="choose another folder with -o"
        )
    where = Where(study_id=study_id or new_id(8), storage=without_password(storage) if storage else DATABASE_FILE)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / WHERE_FILE).write_bytes(msgspec.json.encode(where))
    except OSError as error:
        found = error.strerror or str(error)
        raise StorageError(f"{folder} cannot be written", found=found, hint="choose another folder with -o") from None
    return where


def new_id(length: int) -> str:
    """Letters and digits, as NNI names experiments and trials."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(length))


def find(folder: Path) -> Where | None:
    """What is kept in a folder; None when there is no study in it."""
    try:
        return msgspec.json.decode(read_regular(folder / WHERE_FILE), type=Where)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        hint = "remove the folder, or choose another one with -o"
        found = describe_error(error) if isinstance(error, OSError) else str(error)
        raise NotARun(f"{folder / WHERE_FILE} cannot be read", found=found, hint=hint) from None


def remember_variables(folder: Path, names: Iterable[str]) -> None:
    """Keep the names of what trials get, for sessions that do not name it again."""
    where = find(folder)
    if where is None or set(names) <= set(where.variables):
        return
    changed = msgspec.structs.replace(where, variables=tuple(dict.fromkeys((*where.variables, *names))))
    beside = folder / f"{WHERE_FILE}.new"
    beside.write_bytes(msgspec.json.encode(changed))
    beside.replace(folder / WHERE_FILE)


def storage_of(folder: Path, where: Where, address: str = "") -> Storage:
    """The database of a study; an address given now (with its password) goes before the one that is kept."""
    place = address or where.storage
    if address and without_password(address) != where.storage:
        raise UsageError("the study is in another database", found=where.storage, hint="leave --storage out")
    return open_storage(folder / place.removeprefix("sqlite:///") if is_file(place) else place)


def read_folder(folder: str | Path, address: str = "") -> Study:
    """Read a study, whether it runs or not; changes nothing."""
    path = Path(folder)
    where = find(path)
    if where is None:
        hint = "give the folder that `memfit study` wrote"
        raise NotARun(
            f"{path} is not a study", found=f"no {WHERE_FILE} in it" if path.exists() else "nothing", hint=hint
        )
    storage = storage_of(path, where, address)
    try:
        facts = storage.read(where.study_id)
    finally:
        storage.close()
    known = {fact.fact_id for fact in facts}
    late = [fact for fact in read_unsaved(path / UNSAVED_FILE) if fact.fact_id not in known]
    return study_of(where.study_id, sorted([*facts, *late], key=lambda fact: fact.place), str(path))


def check_same(stored: StudySettings, asked: StudySettings, folder: Path) -> None:
    """Refuse to go on with a study under other settings."""
    names = [
        name
        for name in stored.__struct_fields__
        if name not in _FREE_TO_CHANGE and _plain(getattr(stored, name)) != _plain(getattr(asked, name))
    ]
    if names:
        raise RunExists(
            f"{folder} holds a study with other settings",
            found=f"different: {', '.join(names)}",
            hint="choose another folder with -o, or start it over with -f",
        )


def _plain(value: object) -> bytes:
    """As it is stored: a number that was written as 1.0 equals one that comes back as 1."""
    return msgspec.json.encode(value)


def remove(folder: Path) -> None:
    """Remove an old study of ours, and nothing else."""
    if find(folder) is None:
        return
    where = find(folder)
    if where is not None and not is_file(where.storage):
        raise RunExists(
            f"{folder} has its facts in a database", found=where.storage, hint="choose another folder with -o"
        )
    shutil.rmtree(folder)
