"""How is a run folder read, whatever state a crash left it in?

Everything in the folder is data: it is parsed, never executed, and a torn tail is cut off. What is missing becomes a
note or an unknown figure with its reason; only a folder that is not a run, a newer format or a header that cannot be
parsed is an error.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from memfit.errors import DamagedRecord, NewerFormat, NotARun
from memfit.records import layout
from memfit.records.assemble import RawRun, assemble_run
from memfit.records.events import AnyEvent, Event
from memfit.records.ledger import LedgerFacts
from memfit.records.run import RunHeader, RunRecord
from memfit.records.samples import samples_from_bytes


def read_run(folder: str | Path) -> RunRecord:
    """Read a whole run folder."""
    path = Path(folder)
    header = read_header(path)
    notes: list[str] = []
    return assemble_run(
        RawRun(
            folder=str(path),
            header=header,
            samples=samples_from_bytes(_read_bytes(path / layout.SAMPLES_FILE, notes)),
            events=_read_events(path / layout.EVENTS_FILE, notes),
            marks_paths=tuple(sorted(path.glob(f"{layout.MARKS_PREFIX}*.txt"))),
            ledger_facts=_read_ledgers(path, notes),
            notes=notes,
        )
    )


def read_header(folder: Path) -> RunHeader:
    """Read and check run.json."""
    path = folder / layout.HEADER_FILE
    if not path.is_file():
        found = "no such folder" if not folder.exists() else f"no {layout.HEADER_FILE} in it"
        raise NotARun(f"{folder} is not a memfit run", found=found, hint="give the folder that `memfit measure` wrote")
    try:
        raw = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise NotARun(f"{path} cannot be read", found=str(error), hint="check its permissions") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedRecord(f"{path} is not whole", found=str(error), hint="measure again") from None
    if not isinstance(raw, dict) or raw.get("format") != layout.FORMAT_NAME:
        raise NotARun(f"{folder} is not a memfit run", found="another format in run.json", hint="give a run folder")
    _check_version(folder, raw.get("format_version"))
    try:
        return msgspec.convert(raw, RunHeader)
    except msgspec.ValidationError as error:
        raise DamagedRecord(f"{path} does not hold a run header", found=str(error), hint="measure again") from None


def _check_version(folder: Path, version: Any) -> None:
    if not isinstance(version, int) or version < 1:
        raise DamagedRecord(f"{folder} has no format version", found=repr(version), hint="measure again")
    if version > layout.FORMAT_VERSION:
        raise NewerFormat(
            f"{folder} was written by a newer memfit",
            found=f"format {version}, this memfit reads up to {layout.FORMAT_VERSION}",
            hint="pip install --upgrade memfit",
        )


def _read_bytes(path: Path, notes: list[str]) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        notes.append(f"{path.name} is missing: the run ended before anything was read")
    except OSError as error:
        notes.append(f"{path.name} could not be read ({error.strerror})")
    return b""


def _read_events(path: Path, notes: list[str]) -> list[Event]:
    """All whole lines of events.jsonl; those that fit no kind are counted in a note."""
    decoder = msgspec.json.Decoder(AnyEvent)
    events: list[Event] = []
    num_broken = 0
    for line in _read_bytes(path, notes).split(b"\n"):
        try:
            if line:
                events.append(decoder.decode(line))
        except (msgspec.MsgspecError, UnicodeDecodeError, OverflowError):
            num_broken += 1
    if num_broken:
        what = "line was" if num_broken == 1 else "lines were"
        notes.append(f"{num_broken} {what} left out of {path.name}, which could not be read")
    return events


def _read_ledgers(folder: Path, notes: list[str]) -> tuple[LedgerFacts, ...]:
    facts: list[LedgerFacts] = []
    for path in sorted(folder.glob(f"{layout.LEDGER_PREFIX}*.jsonl")):
        for line in _read_bytes(path, notes).split(b"\n"):
            if not line:
                continue
            try:
                facts.append(msgspec.json.decode(line, type=LedgerFacts))
            except (msgspec.MsgspecError, UnicodeDecodeError):
                notes.append(f"a line of {path.name} could not be read and was left out")
    return tuple(facts)
