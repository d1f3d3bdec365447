"""Record of one run: who ran, on what, how it ended, what was read, and the figures asked for first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from memfit.records.figure import Figure
from memfit.records.files.notebook import NotebookRecord
from memfit.records.files.ranges import AnyBytes, Bytes, Count, Nanos, Number, Seconds
from memfit.records.run_parts.ledger import LedgerFacts
from memfit.records.run_parts.samples import Samples, TreeCurve
from memfit.records.run_parts.steps import Steps

OutcomeKind = Literal[
    "done", "failed", "killed", "out of memory", "over the limit", "interrupted", "detached", "still running", "lost"
]


class Environment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The machine and the software a run was made on."""

    memfit: str
    python: str
    system: str
    """'Linux 6.18.44 x86_64'."""
    cpu: str
    num_cores: Count
    memory_total_bytes: Bytes | None
    memory_limit_bytes: AnyBytes | None = None
    """What the control group allows, where that is less than the machine."""
    libc: str = ""
    transparent_hugepages: str = ""
    variables: dict[str, str] = {}
    """Environment variables that change allocation: MALLOC_*, PYTORCH_*ALLOC_CONF, OMP_NUM_THREADS and the like."""


USUAL_INTERVAL_SECONDS = 0.01
EASED_INTERVAL_SECONDS = 0.2


class Settings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the run was measured."""

    interval_seconds: Seconds
    eased_interval_seconds: Seconds | None = None
    """Time between samples beside short steps, whose exact peaks the marks tell; None: as everywhere."""
    marks: bool = True
    ledger_every: Count | None = None
    """Trace every k-th step; None when no ledger was asked for."""
    limit_bytes: AnyBytes | None = None
    stable: bool = False
    assume_watts: Number | None = None
    attached: bool = False


def settings_for(interval_seconds: float | None, **others: Any) -> Settings:
    """The settings for an interval that a user asked for, or the usual ones, which spare short steps, for None."""
    if interval_seconds is not None:
        return Settings(interval_seconds=interval_seconds, **others)
    return Settings(interval_seconds=USUAL_INTERVAL_SECONDS, eased_interval_seconds=EASED_INTERVAL_SECONDS, **others)


class RunHeader(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """run.json: written once, before the job starts."""

    format: str
    format_version: int
    kind: Literal["measured", "predicted"]
    run_id: str
    created_at: str
    """ISO 8601 with offset."""
    command: tuple[str, ...]
    working_folder: str
    clock_start_ns: Nanos
    """The monotonic clock when the run began; marks carry the same clock."""
    settings: Settings
    environment: Environment


class Outcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the job ended."""

    kind: OutcomeKind
    exit_code: int | None = None
    signal: int | None = None
    message: str = ""
    """One sentence with the evidence."""
    step: int | None = None
    phase: str = ""


class ProcessRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One process of the job's tree."""

    index: int
    pid: int
    parent_pid: int
    command: str
    started_seconds: float
    ended_seconds: float | None = None
    peak: Figure
    """Exact where the kernel's high-water mark could be read to the end."""
    rank: int | None = None
    """Among the processes that train together (torchrun); None for all others."""
    anonymous_bytes: int | None = None
    """At the last full reading nearest the largest resident size."""
    file_bytes: int | None = None
    shmem_bytes: int | None = None


