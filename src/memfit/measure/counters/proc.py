"""Linux /proc: memory counters of a process and of the machine; standard library only.

Cost of one read for a process of 4 GiB: `statm` 1.5 us through an open file, `status` 9-17 us, `smaps_rollup` 123 000
us. So statm is read all the time, status now and then, and the page walks only at chosen moments: they also hold the
job's address-space lock.
"""

from __future__ import annotations

import os
from typing import NamedTuple

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
KIB = 1024


class StatusCounters(NamedTuple):
    """The memory lines of /proc/PID/status."""

    high_water_bytes: int
    resident_bytes: int
    anonymous_bytes: int
    file_bytes: int
    shmem_bytes: int


class SharedCounters(NamedTuple):
    """The sums of a page walk: smaps_rollup."""

    resident_bytes: int
    proportional_bytes: int
    unique_bytes: int
    file_bytes: int
    """Resident pages of files."""
    file_proportional_bytes: int


class StatmFile:
    """An open /proc/PID/statm: the cheapest honest reading there is."""

    __slots__ = ("descriptor",)

    def __init__(self, pid: int) -> None:
        self.descriptor = os.open(f"/proc/{pid}/statm", os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> tuple[int, int]:
        """(resident, shared) bytes; see `parse_statm`."""
        return parse_statm(os.pread(self.descriptor, 128, 0))

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self.descriptor)


def parse_statm(answer: bytes | OSError) -> tuple[int, int]:
    """(resident, shared) bytes; raises ProcessLookupError when the process has no memory: gone, a zombie, or in the
    middle of exec."""
    if isinstance(answer, OSError):
        raise answer
    _, resident_pages, shared_pages, _ = answer.split(None, 3)
    if resident_pages == b"0":
        raise ProcessLookupError("no memory")
    return int(resident_pages) * PAGE_BYTES, int(shared_pages) * PAGE_BYTES


