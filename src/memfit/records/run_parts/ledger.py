"""Ledger of a process: its peak, split into lines that add up to it."""

from __future__ import annotations

from typing import Literal

import msgspec

from memfit.records.figure import Source
from memfit.records.timeline import Timeline

LedgerKind = Literal[
    "interpreter", "imports", "library files", "python heap", "native heap", "tensors", "allocator slack",
    "shared memory", "program data", "worker", "device context", "unexplained",
]  # fmt: skip


class LedgerLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One named part of the peak."""

    kind: LedgerKind
    name: str
    """'torch' for imports, 'parameter' for tensors, 'worker 4711' for a worker."""
    num_bytes: int
    """Resident bytes."""
    source: Source = "measured"
    method: str = ""
    measured_bytes: int | None = None
    """What was measured, where that is more than can have been resident; None where the two agree."""


class TensorShare(msgspec.Struct, frozen=True, kw_only=True):
    """Tensor bytes alive at the peak, for one category, module and birth phase."""

    category: str
    module: str
    phase: str
    num_bytes: int
    num_tensors: int
    backing: Literal["", "shared", "file"] = ""
    """Where host tensors lie when not in the process's own heap: in shared memory, or mapped from a file."""
    untouched_bytes: int = 0
    """The part of them whose pages were never written and take no memory."""


class ImportCost(msgspec.Struct, frozen=True, kw_only=True):
    """What importing one top-level package added to the process, without what it imported in turn."""

    package: str
    anonymous_bytes: int
    file_bytes: int


class HeapFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The C and Python heaps at one moment, or their growth over a stretch; None where the platform cannot say."""

    python_arena_bytes: int | None = None
    python_used_bytes: int | None = None
    malloc_used_bytes: int | None = None
    """In use in the C heap, mapped blocks included."""
    malloc_free_bytes: int | None = None
    """Free but kept by the C heap: allocator slack."""


class Moment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The process at its largest within a traced step, as seen from inside; not always the moment of the tensor
    peak."""

    phase: str
    tensors: tuple[TensorShare, ...]
    """Host tensors alive at that moment."""
    anonymous_bytes: int
    file_bytes: int
    shmem_bytes: int
    malloc_used_bytes: int | None = None
    malloc_free_bytes: int | None = None
    untouched_heap_bytes: int | None = None
    """Pages of the C heap that are not resident: never written, or given back; None when it was not read."""


class LedgerFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one Python process of the job knew of itself in one traced step, or at its end (a line of
    ledger-PID.jsonl)."""

    pid: int
    step: int
    """0 at the end of the process: nothing is said of tensors."""
    time_ns: int
    """Monotonic clock."""
    device: str
    """'cpu', or 'cuda:0'; a step with tensors on several devices writes one line for each."""
    tensor_peak_bytes: int
    peak_phase: str
    tensors: tuple[TensorShare, ...]
    resident_peak_bytes: int
    """The kernel's high-water mark of the traced step; 0 when it could not be read."""
    update_is_reused: bool = False
    """The optimizer's update was not traced in this step but taken from an earlier one."""
    is_partial: bool = False
    """The step had more tensors than the log may hold: this is its beginning."""
    startup_anonymous_bytes: int = 0
    startup_file_bytes: int = 0
    """Resident when the hook was loaded: the bare interpreter."""
    startup_heap: HeapFacts | None = None
    imports: tuple[ImportCost, ...] = ()
    imports_heap: HeapFacts | None = None
    """What the heaps grew by inside of imports."""
    heap: HeapFacts | None = None
    """At the end of the step."""
    moment: Moment | None = None
    allocator_reserved_bytes: int | None = None
    """On a device: the most its caching allocator ever held."""
    allocator_allocated_bytes: int | None = None
    """On a device: the most of it that was ever in use."""
    timeline: Timeline | None = None


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """The peak of the job (or of one process, or device) from the operating system's number down to layers.

    Its lines add up to its peak and none is below zero: a ledger that breaks this law cannot be made.
    """

    process: int
    """Index into RunRecord.processes: the process whose inside is known."""
    device: str
    """'host', or 'cuda:0'."""
    peak_bytes: int
    """What the operating system (or the device allocator) says; the headline, for the job's first ledger."""
    step: int | None
    """The traced step it rests on; None when none was."""
    phase: str
    """Where in that step the process was largest."""
    lines: tuple[LedgerLine, ...]
    """Add up to peak_bytes; the last is 'unexplained'."""
    tensors: tuple[TensorShare, ...]
    note: str = ""
    """Which moment is explained, where that is not the very peak."""
    untouched_bytes: int | None = None
    """Memory that the heap and tensors reserve and that takes no page; not part of the peak. None when not looked
    at."""

    def __post_init__(self) -> None:
        total_bytes = sum(line.num_bytes for line in self.lines)
        if total_bytes != self.peak_bytes or any(line.num_bytes < 0 for line in self.lines):
            raise ValueError(f"lines of {total_bytes} bytes do not make a peak of {self.peak_bytes} bytes")

    @property
    def unexplained_bytes(self) -> int:
        """The part of the peak that carries no name."""
        return sum(line.num_bytes for line in self.lines if line.kind == "unexplained")

    @property
    def explained_ratio(self) -> float:
        """The share of the peak that carries a name: the one number that every page and table shows."""
        return 1.0 - self.unexplained_bytes / self.peak_bytes if self.peak_bytes else 0.0
