"""Reader of run folders, whatever state a crash left them in.

Everything in the folder is data: it is parsed, never executed, and a torn tail is cut off. Only regular files are
opened, and of each only so much is read. What is missing becomes a note or an unknown figure with its reason; only a
folder that is not a run, a newer format or a header that cannot be parsed is an error.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from pathlib import Path

import msgspec

from memfit.errors import DamagedRecord, NewerFormat, NotARun
from memfit.records.files import layout
from memfit.records.files.only_text import decode_lenient
from memfit.records.files.ranges import is_plausible
from memfit.records.run import Outcome, RunHeader, RunRecord
from memfit.records.run_parts.ledger import LedgerFacts
from memfit.records.run_parts.samples import samples_from_bytes
from memfit.regular_file import describe_error, open_regular, read_beginning, read_regular
from memfit.runfolder.assemble import RawRun, assemble_run
from memfit.runfolder.events import AnyEvent, Event, ProcessStarted
from memfit.runfolder.marks import MarksText
from memfit.units import GIB, MIB, format_bytes

HEADER_BYTES = 16 * MIB
MOST_BYTES = {"samples": GIB, "events": 256 * MIB, "marks": GIB, "ledger": 256 * MIB}
"""What is read of the files of each kind, all of a kind together: a week of samples, ten million steps."""
MOST_FILES = 4096
"""Files of one kind that are opened."""
GROWING_SECONDS = 10.0
"""A run to which nothing was written for so long is not being measured: a sampler writes several times a second."""


def read_run(folder: str | Path) -> RunRecord:
    """Read a whole run folder."""
    path = Path(folder)
    header = read_header(path)
    notes: list[str] = []
    raw = _read_bytes(path / layout.SAMPLES_FILE, MOST_BYTES["samples"], notes, record_bytes=layout.SAMPLE.size)
    events = _read_events(path / layout.EVENTS_FILE, notes)
    return assemble_run(
        RawRun(
            folder=str(path),
            header=header,
            samples=samples_from_bytes(raw),
            events=events,
            marks=_read_marks(path, notes),
            ledger_facts=_read_ledgers(path, _outer_pids(events), notes),
            notes=notes,
        )
    )


def read_growing_run(folder: str | Path) -> RunRecord:
    """Read a run folder that may still be written: one whose end is not recorded and that grows is still running."""
    is_growing = grows(Path(folder))
    run = read_run(folder)
    if run.outcome.kind != "lost" or not is_growing:
        return run
    message = "it is being measured, and everything here is as of now"
    return dataclasses.replace(run, outcome=Outcome(kind="still running", message=message))


def grows(folder: Path) -> bool:
    """Whether something was written to a run within the last seconds; a sampler writes several times a second."""
    newest = 0.0
    for name in (layout.SAMPLES_FILE, layout.EVENTS_FILE):
        with contextlib.suppress(OSError):
            newest = max(newest, (folder / name).stat().st_mtime)
    return abs(time.time() - newest) < GROWING_SECONDS


def read_header(folder: Path) -> RunHeader:
    """Read and check run.json."""
    path = folder / layout.HEADER_FILE
    hint = "give the folder that `memfit measure` wrote"
    try:
        raw = _decode(read_regular(path, most_bytes=HEADER_BYTES))
    except (FileNotFoundError, NotADirectoryError):
        found = "no such folder" if not folder.exists() else f"no {layout.HEADER_FILE} in it"
        raise NotARun(f"{folder} is not a memfit run", found=found, hint=hint) from None
    except OSError as error:
        raise NotARun(f"{path} cannot be read", found=describe_error(error), hint=hint) from None
    except (ValueError, RecursionError) as error:
        raise DamagedRecord(f"{path} is not whole", found=str(error), hint="measure again") from None
    if not isinstance(raw, dict) or raw.get("format") != layout.FORMAT_NAME:
        raise NotARun(f"{folder} is not a memfit run", found="another format in run.json", hint="give a run folder")
    _check_version(folder, raw.get("format_version"))
    try:
        return msgspec.convert(raw, RunHeader)
    except msgspec.ValidationError as error:
        raise DamagedRecord(f"{path} does not hold a run header", found=str(error), hint="measure again") from None


def _decode(raw: bytes) -> object:
    """A JSON document; also one of an older memfit, which wrote bytes that are no text as they were."""
    try:
        return msgspec.json.decode(raw)
    except ValueError:
        if b"\\ud" not in raw.lower():
            raise
        return decode_lenient(raw)


def _check_version(folder: Path, version: object) -> None:
    if not isinstance(version, int) or version < 1:
        raise DamagedRecord(f"{folder} has no format version", found=repr(version), hint="measure again")
    if version > layout.FORMAT_VERSION:
        raise NewerFormat(
            f"{folder} was written by a newer memfit",
            found=f"format {version}, this memfit reads up to {layout.FORMAT_VERSION}",
            hint="pip install --upgrade memfit",
        )


def _read_bytes(path: Path, most_bytes: int, notes: list[str], *, record_bytes: int = 1) -> bytes:
    """What a file holds up to a size; what is missing or left out becomes a note."""
    try:
        read = read_beginning(path, most_bytes=most_bytes)
    except FileNotFoundError:
        notes.append(f"{path.name} is missing: the run ended before anything was read")
        return b""
    except (OSError, ValueError) as error:
        why = describe_error(error) if isinstance(error, OSError) else str(error)
        notes.append(f"{path.name} could not be read ({why})")
        return b""
    if read.ended_by == "size":
        notes.append(f"{path.name} is very large: only its first {format_bytes(most_bytes)} were read")
    elif read.ended_by == "zeros":
        content = _without_zeros(read.content, record_bytes)
        where = f"zeros from byte {len(content)} on"
        notes.append(f"{path.name} was read up to a place that was never written ({where})")
        return content
    return read.content


def _without_zeros(content: bytes, record_bytes: int) -> bytes:
    """What was written in front of a hole, in whole records: the last one may itself end with zeros."""
    written_bytes = len(content.rstrip(b"\0"))
    return content[: -(-written_bytes // record_bytes) * record_bytes]


def _read_events(path: Path, notes: list[str]) -> list[Event]:
    """All whole lines of events.jsonl; those that fit no kind are counted in a note."""
    _refuse_unreadable(path)
    decoder = msgspec.json.Decoder(AnyEvent)
    events: list[Event] = []
    num_broken = 0
    for line in _read_bytes(path, MOST_BYTES["events"], notes).split(b"\n"):
        try:
            if line:
                events.append(decoder.decode(line))
        except (msgspec.MsgspecError, UnicodeDecodeError, OverflowError, RecursionError):
            num_broken += 1
    if num_broken:
        what = "line was" if num_broken == 1 else "lines were"
        notes.append(f"{num_broken} {what} left out of {path.name}, which could not be read")
    return events


def _refuse_unreadable(path: Path) -> None:
    """Without its events a finished run would look like one whose sampler was killed."""
    try:
        open_regular(path).close()
    except FileNotFoundError:
        return
    except OSError as error:
        hint = "give yourself the right to read it, or measure again"
        raise DamagedRecord(f"{path} cannot be read", found=describe_error(error), hint=hint) from None


def _read_all(folder: Path, prefix: str, suffix: str, most_bytes: int, notes: list[str]) -> dict[str, bytes]:
    """The files of one kind by name, as far as their number and size allow."""
    names = sorted(path.name for path in folder.glob(f"{prefix}*{suffix}"))
    if len(names) > MOST_FILES:
        notes.append(f"{len(names) - MOST_FILES} of {len(names)} files {prefix}*{suffix} were left out")
    found: dict[str, bytes] = {}
    for name in names[:MOST_FILES]:
        found[name] = _read_bytes(folder / name, most_bytes, notes)
        most_bytes -= len(found[name])
    return found


def _read_marks(folder: Path, notes: list[str]) -> tuple[MarksText, ...]:
    found = _read_all(folder, layout.MARKS_PREFIX, ".txt", MOST_BYTES["marks"], notes)
    return tuple(MarksText(name=name, content=content) for name, content in found.items())


def _outer_pids(events: list[Event]) -> dict[str, int]:
    """The numbers of processes that have another one in their own PID namespace, by what their files are called."""
    return {e.inner_name: e.pid for e in events if isinstance(e, ProcessStarted) and e.inner_name}


def _read_ledgers(folder: Path, outer_pids: dict[str, int], notes: list[str]) -> tuple[LedgerFacts, ...]:
    facts: list[LedgerFacts] = []
    decoder = msgspec.json.Decoder(LedgerFacts)
    for name, content in _read_all(folder, layout.LEDGER_PREFIX, ".jsonl", MOST_BYTES["ledger"], notes).items():
        num_broken = 0
        outer_pid = outer_pids.get(name.removeprefix(layout.LEDGER_PREFIX).removesuffix(".jsonl"))
        for line in content.split(b"\n"):
            try:
                read = decoder.decode(line) if line else None
                if read is not None and not is_plausible(read):
                    num_broken += 1
                elif read is not None:
                    facts.append(read if outer_pid is None else msgspec.structs.replace(read, pid=outer_pid))
            except (msgspec.MsgspecError, UnicodeDecodeError, OverflowError, RecursionError):
                num_broken += 1
        if num_broken:
            what = "a line of" if num_broken == 1 else f"{num_broken} lines of"
            notes.append(f"{what} {name} could not be read and {'was' if num_broken == 1 else 'were'} left out")
    return tuple(facts)