def read_file(path: str, limit_bytes: int = 1 << 20) -> bytes:
    """A whole small file of /proc or /sys in one call."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, limit_bytes)
    finally:
        os.close(descriptor)


def _kib_lines(raw: bytes) -> dict[bytes, int]:
    """'Name:  123 kB' lines as bytes by name."""
    found: dict[bytes, int] = {}
    for line in raw.split(b"\n"):
        name, colon, rest = line.partition(b":")
        if colon and rest.endswith(b" kB"):
            found[name] = int(rest[:-3]) * KIB
    return found


def read_status(pid: int) -> StatusCounters | None:
    """High-water mark and the anonymous / file / shared-memory parts; None when the process has no memory any more."""
    raw = read_file(f"/proc/{pid}/status", 8192)
    start = raw.find(b"VmHWM:")
    if start < 0:
        return None
    return StatusCounters(*(_kib_behind(raw, name, start) for name in _STATUS_NAMES))


_STATUS_NAMES = (b"VmHWM:", b"VmRSS:", b"RssAnon:", b"RssFile:", b"RssShmem:")


def _kib_behind(raw: bytes, name: bytes, start: int) -> int:
    """The number behind a name, as bytes; the five names stand close together, which beats parsing all sixty lines."""
    at = raw.find(name, start)
    return int(raw[at + len(name) : raw.index(b"kB", at)]) * KIB if at >= 0 else 0


def read_rollup(pid: int) -> SharedCounters:
    """Proportional and unique set size by a page walk; expensive, see the table above."""
    lines = _kib_lines(read_file(f"/proc/{pid}/smaps_rollup"))
    return _shared_counters(pid, lines)


def _shared_counters(pid: int, sums: dict[bytes, int]) -> SharedCounters:
    """The sums of a walk in our words; kernels before 5.4 do not tell file pages apart, then none are."""
    unique_bytes = sums.get(b"Private_Clean", 0) + sums.get(b"Private_Dirty", 0)
    file_proportional_bytes = sums.get(b"Pss_File")
    status = read_status(pid) if file_proportional_bytes is not None else None
    return SharedCounters(
        sums.get(b"Rss", 0),
        sums.get(b"Pss", 0),
        unique_bytes,
        status.file_bytes if status else 0,
        file_proportional_bytes or 0,
    )


_MAPPING_KINDS: tuple[str, ...] = (
    "library_file_bytes", "library_data_bytes", "heap_bytes", "anonymous_bytes", "stack_bytes", "shmem_bytes",
)  # fmt: skip


def read_maps(pid: int) -> tuple[SharedCounters, dict[str, int]]:
    """A full page walk: the sums, and resident bytes by kind of mapping (names as in records.run.MapsReading)."""
    kinds: dict[str, int] = dict.fromkeys(_MAPPING_KINDS, 0)
    sums = {b"Rss": 0, b"Pss": 0, b"Private_Clean": 0, b"Private_Dirty": 0, b"Pss_File": 0}
    with open(f"/proc/{pid}/smaps", "rb") as stream:
        mapping: dict[bytes, int] = {}
        path = b""
        for line in stream:
            name, colon, rest = line.partition(b":")
            if colon and rest.endswith(b" kB\n"):
                mapping[name] = int(rest[:-4]) * KIB
            elif b"-" in name and not name.startswith((b"VmFlags", b"THPeligible", b"ProtectionKey")):
                _add_mapping(kinds, sums, path, mapping)
                fields = line.split(None, 5)
                path, mapping = (fields[5].strip() if len(fields) > 5 else b""), {}
        _add_mapping(kinds, sums, path, mapping)
    return _shared_counters(pid, sums), kinds


def _add_mapping(kinds: dict[str, int], sums: dict[bytes, int], path: bytes, mapping: dict[bytes, int]) -> None:
    for name in sums:
        sums[name] += mapping.get(name, 0)
    resident_bytes, anonymous_bytes = mapping.get(b"Rss", 0), mapping.get(b"Anonymous", 0)
    if path.startswith((b"/dev/shm", b"/memfd:", b"/SYSV", b"/dev/zero")):
        kinds["shmem_bytes"] += resident_bytes
    elif path.startswith(b"/"):
        kinds["library_data_bytes"] += anonymous_bytes
        kinds["library_file_bytes"] += resident_bytes - anonymous_bytes
        sums[b"Pss_File"] += max(0, mapping.get(b"Pss", 0) - anonymous_bytes)
    elif path == b"[heap]":
        kinds["heap_bytes"] += resident_bytes
    elif path.startswith(b"[stack"):
        kinds["stack_bytes"] += resident_bytes
    elif path.startswith((b"[vdso", b"[vvar", b"[vsyscall")):
        kinds["library_file_bytes"] += resident_bytes
    else:
        kinds["anonymous_bytes"] += resident_bytes


def read_parent(pid: int) -> int | None:
    """The parent's pid; None for a process that has ended."""
    fields = read_file(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return None if fields[0] in (b"Z", b"X") else int(fields[1])


def read_fault_bytes(pid: int) -> int:
    """Pages touched for the first time or copied since the process began (minor faults), as bytes."""
    return int(read_file(f"/proc/{pid}/stat").rpartition(b")")[2].split(None, 8)[7]) * PAGE_BYTES


def read_command(pid: int) -> str:
    """The command line, or the short name in brackets for a process without one."""
    raw = read_file(f"/proc/{pid}/cmdline", 4096).rstrip(b"\0")
    if raw:
        return raw.replace(b"\0", b" ").decode("utf-8", "replace")
    return "[" + read_file(f"/proc/{pid}/comm").decode("utf-8", "replace").strip() + "]"


def read_inner_name(pid: int) -> str:
    """What a process in a PID namespace of its own (a sandbox, a container) is called inside: its number there and the
    namespace, as `inside.marks.own_name` says it. Empty for a process that has the number we see."""
    try:
        raw = read_file(f"/proc/{pid}/status", 8192)
        numbers = raw.partition(b"\nNSpid:")[2].partition(b"\n")[0].split()
        if len(numbers) < 2:
            return ""
        return f"{int(numbers[-1])}-{os.readlink(f'/proc/{pid}/ns/pid')[5:-1]}"
    except (OSError, ValueError):
        return ""


def own_namespace() -> str | None:
    """The PID namespace of this process, as the kernel names it; None where it does not."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


def read_owner(pid: int) -> int:
    """The user id a process belongs to."""
    return os.stat(f"/proc/{pid}").st_uid


class NewestPid:
    """A mark that changes whenever any process or thread is created: the last field of loadavg, 1.5 us through an
    open file."""

    __slots__ = ("_descriptor",)

    def __init__(self) -> None:
        self._descriptor = os.open("/proc/loadavg", os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> bytes:
        """The mark now."""
        return os.pread(self._descriptor, 128, 0).rsplit(None, 1)[-1]


def read_machine() -> dict[str, int]:
    """The machine's memory in the words of the literature (fields of the 'system' event)."""
    lines = _kib_lines(read_file("/proc/meminfo"))
    return {
        "total_bytes": lines[b"MemTotal"],
        "available_bytes": lines.get(b"MemAvailable", lines[b"MemFree"]),
        "active_bytes": lines.get(b"Active", 0),
        "free_bytes": lines[b"MemFree"],
        "buffers_bytes": lines.get(b"Buffers", 0),
        "cached_bytes": lines.get(b"Cached", 0) + lines.get(b"SReclaimable", 0),
    }


def count_oom_kills() -> int | None:
    """How often the kernel has killed for lack of memory, control groups included; None when it does not say."""
    try:
        raw = read_file("/proc/vmstat")
        at = raw.find(b"\noom_kill ")
        return int(raw[at + 10 : raw.index(b"\n", at + 1)]) if at >= 0 else None
    except (OSError, ValueError):
        return None
