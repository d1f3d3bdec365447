"""Free memory for this process: the machine, its rlimit and its control group, whichever ends first.

Read from /proc and /sys, standard library only. What cannot be read does not count; None when nothing can.
"""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path


def free_bytes(root: Path = Path("/")) -> int | None:
    """The least of what the machine has left and of what this process may still take."""
    found = [_machine(root), *_limits(root), *_groups(root)]
    return min((each for each in found if each is not None), default=None)


def process_peak_bytes(root: Path = Path("/")) -> int | None:
    """The most that this process has had in memory so far, as the kernel counts it."""
    return _in_kib(root / "proc/self/status", "VmHWM")


def _machine(root: Path) -> int | None:
    return _in_kib(root / "proc/meminfo", "MemAvailable")


def _limits(root: Path) -> list[int | None]:
    """What is left of the limits on address space and on data."""
    status = root / "proc/self/status"
    kinds = ((resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData"))
    return [_left(resource.getrlimit(kind)[0], _in_kib(status, name)) for kind, name in kinds]


def _left(limit_bytes: int, taken_bytes: int | None) -> int | None:
    if limit_bytes == resource.RLIM_INFINITY or taken_bytes is None:
        return None
    return max(0, limit_bytes - taken_bytes)


def _groups(root: Path) -> list[int | None]:
    """What is left in the control group of this process and in those around it."""
    left = []
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers not in ("", "memory"):
            continue
        names = ("memory.max", "memory.current") if not controllers else _OLD_NAMES
        top = root / "sys/fs/cgroup" / controllers
        folder = top / path.lstrip("/")
        for each in (folder, *folder.parents):
            left.append(_left_in(each, *names))
            if each == top:
                break
    return left


_OLD_NAMES = ("memory.limit_in_bytes", "memory.usage_in_bytes")


def _left_in(folder: Path, limit_name: str, taken_name: str) -> int | None:
    """Files that are only cached count as taken, but are given up when memory is asked for."""
    limit, taken = _number(folder / limit_name), _number(folder / taken_name)
    if limit is None or taken is None:
        return None
    words = (line.split() for line in _lines(folder / "memory.stat"))
    cached = sum(int(word[1]) for word in words if len(word) == 2 and word[0] == "inactive_file")
    return max(0, limit - max(0, taken - cached))


def _number(path: Path) -> int | None:
    text = "".join(_lines(path)).strip()
    return int(text) if text.isdecimal() else None


def _in_kib(path: Path, name: str) -> int | None:
    found = (line.split() for line in _lines(path) if line.startswith(name + ":"))
    return next((int(words[1]) * 1024 for words in found if len(words) > 1 and words[1].isdecimal()), None)


def _lines(path: Path) -> list[str]:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return path.read_text(encoding="ascii").splitlines()
    return []
