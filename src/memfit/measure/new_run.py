"""Creates the folder of a new run and writes its header."""

from __future__ import annotations

import errno
import os
import re
import shutil
import uuid
from datetime import datetime
from pathlib import Path

import msgspec

from memfit.errors import RunExists, StorageError
from memfit.measure.counters.machine import describe_environment
from memfit.records.files import layout
from memfit.records.run import Settings
from memfit.runfolder.writer import write_header

DEFAULT_PARENT = "memfit-runs"


def default_folder(command: list[str]) -> Path:
    """memfit-runs/train-20261115-231500: named after the script, dated, never taken."""
    stem = re.sub(r"[^\w.-]+", "-", _subject(command)).strip("-.") or "run"
    base = Path(DEFAULT_PARENT) / f"{stem[:60]}-{datetime.now():%Y%m%d-%H%M%S}"
    candidate, number = base, 1
    while candidate.exists():
        number += 1
        candidate = base.with_name(f"{base.name}-{number}")
    return candidate


def _subject(command: list[str]) -> str:
    """What a person would call this command: the script of an interpreter, otherwise the program."""
    words = [word for word in command[1:4] if not word.startswith("-")]
    name = Path(command[0]).name
    if re.fullmatch(r"python[\d.]*|torchrun|accelerate|bash|sh", name) and words:
        if "-c" in command[1:3]:
            return name
        return Path(words[0]).stem
    return name


def create(folder: Path, command: list[str], settings: Settings, clock_start_ns: int, *, overwrite: bool) -> None:
    """Make the folder and write its header; refuses to touch what is not an old run of ours."""
    try:
        _make_room(folder, overwrite)
        folder.mkdir(parents=True, exist_ok=True)
        write_header(folder, _header(command, settings, clock_start_ns))
    except OSError as error:
        hint = "free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "choose another folder with -o"
        raise StorageError(f"the run folder {folder} cannot be written", found=str(error.strerror), hint=hint) from None


def _make_room(folder: Path, overwrite: bool) -> None:
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not folder.is_dir():
        raise RunExists(f"{folder} is not a folder", hint="choose another place with -o")
    is_run = (folder / layout.HEADER_FILE).is_file()
    if not is_run:
        raise RunExists(
            f"{folder} exists and is not a memfit run", found="other files in it", hint="choose another folder with -o"
        )
    if not overwrite:
        raise RunExists(f"{folder} already holds a run", hint="choose another folder with -o, or overwrite it with -f")
    shutil.rmtree(folder)


def _header(command: list[str], settings: Settings, clock_start_ns: int) -> dict[str, object]:
    return {
        "kind": "measured",
        "run_id": uuid.uuid4().hex[:12],
        "created_at": datetime.now().astimezone().isoformat(timespec="milliseconds"),
        "command": command,
        "working_folder": os.getcwd(),
        "clock_start_ns": clock_start_ns,
        "settings": msgspec.to_builtins(settings),
        "environment": describe_environment(dict(os.environ)),
    }
