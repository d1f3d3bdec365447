"""Kinds of lines in events.jsonl, one struct each; a line that fits none is left out and counted."""

from __future__ import annotations

import msgspec

from memfit.records.figure import Source
from memfit.records.files.ranges import Bytes, Code, Count, Index, Micros, Number, Pid, Seconds


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """Something that happened at one moment of the run."""

    time_us: Micros

    @property
    def time_seconds(self) -> float:
        """Seconds since the run began."""
        return self.time_us / 1e6


class ProcessStarted(Event, frozen=True, kw_only=True, tag="process_started"):
    """A process of the job was seen for the first time."""

    process: Index
    pid: Pid
    parent_pid: Pid
    command: str
    inner_name: str = ""
    """Number and PID namespace by which its own files are called, where that is not its `pid`."""


class ProcessRenamed(Event, frozen=True, kw_only=True, tag="process_renamed"):
    """It has started another program in its place (exec)."""

    process: Index
    command: str


class ProcessEnded(Event, frozen=True, kw_only=True, tag="process_ended"):
    """It is gone."""

    process: Index


class Counters(Event, frozen=True, kw_only=True, tag="counters"):
    """The memory lines of /proc/PID/status."""

    process: Index
    high_water_bytes: Bytes
    resident_bytes: Bytes
    anonymous_bytes: Bytes
    file_bytes: Bytes
    shmem_bytes: Bytes


class Tree(Event, frozen=True, kw_only=True, tag="tree"):
    """A page walk over the whole tree: [process, resident, proportional, unique, share] bytes."""

    reason: str
    cost_us: Micros
    processes: list[tuple[Index, Bytes, Bytes, Bytes, Bytes]]


class Faults(Event, frozen=True, kw_only=True, tag="faults"):
    """Pages each process has touched for the first time since it began, or copied: [process, bytes]."""

    processes: list[tuple[Index, Count]]


class Maps(Event, frozen=True, kw_only=True, tag="maps"):
    """Resident bytes of one process by kind of mapping."""

    process: Index
    library_file_bytes: Bytes
    library_data_bytes: Bytes
    heap_bytes: Bytes
    anonymous_bytes: Bytes
    stack_bytes: Bytes
    shmem_bytes: Bytes


class System(Event, frozen=True, kw_only=True, tag="system"):
    """The machine's memory."""

    total_bytes: Bytes
    available_bytes: Bytes
    active_bytes: Bytes
    free_bytes: Bytes
    buffers_bytes: Bytes
    cached_bytes: Bytes
    job_bytes: Bytes


class Gpu(Event, frozen=True, kw_only=True, tag="gpu"):
    """One GPU's memory: [pid, bytes] of the job's processes on it."""

    device: Index
    name: str
    total_bytes: Bytes
    used_bytes: Bytes
    processes: list[tuple[Pid, Bytes | None]] = []


class Energy(Event, frozen=True, kw_only=True, tag="energy"):
    """Energy of one domain over the whole run."""

    domain: str
    joules: Number | None
    window_seconds: Seconds
    source: Source | None = None
    method: str = ""
    scope: str = ""
    reason: str = ""


class EnergyUnavailable(Event, frozen=True, kw_only=True, tag="energy_unavailable"):
    """There is no energy figure, and why."""

    reason: str


class Limit(Event, frozen=True, kw_only=True, tag="limit"):
    """The guard ended the job."""

    tree_bytes: Bytes
    limit_bytes: Bytes
    signal: Code = 15
    step: Count | None = None
    phase: str = ""


class Note(Event, frozen=True, kw_only=True, tag="note"):
    """Something worth knowing while reading the numbers."""

    message: str


class SamplerEnded(Event, frozen=True, kw_only=True, tag="sampler"):
    """What measuring cost."""

    cpu_seconds: Seconds
    wall_seconds: Seconds
    resident_bytes: Bytes
    num_ticks: Count
    num_late_ticks: Count
    late_high_us: Micros
    num_failed_reads: Count
    start_cpu_seconds: Seconds = 0.0


class JobEnded(Event, frozen=True, kw_only=True, tag="job_ended"):
    """The job's end, by its exit status."""

    exit_code: Code | None = None
    signal: Code | None = None
    max_resident_bytes: Bytes | None = None
    floor_bytes: Bytes | None = None
    user_seconds: Seconds | None = None
    system_seconds: Seconds | None = None
    num_oom_kills: Count | None = None
    detached: bool = False


AnyEvent = (
    ProcessStarted | ProcessRenamed | ProcessEnded | Counters | Tree | Faults | Maps | System | Gpu | Energy
    | EnergyUnavailable | Limit | Note | SamplerEnded | JobEnded
)  # fmt: skip
