"""What may stand in a line of events.jsonl? One struct per kind; a line that fits none is left out and counted."""

from __future__ import annotations

import msgspec

from memfit.records.figure import Source


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """Something that happened at one moment of the run."""

    time_us: int

    @property
    def time_seconds(self) -> float:
        """Seconds since the run began."""
        return self.time_us / 1e6


class ProcessStarted(Event, frozen=True, kw_only=True, tag="process_started"):
    """A process of the job was seen for the first time."""

    process: int
    pid: int
    parent_pid: int
    command: str


class ProcessRenamed(Event, frozen=True, kw_only=True, tag="process_renamed"):
    """It has started another program in its place (exec)."""

    process: int
    command: str


class ProcessEnded(Event, frozen=True, kw_only=True, tag="process_ended"):
    """It is gone."""

    process: int


class Counters(Event, frozen=True, kw_only=True, tag="counters"):
    """The memory lines of /proc/PID/status."""

    process: int
    high_water_bytes: int
    resident_bytes: int
    anonymous_bytes: int
    file_bytes: int
    shmem_bytes: int


class Tree(Event, frozen=True, kw_only=True, tag="tree"):
    """A page walk over the whole tree: [process, resident, proportional, unique, share] bytes."""

    reason: str
    cost_us: int
    processes: list[tuple[int, int, int, int, int]]


class Faults(Event, frozen=True, kw_only=True, tag="faults"):
    """Pages each process has touched for the first time since it began, or copied: [process, bytes]."""

    processes: list[tuple[int, int]]


class Maps(Event, frozen=True, kw_only=True, tag="maps"):
    """Resident bytes of one process by kind of mapping."""

    process: int
    library_file_bytes: int
    library_data_bytes: int
    heap_bytes: int
    anonymous_bytes: int
    stack_bytes: int
    shmem_bytes: int


class System(Event, frozen=True, kw_only=True, tag="system"):
    """The machine's memory."""

    total_bytes: int
    available_bytes: int
    active_bytes: int
    free_bytes: int
    buffers_bytes: int
    cached_bytes: int
    job_bytes: int


class Gpu(Event, frozen=True, kw_only=True, tag="gpu"):
    """One GPU's memory: [pid, bytes] of the job's processes on it."""

    device: int
    name: str
    total_bytes: int
    used_bytes: int
    processes: list[tuple[int, int | None]] = []


class Energy(Event, frozen=True, kw_only=True, tag="energy"):
    """Energy of one domain over the whole run."""

    domain: str
    joules: float | None
    window_seconds: float
    source: Source | None = None
    method: str = ""
    scope: str = ""
    reason: str = ""


class EnergyUnavailable(Event, frozen=True, kw_only=True, tag="energy_unavailable"):
    """There is no energy figure, and why."""

    reason: str


class Limit(Event, frozen=True, kw_only=True, tag="limit"):
    """The guard ended the job."""

    tree_bytes: int
    limit_bytes: int
    signal: int = 15
    step: int | None = None
    phase: str = ""


class Note(Event, frozen=True, kw_only=True, tag="note"):
    """Something worth knowing while reading the numbers."""

    message: str


class SamplerEnded(Event, frozen=True, kw_only=True, tag="sampler"):
    """What measuring cost."""

    cpu_seconds: float
    wall_seconds: float
    resident_bytes: int
    num_ticks: int
    num_late_ticks: int
    late_high_us: int
    num_failed_reads: int
    start_cpu_seconds: float = 0.0


class JobEnded(Event, frozen=True, kw_only=True, tag="job_ended"):
    """The job's end, as its parent was told."""

    exit_code: int | None = None
    signal: int | None = None
    max_resident_bytes: int | None = None
    floor_bytes: int | None = None
    user_seconds: float | None = None
    system_seconds: float | None = None
    num_oom_kills: int | None = None
    detached: bool = False


AnyEvent = (
    ProcessStarted | ProcessRenamed | ProcessEnded | Counters | Tree | Faults | Maps | System | Gpu | Energy
    | EnergyUnavailable | Limit | Note | SamplerEnded | JobEnded
)  # fmt: skip
