"""Interface of study storage: facts that are only ever added, in a local file or in PostgreSQL.

    study      who and how: the settings                     started   which attempt of a trial runs where
    settings   how far it may go now (changed on resume)     ended     the whole record of a trial
    proposed   a point, before anything is started

Nothing is changed or removed, and a fact has a name of its own: storing it twice stores it once. What a study is,
is read off its facts. A database is therefore safe to lose for a while; see `write_ahead.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from memfit.errors import DamagedRecord, NewerFormat, StorageError, UsageError
from memfit.records.figure import Figure
from memfit.records.files.only_text import only_text
from memfit.records.study import STUDY_VERSION, Proposal, Study, StudySettings, TrialRecord

_Body = TypeVar("_Body")

FactKind = Literal["study", "settings", "proposed", "started", "ended"]
DATABASE_FILE = "study.db"
TABLE = "memfit_fact"
COLUMNS = ("study_id", "fact_id", "place", "kind", "number", "at", "body")
CREATE = f"""CREATE TABLE IF NOT EXISTS {TABLE} (
    study_id TEXT NOT NULL, fact_id TEXT NOT NULL, place BIGINT NOT NULL, kind TEXT NOT NULL, number BIGINT,
    at TEXT NOT NULL, body TEXT NOT NULL, PRIMARY KEY (study_id, fact_id))"""


class DatabaseGone(StorageError):
    """The database file was moved, removed or replaced while the study ran."""


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened in a study."""

    fact_id: str
    place: int
    """0, 1, 2, ... in the order of happening."""
    kind: FactKind
    number: int | None = None
    at: str
    """ISO 8601 with offset."""
    body: str
    """JSON; of what shape depends on the kind."""


class Proposed(msgspec.Struct, frozen=True, kw_only=True):
    """The body of 'proposed'."""

    proposal: Proposal
    trial_id: str
    predicted_peak: Figure | None = None


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """The body of 'started'."""

    attempt: int
    folder: str
    """Relative to the study's folder."""
    started_at: str
    worker: str = ""


class StudyExtent(msgspec.Struct, frozen=True, kw_only=True):
    """The body of 'settings': what may change from one session to the next."""

    max_trials: int | None
    max_seconds: float | None
    concurrency: int
    max_trial_seconds: float | msgspec.UnsetType | None = msgspec.UNSET
    """Unset in studies from before it could change."""

    def applied(self, settings: StudySettings) -> StudySettings:
        """The settings with these."""
        known = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not msgspec.UNSET}
        return msgspec.structs.replace(settings, **known)


class Storage(Protocol):
    """Keeps facts; every problem with the database is a StorageError."""

    shown_name: str

    def append(self, study_id: str, facts: Sequence[Fact]) -> None:
        """Store these, all or none; what is stored already is left as it is."""
        ...

    def read(self, study_id: str) -> list[Fact]:
        """All facts of a study, in their order."""
        ...

    def study_ids(self) -> list[str]:
        """The studies in this database."""
        ...

    def hold(self, study_id: str) -> bool:
        """Become the only coordinator of a study until `close`; False when another one is."""
        ...

    def reopen(self) -> None:
        """Try again from the beginning, after an error."""
        ...

    def close(self) -> None: ...


def now_text() -> str:
    """This moment, as records write it."""
    return datetime.now().astimezone().isoformat(timespec="milliseconds")


def fact(place: int, fact_id: str, kind: FactKind, body: object, number: int | None = None) -> Fact:
    """A fact of this moment. Halves of characters, which no file holds, are replaced in what trials report and refused
    in a study's settings: its options would not be the ones that were asked for."""
    try:
        raw = msgspec.json.encode(body)
    except UnicodeEncodeError as error:
        if kind == "study":
            found = ascii(str(error.object)[error.start : error.end])
            raise UsageError("a text of the study cannot be stored", found=found, hint="text that is UTF-8") from None
        raw = msgspec.json.encode(only_text(msgspec.to_builtins(body)))
    return Fact(fact_id=fact_id, place=place, kind=kind, number=number, at=now_text(), body=raw.decode())


def decoded(found: Fact, kind: type[_Body]) -> _Body:
    """The body of a fact."""
    try:
        return msgspec.json.decode(found.body, type=kind)
    except msgspec.DecodeError as error:
        hint = "it was changed by hand, or written by another version of memfit"
        raise DamagedRecord(f"the stored fact {found.fact_id!r} cannot be read", found=str(error), hint=hint) from None


def study_of(study_id: str, facts: Iterable[Fact], folder: str = "") -> Study:
    """A study, read off its facts."""
    settings: StudySettings | None = None
    created_at, trials = "", dict[int, TrialRecord]()
    facts = list(facts)
    ended = {each.number for each in facts if each.kind == "ended"}  # the end of a trial is the whole of it
    for each in facts:
        if each.kind == "study":
            settings, created_at = _settings(each), each.at
        elif each.kind == "settings" and settings is not None:
            extent: StudyExtent = decoded(each, StudyExtent)
            settings = extent.applied(settings)
        elif each.number is not None and (each.kind == "ended" or each.number not in ended):
            trials[each.number] = _after(trials.get(each.number), each)
    if settings is None:
        raise DamagedRecord("the study has no settings", found=study_id, hint="its database is not whole")
    ordered = tuple(trials[number] for number in sorted(trials))
    return Study(study_id=study_id, settings=settings, trials=ordered, folder=folder, created_at=created_at)


def _settings(found: Fact) -> StudySettings:
    version = msgspec.json.decode(found.body).get("format_version", 1)
    if version > STUDY_VERSION:
        versions = f"format {version}, this memfit reads up to {STUDY_VERSION}"
        raise NewerFormat("the study was written by a newer memfit", found=versions, hint="pip install -U memfit")
    return decoded(found, StudySettings)


def _after(trial: TrialRecord | None, found: Fact) -> TrialRecord:
    """A trial after one more fact; the end of a trial is the whole of it."""
    if found.kind == "ended":
        return decoded(found, TrialRecord)
    if found.kind == "proposed":
        first: Proposed = decoded(found, Proposed)
        known: dict[str, Any] = {"predicted_peak": first.predicted_peak} if first.predicted_peak else {}
        return trial or TrialRecord(proposal=first.proposal, trial_id=first.trial_id, **known)
    if trial is None:
        raise DamagedRecord("a trial was started that was never proposed", found=f"number {found.number}")
    if trial.is_finished:
        return trial
    began: Started = decoded(found, Started)
    return msgspec.structs.replace(
        trial,
        num_attempts=began.attempt,
        run_folder=f"{began.folder}/run",
        started_at=began.started_at,
        worker=began.worker,
    )
