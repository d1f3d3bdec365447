"""Processes that belong to a trial, and how every one of them is ended.

Three ways lead to them: they descend from the trial's sampler (which adopts orphans), they carry the trial's folder
in their environment (also after a double fork, also when the sampler is dead), or the run record saw them. A
process that did all of this at once (left its session, wiped its environment, was never sampled) and outlived the
sampler is not found.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

MARK = "MEMFIT_TRIAL_FOLDER"
_MOST_ROUNDS = 50
"""New processes may appear while others are ended; a fork bomb is not fought for ever."""


def end_all(sampler_pid: int | None, folder: str, also: Iterable[int] = ()) -> list[int]:
    """Kill every process of a trial until there is none; returns those that were found."""
    ended: set[int] = set()
    for _ in range(_MOST_ROUNDS):
        found = living(sampler_pid, folder) | {pid for pid in also if is_running(pid)}
        if not found:
            break
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        ended |= found
        _reap(ended)
        time.sleep(0.01)
    _reap(ended)
    return sorted(ended)


def living(sampler_pid: int | None, folder: str) -> set[int]:
    """The processes of a trial that have not ended."""
    parents = _parents()
    found = {pid for pid in parents if _carries(pid, folder)}
    if sampler_pid is not None:
        found |= _below(sampler_pid, parents)
    found -= {sampler_pid, os.getpid()}
    return {pid for pid in found if is_running(pid)}


def is_running(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    fields = _stat(pid)
    return fields is not None and fields[0] not in ("Z", "X")


def start_ticks(pid: int) -> int | None:
    """When a process began, on the kernel's clock: with the number, it names one process for ever."""
    fields = _stat(pid)
    return int(fields[19]) if fields is not None else None


def age_seconds(begun_ticks: int) -> float:
    """How long ago a process began, by the ticks that `start_ticks` gave."""
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - begun_ticks / os.sysconf("SC_CLK_TCK"))


def _stat(pid: int) -> list[str] | None:
    """/proc/PID/stat from the state on; the name before it may hold anything."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None


def _parents() -> dict[int, int]:
    """The parent of every process that can be read."""
    found = {}
    for name in os.listdir("/proc"):
        fields = _stat(int(name)) if name.isdigit() else None
        if fields is not None:
            found[int(name)] = int(fields[1])
    return found


def _below(root: int, parents: dict[int, int]) -> set[int]:
    """All descendants of a process."""
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {root}


def _carries(pid: int, folder: str) -> bool:
    """Whether a process was started with this trial's folder in its environment."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return f"{MARK}={folder}".encode() in file.read().split(b"\0")
    except OSError:
        return False


def is_of_study(pid: int, study_folder: str) -> bool:
    """Whether a process was started for a trial of the study in this folder."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            entries = file.read().split(b"\0")
    except OSError:
        return False
    return any(entry.startswith(f"{MARK}={study_folder}/".encode()) for entry in entries)


def _reap(pids: Iterable[int]) -> None:
    """Orphans of a trial become children of the coordinator: let the kernel forget them."""
    for pid in pids:
        with contextlib.suppress(OSError):
            os.waitpid(pid, os.WNOHANG)