class SystemReading(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of the whole machine at one moment, in the words of the literature."""

    time_seconds: float
    total_bytes: int
    available_bytes: int
    percent: float
    """(total - available) / total, in percent."""
    used_bytes: int
    """total - (free + buffers + cached)."""
    active_bytes: int
    free_bytes: int
    buffers_bytes: int
    cached_bytes: int
    job_bytes: int
    """The job's tree at that moment, by the best estimate then at hand."""
    background_bytes: int
    """used - job: what other programs hold. May be below zero when the job's file pages are in the page cache."""


class SystemSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Averages over the run, as studies report them, and what they hide."""

    num_readings: int
    mean_used_bytes: float
    mean_background_bytes: float
    background_low_bytes: int
    background_high_bytes: int
    mean_job_bytes: float


class SharedReading(msgspec.Struct, frozen=True, kw_only=True):
    """What one process shares with others at one moment."""

    process: int
    resident_bytes: int
    proportional_bytes: int
    unique_bytes: int
    share_bytes: int
    """What the process adds to the tree: its proportional size, but with library pages counted in full once in the
    tree, whoever else on the machine maps them too."""


class TreeReading(msgspec.Struct, frozen=True, kw_only=True):
    """Proportional set size of the whole tree at a chosen moment."""

    time_seconds: float
    reason: str
    """'start', 'warm-up', 'maximum', 'limit', 'end'."""
    cost_seconds: float
    processes: tuple[SharedReading, ...]

    @property
    def resident_bytes(self) -> int:
        """Summed resident size."""
        return sum(p.resident_bytes for p in self.processes)

    @property
    def proportional_bytes(self) -> int:
        """Summed proportional size: each shared page counted once on the whole machine."""
        return sum(p.proportional_bytes for p in self.processes)

    @property
    def tree_bytes(self) -> int:
        """Bytes of the tree: each shared page counted once in it."""
        return sum(p.share_bytes for p in self.processes)


class MapsReading(msgspec.Struct, frozen=True, kw_only=True):
    """Resident bytes of one process by kind of mapping, from a full reading of its map."""

    time_seconds: float
    process: int
    library_file_bytes: int
    """Clean pages of mapped files: code and constants of libraries, mapped weights."""
    library_data_bytes: int
    """Private copies of file pages: relocations and data segments."""
    heap_bytes: int
    anonymous_bytes: int
    """Anonymous mappings outside of the heap: large blocks, Python's arenas, thread heaps."""
    stack_bytes: int
    shmem_bytes: int


class GpuProcess(msgspec.Struct, frozen=True, kw_only=True):
    """Device memory of one process of the job."""

    pid: int
    num_bytes: int | None


class GpuReading(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one GPU at one moment."""

    time_seconds: float
    device: int
    name: str
    total_bytes: int
    used_bytes: int
    """The whole device, other programs included."""
    processes: tuple[GpuProcess, ...] = ()

    @property
    def job_bytes(self) -> int | None:
        """What the job holds; None where the driver does not say it of any process, as inside a container."""
        known = [process.num_bytes for process in self.processes if process.num_bytes is not None]
        return sum(known) if known else None


class EnergyReading(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Energy between the two ends of the run, for one domain."""

    domain: str
    """'package-0', 'dram-0', 'gpu-0', 'assumed'."""
    figure: Figure
    scope: str
    """Whose energy it is: 'socket', 'device', 'machine'."""
    window_seconds: float


class SamplerReport(msgspec.Struct, frozen=True, kw_only=True):
    """What measuring cost, and how well it went."""

    cpu_seconds: float
    wall_seconds: float
    resident_bytes: int
    num_ticks: int
    num_late_ticks: int
    """Ticks later than one interval."""
    late_high_seconds: float
    num_failed_reads: int
    start_cpu_seconds: float = 0.0
    """The part of the CPU time that was spent before the job began."""


class NamedPhase(msgspec.Struct, frozen=True, kw_only=True):
    """From this moment on, a process was in a phase that belongs to no step."""

    process: int
    time_seconds: float
    name: str
    peak_bytes: int | None = None
    """Exact; None when the phase had no end, or peaks could not be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord(NotebookRecord):
    """Everything known of one run."""

    _repr_pretty_ = NotebookRecord._repr_pretty_
    """Again: IPython prefers the `__repr__` of a class to what its bases have."""

    folder: str
    header: RunHeader
    outcome: Outcome
    duration_seconds: float
    peak: Figure
    """The headline: the peak of the job's memory."""
    peak_process: int | None
    """The process whose own peak makes the headline (its wrappers only add to it); None where several make it up."""
    processes: tuple[ProcessRecord, ...]
    samples: Samples
    tree: TreeCurve
    tree_readings: tuple[TreeReading, ...]
    system: tuple[SystemReading, ...]
    system_summary: SystemSummary | None
    steps: Steps
    named_phases: tuple[NamedPhase, ...]
    """Evaluation passes and phases named by the user."""
    gpus: tuple[GpuReading, ...]
    energy: tuple[EnergyReading, ...]
    energy_reason: str
    """Why there is no energy figure; empty when there is one."""
    maps: tuple[MapsReading, ...]
    ledger_facts: tuple[LedgerFacts, ...]
    """What the job's own processes wrote of traced steps; `explain` turns them into a ledger."""
    sampler: SamplerReport | None
    notes: tuple[str, ...]
    """What went wrong or is worth knowing while reading the numbers, one sentence each."""
