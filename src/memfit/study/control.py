"""Control of a running study from other processes: which process runs it, how it is stopped, and what is asked of it.

    coordinator.json       process and machine of the coordinator, there while it runs
    requests/NAME.json     what another process asks for: {"end_trial": "aBcDe"} or {"max_trials": 40}

A request is written whole or not at all, read by the coordinator between two rounds, and removed once it is carried
out. What may be asked for is what may change while a study goes on, and the end of one trial.
"""

from __future__ import annotations

import contextlib
import os
import platform
import secrets
import signal
from pathlib import Path
from typing import Annotated

import msgspec

from memfit.errors import UsageError
from memfit.regular_file import read_regular
from memfit.study.trials.descendants import is_running, start_ticks

AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]
COORDINATOR_FILE = "coordinator.json"
REQUESTS_FOLDER = "requests"


class CoordinatorName(msgspec.Struct, frozen=True, kw_only=True):
    """coordinator.json: which process runs the study."""

    pid: int
    start_ticks: int
    host: str
    on: str = ""
    """Where its trials run; empty for the same machine."""


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What another process asks of the coordinator."""

    end_trial: str = ""
    """The id or the number of a running trial."""
    reason: str = ""
    max_trials: AtLeastOne | None = None
    max_seconds: Annotated[float, msgspec.Meta(gt=0)] | None = None
    concurrency: AtLeastOne | None = None


def announce(folder: Path, on: str = "") -> None:
    """Leave the name of this process in the study's folder."""
    name = CoordinatorName(pid=os.getpid(), start_ticks=start_ticks(os.getpid()) or 0, host=platform.node(), on=on)
    with contextlib.suppress(OSError):  # a full disk hinders a study no more than it must
        _write_whole(folder / COORDINATOR_FILE, msgspec.json.encode(name))


def withdraw(folder: Path) -> None:
    """Remove the name again."""
    with contextlib.suppress(OSError):
        (folder / COORDINATOR_FILE).unlink(missing_ok=True)


def coordinator_of(folder: Path) -> CoordinatorName | None:
    """The process that runs a study now; None when none does. One on another machine is taken at its word."""
    try:
        name = msgspec.json.decode(read_regular(folder / COORDINATOR_FILE), type=CoordinatorName)
    except (OSError, msgspec.DecodeError):
        return None
    if name.host != platform.node():
        return name
    lives = is_running(name.pid) and start_ticks(name.pid) == name.start_ticks
    return name if lives else None


def stop_coordinator(folder: Path, *, now: bool) -> CoordinatorName:
    """Ask the coordinator to end: after the trials that run or, with `now`, ending them, to be run again."""
    name = coordinator_of(folder)
    if name is None:
        raise UsageError(f"the study in {folder} is not running", hint=f"memfit study show {folder}")
    if name.host != platform.node():
        hint = f"run the same command on {name.host}"
        raise UsageError(f"the study in {folder} runs on another machine", found=name.host, hint=hint)
    os.kill(name.pid, signal.SIGTERM if now else signal.SIGINT)
    return name


def send_request(folder: Path, request: Request) -> None:
    """Ask something of a running coordinator."""
    if coordinator_of(folder) is None:
        raise UsageError(f"the study in {folder} is not running", hint=f"memfit study resume {folder}")
    requests = folder / REQUESTS_FOLDER
    requests.mkdir(exist_ok=True)
    _write_whole(requests / f"{secrets.token_hex(8)}.json", msgspec.json.encode(request))


def take_requests(folder: Path) -> tuple[list[Request], list[str]]:
    """The requests that wait, and a sentence for each that cannot be read; both kinds are removed."""
    taken: list[Request] = []
    refused: list[str] = []
    try:
        waiting = sorted(entry for entry in os.listdir(folder / REQUESTS_FOLDER) if entry.endswith(".json"))
    except OSError:
        return taken, refused
    for name in waiting:
        path = folder / REQUESTS_FOLDER / name
        try:
            taken.append(msgspec.json.decode(read_regular(path), type=Request))
        except (OSError, ValueError, RecursionError) as error:
            refused.append(f"the request {name} cannot be carried out: {error}")
        with contextlib.suppress(OSError):
            path.unlink()
    return taken, refused


def _write_whole(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_bytes(content)
    os.replace(temporary, path)
