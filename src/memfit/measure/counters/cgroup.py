"""Memory control groups (cgroup v1 and v2) that bound this process: their limits and their OOM kills.

Both versions: v2 (`memory.max`, `memory.events`) and v1 (`memory.limit_in_bytes`, `memory.oom_control`), also mounted
side by side. A limit holds for everything below it: the smallest between the process's own group and the mount counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

LIMIT_FILES = {1: "memory.limit_in_bytes", 2: "memory.max"}
EVENT_FILES = {1: "memory.oom_control", 2: "memory.events"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryGroup:
    """One control group that bounds this process."""

    version: int
    folder: Path

    @property
    def limit_bytes(self) -> int | None:
        """What it allows; None when it sets no limit or cannot be read."""
        try:
            text = (self.folder / LIMIT_FILES[self.version]).read_text().strip()
        except OSError:
            return None
        return int(text) if text.isdigit() else None

    @property
    def num_oom_kills(self) -> int | None:
        """How many processes the kernel has killed in it; None when it does not say."""
        try:
            lines = (self.folder / EVENT_FILES[self.version]).read_text().splitlines()
        except OSError:
            return None
        found = [line.split() for line in lines if line.startswith("oom_kill ")]
        return int(found[0][1]) if found else None


def memory_groups(proc: str | Path = "/proc/self") -> list[MemoryGroup]:
    """The groups that bound this process, its own first, their parents after it; empty where there are none."""
    groups: list[MemoryGroup] = []
    for version, path in _own_paths(Path(proc) / "cgroup"):
        mount = _mount_of(Path(proc) / "mountinfo", version)
        if mount is None:
            continue
        mount_point, mount_root = mount
        folders = _upwards(Path(mount_point), _below(path, mount_root))
        groups.extend(
            MemoryGroup(version=version, folder=folder)
            for folder in folders
            if (folder / EVENT_FILES[version]).exists()
        )
    return groups


def memory_limit_bytes(total_bytes: int | None, proc: str | Path = "/proc/self") -> int | None:
    """The smallest limit that bounds this process, where it is lower than the machine's memory."""
    limits = [limit for group in memory_groups(proc) if (limit := group.limit_bytes) is not None]
    lowest = min(limits, default=None)
    return None if lowest is None or (total_bytes is not None and lowest >= total_bytes) else lowest


def _own_paths(path: Path) -> list[tuple[int, str]]:
    """(version, path) of this process's memory group, from lines such as '0::/user.slice' and '4:memory:/job'."""
    try:
        rows = [line.split(":", 2) for line in path.read_text().splitlines()]
    except OSError:
        return []
    found = []
    for row in rows:
        if len(row) == 3 and row[0] == "0" and not row[1]:
            found.append((2, row[2]))
        elif len(row) == 3 and "memory" in row[1].split(","):
            found.append((1, row[2]))
    return found


def _mount_of(path: Path, version: int) -> tuple[str, str] | None:
    """(mount point, root inside of the file system) of the hierarchy with the memory controller."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        left, _, right = line.partition(" - ")
        fields, kind = left.split(" "), right.split(" ")
        if len(fields) < 5 or len(kind) < 3:
            continue
        is_v2 = kind[0] == "cgroup2" and version == 2
        is_v1 = kind[0] == "cgroup" and version == 1 and "memory" in kind[2].split(",")
        if is_v2 or is_v1:
            return _unescaped(fields[4]), _unescaped(fields[3])
    return None


def _unescaped(text: str) -> str:
    """mountinfo writes a blank in a path as \\040."""
    return text.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")


def _below(path: str, mount_root: str) -> PurePosixPath:
    """The group's path under the mount; the mount itself when the group lies outside of what a container can see."""
    try:
        inside = PurePosixPath(path).relative_to(mount_root)
    except ValueError:
        return PurePosixPath()
    return PurePosixPath() if ".." in inside.parts else inside


def _upwards(mount_point: Path, inside: PurePosixPath) -> list[Path]:
    parts = inside.parts
    return [mount_point.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]
